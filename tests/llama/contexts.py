"""Contexts for tests: opened on tiny models, fed by hand, closed with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings

Row = NDArray[np.float32]
Open = Callable[..., Context]
SMALL = {"context_size": 256, "n_sequences": 3, "n_batch": 64, "threads": 1}


@contextmanager
def opening(models: Mapping[str, Model], **usual: Any) -> Iterator[Open]:
    """Opens contexts by architecture; what is given differs from what is usual."""
    with ExitStack() as stack:

        def make(architecture: str = "llama", **settings: Any) -> Context:
            wanted: dict[str, Any] = SMALL | usual | settings
            context = Context(models[architecture], ContextSettings(**wanted))
            stack.callback(context.close)
            return context

        yield make


def feed(context: Context, seq_id: int, tokens: Sequence[int], n_logits: int = 1) -> Row:
    """Append to a sequence; its last rows, copied."""
    span = Span(seq_id, context.length(seq_id), list(tokens), n_logits)
    return np.array(context.decode([span])[0])


def cold(context: Context, tokens: Sequence[int]) -> Row:
    """The row after a text read from its start, in a slot of its own."""
    context.clear(2)
    last: Row = feed(context, 2, tokens)[-1]
    return last

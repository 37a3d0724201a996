"""A target that says what it is told: its passes are its own, the text is given.

Knows one engine and the tokens; who drafts knows nothing of it. So two ways to decode can be
compared on the same text, where their own would part at the first near tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from parlay import Parlay
from parlay.decoding.span import Span

_RAISED: Final = 1e4  # added to a logit: nothing comes near it


@contextmanager
def told(parlay: Parlay, said: Sequence[int] | None, n_prompt: int) -> Iterator[None]:
    """The target says these tokens after its prompt, then ends; None: what it likes."""
    if said is None:
        yield
        return
    target, end = parlay.engine.target, parlay.engine.model.vocabulary.eos
    script, own = [*said, end], target.fetch

    def fetch(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = own(spans)
        for span, p in zip(spans, rows, strict=True):
            first = span.start + span.read.start + 1 - n_prompt
            for j in range(len(p)):
                if 0 <= first + j < len(script):
                    p[j, script[first + j]] += _RAISED
        return rows

    setattr(target, "fetch", fetch)  # noqa: B010 - of this one target, for one answer
    try:
        yield
    finally:
        delattr(target, "fetch")

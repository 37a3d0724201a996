"""The target's hidden states of written text, captured through llama.cpp in passes over prompts.

Knows a target and a table of texts. Any architecture whose states llama.cpp gives out will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.decoding.states import States
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay_train.text_batches import Table

_ROWS = 4096  # of one pass
_TEXTS = 16  # in one pass
_LARGEST = 65504.0  # of 16 bits; few numbers come near it

Show = Callable[[int], None]  # tokens read so far


class Captured:
    """States in 16 bits, text after text. Some texts lack the states of their last tokens."""

    def __init__(self, width: int, n_kept: NDArray[np.int64], device: str) -> None:
        self.n_kept = n_kept
        self.offset = np.concatenate([[0], np.cumsum(n_kept)])[:-1]
        self.rows = torch.empty((int(n_kept.sum()), width), dtype=torch.float16, device=device)

    def put(self, text: int, states: States) -> None:
        at = int(self.offset[text])
        rows = torch.from_numpy(states).to(self.rows.device)
        self.rows[at : at + len(states)] = rows.clamp(-_LARGEST, _LARGEST).half()


def capture(
    target: Path,
    layers: Sequence[int],
    table: Table,
    device: str,
    *,
    gpu_layers: int = -1,
    threads: int = 0,
    show: Show = lambda _n: None,
) -> Captured:
    """Read every text of the table once."""
    groups = list(_groups(table.length))
    n_kept = np.zeros(len(table), np.int64)
    for texts, length in groups:
        n_kept[texts] = length
    longest = max(length for _, length in groups)
    with Model(target, ModelSettings(gpu_layers)) as model:
        captured = Captured(len(layers) * model.n_embd, n_kept, device)
        settings = ContextSettings(
            -(-longest // 64) * 64,
            _TEXTS,
            n_batch=max(_ROWS, longest),
            n_outputs=_TEXTS,
            threads=threads,
        )
        context = Context(model, settings)
        try:
            _read(context, layers, table, groups, captured, show)
        finally:
            context.close()
    return captured


def _read(
    context: Context,
    layers: Sequence[int],
    table: Table,
    groups: Sequence[tuple[NDArray[np.int64], int]],
    captured: Captured,
    show: Show,
) -> None:
    texts: NDArray[np.int64] = np.empty(0, np.int64)

    def take(spans: Sequence[Span], states: Sequence[States]) -> None:
        for span, rows in zip(spans, states, strict=True):
            captured.put(int(texts[span.seq_id]), rows)

    context.capture(layers, take)
    n_read = 0
    for texts, length in groups:
        tokens: Any = table.batch(texts).tokens[:, :length].cpu().numpy()
        for slot in range(len(texts)):
            context.clear(slot)
        context.decode([Span(i, 0, row, 0) for i, row in enumerate(tokens)])
        n_read += tokens.size
        show(n_read)


def _groups(lengths: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Texts of like length, all read as far as the shortest: llama.cpp keeps those in one pass."""
    order = np.argsort(lengths, kind="stable")
    at = 0
    while at < len(order):
        shortest = int(lengths[order[at]])
        n = min(_TEXTS, max(1, _ROWS // shortest), len(order) - at)
        yield order[at : at + n], shortest
        at += n

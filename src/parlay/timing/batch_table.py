"""The cost table of a model and its drafter on this machine, for many sequences: made or recalled.

Opens the models for it and closes them again; what was measured on an idle machine is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parlay import store
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS
from parlay.errors import LoadError
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.timing.batches import BatchPlan, measure_batches

Progress = Callable[[str], None]
_KIND = "batch-costs"


@dataclass(frozen=True, slots=True)
class WantedTable:
    """What to measure, and how long that may take."""

    target: Path
    drafter: Path | None = None
    max_sequences: int = 16
    contexts: tuple[int, ...] = (64,)
    n_times: int = 3
    budget_s: float = 60.0
    threads: int = 0
    name: str = "here"
    origin: str = "measured on this machine"


def batch_table(wanted: WantedTable, progress: Progress = lambda _line: None) -> CostTable:
    """From the cache, where it was measured before; a busy machine is measured again."""
    key = _key(wanted)
    known = store.load(_KIND, key)
    if known is not None:
        return CostTable.from_dict(known)
    found = measure_table(wanted, progress)
    if found.stable:
        store.save(_KIND, key, found.to_dict())
    return found


def measure_table(wanted: WantedTable, progress: Progress = lambda _line: None) -> CostTable:
    """Load, measure, close."""
    with contextlib.ExitStack() as stack:
        target, n = stack.enter_context(_opened(wanted.target, wanted, wanted.max_sequences))
        drafter = None
        if wanted.drafter is not None:
            drafter, n = stack.enter_context(_opened(wanted.drafter, wanted, n))
        progress(f"{n} sequences at most, texts of {wanted.contexts} tokens")
        plan = BatchPlan(n, wanted.contexts, wanted.n_times, wanted.budget_s)
        name, origin = wanted.name, wanted.origin
        return measure_batches(target, plan, drafter, name=name, origin=origin, progress=progress)


@contextlib.contextmanager
def _opened(path: Path, wanted: WantedTable, n_sequences: int) -> Iterator[tuple[Context, int]]:
    """As many sequences as memory allows: fewer rather than none."""
    model = Model(path, ModelSettings())
    try:
        context, n = _largest(model, wanted, n_sequences)
        try:
            yield context, n
        finally:
            context.close()
    finally:
        model.close()


def _largest(model: Model, wanted: WantedTable, n_sequences: int) -> tuple[Context, int]:
    size = max(wanted.contexts) + MAX_ROWS
    while True:
        settings = ContextSettings(
            size, n_sequences, n_batch=MAX_ROWS, n_outputs=MAX_ROWS, threads=wanted.threads
        )
        try:
            return Context(model, settings), n_sequences
        except LoadError:
            if n_sequences == 1:
                raise
            n_sequences //= 2


def _key(wanted: WantedTable) -> str:
    files = [p for p in (wanted.target, wanted.drafter) if p is not None]
    return store.fingerprint(
        [store.file_identity(path) for path in files],
        library.version(),
        [(d.name, d.description) for d in library.devices()],
        wanted.max_sequences,
        wanted.contexts,
        wanted.threads,
    )

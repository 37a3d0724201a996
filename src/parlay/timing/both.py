"""Measures both models at once: passes of the target beside a drafter that never rests.

Knows only `Passes`. The drafter runs on a thread of its own, as it does when it drafts ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

from parlay.control.prices.both import Both
from parlay.decoding.span import Passes, Span
from parlay.timing.probe_text import real_tokens

_ROWS = (2, 4, 8, 17)  # of the target's passes: between those there are lines
_N_PREFIX, _N_WARM_UP, _N_ALONE, _N_BESIDE = 24, 2, 3, 5
_N_STEPS = 32  # of the drafter, before its text begins again


class _Busy:
    """A drafter that drafts token after token until it is told to stop."""

    def __init__(self, drafter: Passes) -> None:
        self.taken: list[float] = []  # seconds of each token
        self.failure: Exception | None = None
        self._drafter = drafter
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parlay-measuring")

    def __enter__(self) -> _Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        tokens, drafter = real_tokens(self._drafter, _N_STEPS), self._drafter
        try:
            while not (self.taken and self._stopped.is_set()):  # one at the very least
                at = len(self.taken) % _N_STEPS
                if at == 0:
                    drafter.clear(0)
                started = perf_counter()
                drafter.decode([Span(0, at, tokens[at : at + 1], 1)])[0][0].argmax()
                self.taken.append(perf_counter() - started)
        except Exception as error:  # whoever measures tells it
            self.failure = error


def measure_both(target: Passes, drafter: Passes, max_window: int, seq_id: int = 0) -> Both | None:
    """None where there is no room for it. Takes a place of the target, and the drafter's first."""
    most = min(max_window + 1, target.context_size - _N_PREFIX)
    shapes = [rows for rows in _ROWS if rows <= most]
    if not shapes or drafter.context_size < _N_STEPS:
        return None
    slowdown, token_s = {}, {}
    with _text(target, seq_id):
        try:
            for rows in shapes:
                alone = _passes(target, seq_id, rows, _N_ALONE)
                with _Busy(drafter) as busy:
                    beside = _passes(target, seq_id, rows, _N_BESIDE)
                if busy.failure is not None:
                    raise busy.failure
                slowdown[rows] = max(1.0, median(beside) / median(alone))
                token_s[rows] = median(busy.taken)
        finally:
            drafter.clear(0)
    return Both(slowdown, token_s)


@contextmanager
def _text(target: Passes, seq_id: int) -> Iterator[None]:
    """A short text in the target's cache for a while."""
    target.clear(seq_id)
    try:
        target.decode([Span(seq_id, 0, real_tokens(target, _N_PREFIX), 0)])
        yield
    finally:
        target.clear(seq_id)


def _passes(target: Passes, seq_id: int, rows: int, n: int) -> list[float]:
    """Seconds of passes of one shape, once it is settled."""
    taken = []
    for i in range(_N_WARM_UP + n):
        tokens = real_tokens(target, rows, place=i + 1)
        started = perf_counter()
        target.decode([Span(seq_id, _N_PREFIX, tokens, rows)])
        taken.append(perf_counter() - started)
        if target.reusable(seq_id, _N_PREFIX) == _N_PREFIX:
            target.truncate(seq_id, _N_PREFIX)
        else:
            target.clear(seq_id)
            target.decode([Span(seq_id, 0, real_tokens(target, _N_PREFIX), 0)])
    return taken[_N_WARM_UP:]

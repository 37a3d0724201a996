"""Faults that may come again every round: each kind is logged ever more seldom.

Knows what to write, not what to do about it; a fault in a loop must not fill a disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from parlay.errors import ParlayError

log = logging.getLogger("parlay.engine")


class Faults:
    """Counts kinds of faults; `what` is always a text of ours, so that there are few of them."""

    def __init__(self) -> None:
        self._n: Counter[str] = Counter()

    def tell(self, what: str, error: Exception) -> None:
        """Log the first, the second, the fourth, the eighth... of a kind, with its traceback."""
        self._n[what] += 1
        n = self._n[what]
        if n & (n - 1) == 0:
            log.error("%s (%d so far): %s", what, n, error, exc_info=error)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Whatever fails in here is logged, and nothing else fails for it."""
        try:
            yield
        except Exception as error:
            self.tell(what, error)


def as_parlay(error: Exception) -> ParlayError:
    """The error an answer ends with."""
    if isinstance(error, ParlayError):
        return error
    return ParlayError(f"internal error: {type(error).__name__}: {error}")

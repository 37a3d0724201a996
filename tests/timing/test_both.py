"""Both models at once are measured where there is room, and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.timing.both import measure_both
from tests.scripted import ScriptedModel, hashed_logits

LOGITS = hashed_logits(16)


class Waiting(ScriptedModel):
    """Its passes of a draft wait for the drafter, which so has one token at least beside each."""

    def __init__(self, drafted: threading.Semaphore) -> None:
        super().__init__(LOGITS, 16)
        self._drafted = drafted

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if any(thread.name == "parlay-measuring" for thread in threading.enumerate()):
            assert self._drafted.acquire(timeout=300)
        return super().decode(spans)


class Drafting(ScriptedModel):
    def __init__(self, drafted: threading.Semaphore) -> None:
        super().__init__(LOGITS, 16)
        self._drafted = drafted
        self.threads: set[str] = set()

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self.threads.add(threading.current_thread().name)
        rows = super().decode(spans)
        self._drafted.release()
        return rows


def test_both_are_timed_side_by_side_and_leave_nothing_behind() -> None:
    drafted = threading.Semaphore(0)
    target, drafter = Waiting(drafted), Drafting(drafted)
    found = measure_both(target, drafter, max_window=7)
    assert found is not None and set(found.to_dict()["ms"]) == {"2", "4", "8"}
    assert min(found.slowdown) >= 1.0
    assert drafter.threads == {"parlay-measuring"}
    assert not target.length(0) and not drafter.length(0)
    assert all(thread.name != "parlay-measuring" for thread in threading.enumerate())


def test_without_room_nothing_is_measured() -> None:
    small = ScriptedModel(LOGITS, 16, context_size=8)
    assert measure_both(small, small, max_window=7) is None


def test_a_drafter_that_fails_is_told_of() -> None:
    target, drafter = ScriptedModel(LOGITS, 16), ScriptedModel(LOGITS, 16)
    drafter.fail_next = 1
    with pytest.raises(DecodeError):
        measure_both(target, drafter, max_window=7)

"""What others want of the cores, by counters that are made up, and by this system's own."""

from __future__ import annotations

import psutil
import pytest

from parlay.engine import neighbours
from parlay.engine.neighbours import Neighbours, _Counters, _wanted


def counted(*, busy: float, idle: float, own: float, waited: float) -> float:
    """On two cores since nothing had been counted."""
    before = _Counters(0.0, 0.0, 0.0, 0.0, {"1": 0.0, "2": 0.0})
    now = _Counters(1.0, busy, idle, own, {"1": waited, "3": 9.0})  # the second ended
    return _wanted(before, now, 2)


def test_who_shares_cores_with_us_wants_more_than_they_got() -> None:
    assert counted(busy=2.0, idle=0.0, own=0.67, waited=0.33) == pytest.approx(2.0, abs=0.02)
    assert counted(busy=2.0, idle=0.0, own=1.0, waited=0.0) == pytest.approx(1.0)
    assert counted(busy=1.0, idle=1.0, own=0.0, waited=0.0) == pytest.approx(1.0)


def test_nobody_wants_more_cores_than_there_are_and_nobody_less_than_none() -> None:
    assert counted(busy=2.0, idle=0.0, own=0.1, waited=1.9) == 2.0
    assert counted(busy=0.5, idle=1.5, own=0.6, waited=0.0) == 0.0
    assert counted(busy=0.0, idle=0.0, own=0.0, waited=0.0) == 0.0


def test_our_own_work_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_LEAST_S", 0.0)
    found = Neighbours()
    before = psutil.Process().cpu_times().user
    while psutil.Process().cpu_times().user - before < 0.1:
        sum(range(10_000))
    look = found()
    assert 0.0 <= look.cores <= (psutil.cpu_count() or 1)
    assert look.seconds > 0


def test_right_after_a_look_it_is_told_again_for_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_LEAST_S", 0.0)
    found = Neighbours()
    cores = found().cores
    monkeypatch.setattr(neighbours, "_LEAST_S", 3600.0)
    again = found()
    assert (again.cores, again.seconds) == (cores, 0.0)

"""Threads of a pass: one for each core that others leave, and no bit of an exact text by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from parlay.decoding.span import Span
from parlay.engine.cores import Cores, Others
from parlay.engine.exact.shapes import Inexact

PASS = [Span(0, 9, [1], 1)]


class Threads:
    """Keeps what was chosen."""

    def __init__(self, n: int) -> None:
        self.n, self.sleeps = n, False

    def use(self, n: int, *, sleeps: bool) -> None:
        self.n, self.sleeps = n, sleeps

    @contextmanager
    def meanwhile(self, n: int) -> Iterator[None]:
        before = self.n, self.sleeps
        self.use(n, sleeps=True)
        yield
        self.use(before[0], sleeps=before[1])


class Bits:
    """Knows which numbers of threads round alike."""

    def __init__(self, *alike: int) -> None:
        self.alike = alike

    def same(self, n: int, _spans: Sequence[Span]) -> bool:
        return n in self.alike

    known = same


class Machine:
    """Others use so many of its cores; time goes on by itself."""

    def __init__(self, rule: int, *alike: int) -> None:
        self.busy, self.now, self.n_looks = 0.0, 0.0, 0
        self.threads = Threads(rule)
        bits = cast(Any, Bits(rule, *alike))
        self.cores = Cores(cast(Any, self.threads), rule, bits, self._busy, lambda: self.now)

    def _busy(self) -> float:
        self.n_looks += 1
        return self.busy

    def passes(self, seconds: float, *, exact: bool = False) -> Inexact | None:
        for _ in range(int(seconds / 0.01)):
            self.now += 0.01
            lost = self.cores.ready(PASS, exact)
        return lost


@pytest.mark.parametrize("rule", [1, 2, 8])
@pytest.mark.parametrize("busy", range(4))
def test_a_pass_has_a_thread_for_each_core_that_others_leave(rule: int, busy: int) -> None:
    machine = Machine(rule, *range(1, 9))
    machine.busy = busy
    machine.passes(1.0)
    assert (machine.threads.n, machine.threads.sleeps) == (max(1, rule - busy), False)
    machine.busy = 0.0
    machine.passes(1.0)
    assert machine.threads.n == rule


def test_one_look_and_a_part_of_a_core_are_not_believed() -> None:
    machine = Machine(2, 1)
    machine.busy = 2.0
    machine.passes(0.4)
    machine.busy = 0.5
    machine.passes(5.0)
    assert machine.threads.n == 2


def test_others_are_looked_at_now_and_then_and_not_before_each_pass() -> None:
    machine = Machine(4)
    machine.passes(10.0)
    assert machine.n_looks <= 40


def test_an_exact_pass_has_other_threads_only_where_their_bits_are_the_same() -> None:
    alike, not_alike = Machine(2, 1), Machine(2)
    for machine in (alike, not_alike):
        machine.busy = 1.0
        assert machine.passes(1.0, exact=True) is None
    assert (alike.threads.n, alike.threads.sleeps) == (1, False)
    assert (not_alike.threads.n, not_alike.threads.sleeps) == (2, True)
    assert not_alike.passes(0.1) is Inexact.THREADS  # who is not exact has one thread, and says so


def test_where_no_core_is_left_nothing_is_tried_and_all_threads_sleep() -> None:
    machine = Machine(2, 1)
    machine.busy = 3.0
    machine.passes(1.0, exact=True)
    assert (machine.threads.n, machine.threads.sleeps) == (2, True)
    machine.passes(0.1)
    assert (machine.threads.n, machine.threads.sleeps) == (1, False)


def test_bits_are_compared_with_all_threads_asleep_where_others_want_cores() -> None:
    machine = Machine(2, 1)
    with machine.cores.comparing():
        assert (machine.threads.n, machine.threads.sleeps) == (2, False)
    machine.busy = 1.0
    machine.passes(1.0)
    with machine.cores.comparing():
        assert (machine.threads.n, machine.threads.sleeps) == (2, True)
    assert machine.threads.n == 1


def test_what_others_want_is_a_number_of_cores() -> None:
    others = Others()
    assert 0.0 <= others() <= 4096

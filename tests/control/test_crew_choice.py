"""The choice of a crew, on machines whose passes take scripted times."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest

from parlay.control.crew import Crew, crews
from parlay.control.crew_choice import CrewChoice, OtherLoad

TWO, SLEEPING, ONE = Crew(2), Crew(2, sleeps=True), Crew(1)
# Milliseconds of a pass by crew, for so many busy cores; as on two cores with a small model.
TABLE: Mapping[int, Mapping[Crew, float]] = {
    0: {TWO: 10.0, SLEEPING: 20.0, ONE: 17.5},
    1: {TWO: 45.0, SLEEPING: 40.0, ONE: 20.0},
    2: {TWO: 47.0, SLEEPING: 22.0, ONE: 30.0},
}


class Machine:
    """Others use some of its cores; time passes as passes are made."""

    def __init__(self, *, seed: int = 0, noise: float = 0.15) -> None:
        self.busy = 0
        self._dice = random.Random(seed)
        self._noise = noise
        self.choice = CrewChoice(crews(2, can_sleep=True), lambda: OtherLoad(self.busy, 0.25))

    def seconds(self, crew: Crew, rows: int) -> float:
        lengthened = 1 + self._noise * abs(self._dice.gauss(0, 1))
        return TABLE[self.busy][crew] / 1e3 * (1 + 0.1 * rows) * lengthened

    def run(self, busy: int, seconds: float) -> float:
        """Passes for so long; their number over what the best crew would have made."""
        self.busy = busy
        best = min(TABLE[busy].values())
        spent = of_best = 0.0
        while spent < seconds:
            rows = self._dice.choice((1, 1, 1, 4))
            crew = self.choice.now
            took = self.seconds(crew, rows)
            self.choice.observe(crew, ("rows", rows), took)
            spent += took
            of_best += took * best / TABLE[busy][crew]
        return of_best / spent


def loaded() -> CrewChoice:
    """One core is taken; the rule is chosen, so that one thread challenges it."""
    choice = CrewChoice([TWO, ONE], lambda: OtherLoad(1.0, 0.25))
    choice.recall({"winners": [[1, 2, False]]})
    return choice


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_reaches_nine_tenths_of_the_best_setting_by_hand(busy: int, seed: int) -> None:
    machine = Machine(seed=seed)
    assert machine.run(busy, 20) >= 0.9
    assert machine.run(busy, 20) >= 0.95


def test_an_idle_machine_is_left_to_the_rule_whatever_its_passes_take() -> None:
    """A burst of slow passes that no load explains once made one thread the choice, for good."""
    machine = Machine(noise=3.0)
    for _ in range(5000):
        assert machine.choice.now == TWO
        machine.choice.observe(TWO, "one", machine.seconds(TWO, 1))


def test_a_short_load_changes_nothing() -> None:
    loads = iter([0.0, 1.0, 0.0, 1.0, 0.0, 1.0] * 100)
    choice = CrewChoice([TWO, ONE], lambda: OtherLoad(next(loads), 0.25))
    for _ in range(5000):
        assert choice.now == TWO
        choice.observe(TWO, "one", 0.02)


@pytest.mark.parametrize("seed", range(5))
def test_when_the_load_ends_the_rule_is_back_at_once(seed: int) -> None:
    machine = Machine(seed=seed)
    machine.run(1, 20)
    assert machine.choice.chosen == ONE
    machine.run(0, 1.5)
    assert machine.choice.chosen == TWO
    assert machine.run(0, 20) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_what_was_found_under_a_load_is_known_when_it_comes_back(seed: int) -> None:
    machine = Machine(seed=seed)
    for busy in (0, 1, 2, 0):
        machine.run(busy, 10)
    for busy in (1, 2, 0, 2, 0, 1):
        assert machine.run(busy, 5) >= 0.8


def test_crews_that_are_equal_stay() -> None:
    choice = loaded()
    for _ in range(2000):
        choice.observe(choice.now, "one", 0.010)
        assert choice.chosen == TWO


def test_a_text_that_begins_on_a_busy_machine_leaves_others_their_cores() -> None:
    for load, threads in [(0.2, 16), (2.0, 12), (10.0, 4)]:
        choice = CrewChoice(crews(16, can_sleep=True), lambda load=load: OtherLoad(load, 0.5))  # type: ignore[misc]
        choice.look()
        assert choice.now == Crew(threads)


def test_where_others_leave_no_core_all_threads_sleep_and_each_gets_its_share() -> None:
    for can_sleep, crew in ((True, Crew(16, sleeps=True)), (False, ONE)):
        choice = CrewChoice(crews(16, can_sleep=can_sleep), lambda: OtherLoad(16.0, 0.5))
        choice.look()
        assert choice.now == crew


@pytest.mark.parametrize("seed", range(5))
def test_one_slow_pass_among_many_does_not_hide_who_is_twice_as_fast(seed: int) -> None:
    choice, dice = (
        CrewChoice(crews(2, can_sleep=True), lambda: OtherLoad(1.0, 0.25)),
        random.Random(seed),
    )
    for _ in range(1500):
        seconds = {TWO: 0.8, SLEEPING: 0.035, ONE: 0.07}[choice.now]
        choice.observe(choice.now, "one", seconds * (6.0 if dice.random() < 0.1 else 1.0))
    assert choice.chosen == SLEEPING


def test_a_race_against_one_that_takes_for_ever_ends_with_its_first_pass() -> None:
    choice = loaded()
    n_slow = 0
    for _ in range(10_000):
        slow = choice.now == ONE
        n_slow += slow
        choice.observe(choice.now, "one", 3.0 if slow else 0.01)
    assert choice.chosen == TWO
    assert 1 <= n_slow <= 3


def spinning_for_a_taken_core(dice: random.Random) -> float:
    """As on two cores that two others use: mostly quick, and now and then for a second."""
    return 1.0 if dice.random() < 0.15 else 0.03


def passes_on_taken_cores(seed: int, seconds: float) -> list[float]:
    """What each took, until so much time was spent."""
    choice = CrewChoice(crews(2, can_sleep=True), lambda: OtherLoad(2.0, 0.5))
    choice.look()
    dice, took = random.Random(seed), [0.0]
    while sum(took) < seconds:
        crew = choice.now
        took.append(spinning_for_a_taken_core(dice) if crew == TWO else 0.045)
        choice.observe(crew, "one", took[-1])
    return took[1:]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_seconds_are_not_lost_to_threads_that_spin_for_taken_cores(seed: int) -> None:
    assert len(passes_on_taken_cores(seed, 5.0)) >= 0.9 * 5.0 / 0.045


@pytest.mark.parametrize("seed", range(5))
def test_all_races_of_a_busy_minute_cost_a_share_of_it(seed: int) -> None:
    took = passes_on_taken_cores(seed, 120.0)
    assert sum(took) - 0.045 * len(took) <= 0.06 * sum(took)


def test_a_shape_that_nobody_has_seen_ends_a_race_as_well() -> None:
    """The text grew into another band of lengths right when the race began."""
    choice = loaded()
    while choice.now == TWO:
        choice.observe(TWO, "short", 0.01)
    choice.observe(ONE, "longer", 1.0)
    assert choice.now == TWO
    assert not choice.racing


def test_a_load_that_was_seen_for_long_needs_one_look() -> None:
    choice = CrewChoice([TWO, ONE], lambda: OtherLoad(1.0, 4.0))
    choice.observe(TWO, "one", 0.7)
    assert choice.now == ONE


def test_where_another_number_of_threads_may_not_be_used_all_of_them_sleep() -> None:
    choice = CrewChoice(crews(2, can_sleep=True), lambda: OtherLoad(1.0, 0.5))
    choice.look()
    choice.refuse(ONE)
    assert choice.now == SLEEPING


def test_one_that_may_not_make_a_pass_is_left_at_once_and_asked_again_later() -> None:
    choice = CrewChoice([TWO, ONE], lambda: OtherLoad(1.0, 0.25))
    n_refused = 0
    for _ in range(3000):
        if choice.now == ONE:
            choice.refuse(ONE)
            n_refused += 1
        assert choice.now == TWO
        choice.observe(choice.now, "one", 0.02)
    assert 2 <= n_refused <= 10


def test_what_was_found_comes_back_in_another_run() -> None:
    machine = Machine()
    for busy in (0, 1, 2):
        machine.run(busy, 10)
    again = Machine(seed=1)
    again.choice.recall(machine.choice.to_dict())
    assert again.run(1, 2) >= 0.8
    assert again.choice.chosen == ONE


@pytest.mark.parametrize("record", [{}, {"winners": [["a", 2, False]]}, {"winners": [[1, 2]]}])
def test_a_damaged_record_is_none(record: dict[str, object]) -> None:
    with pytest.raises((ValueError, LookupError)):
        CrewChoice([TWO, ONE]).recall(record)


def test_a_slow_minute_does_not_decide_a_race() -> None:
    """Both crews make every pass at the same, drifting, pace: neither is faster."""
    choice, pace = loaded(), 0.02
    dice = random.Random(1)
    for _ in range(20_000):
        pace = min(0.2, max(0.01, pace * math.exp(dice.gauss(0, 0.01))))
        choice.observe(choice.now, "one", pace)
        assert choice.chosen == TWO


def test_crews_are_compared_on_shapes_that_both_have_made() -> None:
    """The challenger's turns fall on cheap passes only: that is no gain of its own."""
    choice, n = loaded(), 0
    for _ in range(3000):
        mine = choice.now == ONE
        n += mine
        choice.observe(choice.now, ("rows", 1 if mine else 4), 0.01 if mine else 0.03)
        assert choice.chosen == TWO
    assert n > 0

"""Who is faster, told by passes in turn."""

from __future__ import annotations

import random

import pytest

from parlay.control.crew import Crew
from parlay.control.crew_race import Race


def run(race: Race, mine: float, others: float, *, noise: float = 0.0, seed: int = 0) -> Race:
    """To its end; times are those of the two, now and then twice as long."""
    dice = random.Random(seed)
    while not race.is_over:
        seconds = mine if race.challenged else others
        race.add("one", seconds * (2.0 if dice.random() < noise else 1.0))
    return race


def test_the_faster_one_wins_and_by_how_much_is_told() -> None:
    race = run(Race(Crew(1)), 0.8, 1.0)
    assert race.won
    assert race.over == pytest.approx(0.8)


def test_equals_and_the_slower_one_do_not_win() -> None:
    assert not run(Race(Crew(1)), 1.0, 1.0).won
    assert not run(Race(Crew(1)), 1.5, 1.0).won


def test_chance_wins_seldom_on_a_machine_whose_passes_often_take_twice_as_long() -> None:
    won = [run(Race(Crew(1)), 1.0, 1.0, noise=0.4, seed=seed).won for seed in range(400)]
    assert sum(won) < 100


def test_a_race_goes_on_where_passes_do_not_tell_yet() -> None:
    clear = run(Race(Crew(1)), 0.5, 1.0)
    unclear = run(Race(Crew(1)), 0.97, 1.0, noise=0.4)
    assert clear.n_made < unclear.n_made <= 48


def test_passes_of_two_shapes_are_not_compared() -> None:
    race = Race(Crew(1))
    while not race.is_over:
        mine = race.challenged
        race.add("narrow" if mine else "wide", 0.01 if mine else 0.03)
    assert race.over is None
    assert not race.won

"""Traffic follows the faster side, whatever the times; looks at the slower one stay few."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.front.remote.timing import MIN_ANSWERS, RouteTiming, SideChoice

TOKENS = 64


def run(
    route: RouteTiming, n: int, betting_s: float, plain_s: float, noise: float = 0.0
) -> list[SideChoice]:
    """n requests one after another, with these times per token."""
    draw = random.Random(7)
    made = []
    for _ in range(n):
        choice = route.choose()
        seconds = (betting_s if choice.speculate else plain_s) * TOKENS
        route.observe(choice.speculate, seconds * draw.uniform(1 - noise, 1 + noise), TOKENS)
        made.append(choice)
    return made


@given(
    st.floats(1e-4, 1.0),
    st.floats(1.05, 20.0),
    st.booleans(),
    st.floats(0.01, 0.5),
    st.integers(50, 400),
)
def test_traffic_follows_the_faster_side(
    fast: float, factor: float, betting_wins: bool, share: float, n: int
) -> None:
    slow = fast * factor
    route = RouteTiming(share)
    made = run(route, n, *((fast, slow) if betting_wins else (slow, fast)))
    assert route.leader is betting_wins
    after = made[4 * MIN_ANSWERS :]
    wrong = sum(choice.speculate is not betting_wins for choice in after)
    assert wrong <= share * len(after) + 1


@given(st.lists(st.tuples(st.booleans(), st.floats(1e-3, 10)), max_size=200), st.floats(0, 0.5))
def test_the_slower_side_is_seen_seldom_in_any_history(
    answers: list[tuple[bool, float]], share: float
) -> None:
    route, others = RouteTiming(share), 0
    for obeys, seconds in answers:
        leader = route.leader
        choice = route.choose()
        others += choice.speculate is not leader
        side = choice.speculate if obeys else not choice.speculate
        route.observe(side, seconds, TOKENS)
    assert others <= share * len(answers) + MIN_ANSWERS


def test_looks_at_the_slower_side_become_rarer() -> None:
    made = run(RouteTiming(0.1), 2000, 0.01, 0.02)
    looks = [i for i, choice in enumerate(made) if choice.why == "exploring"]
    gaps = [b - a for a, b in pairwise(looks)]
    assert gaps == sorted(gaps) and 15 <= gaps[0] <= 25 and 155 <= gaps[-1] <= 165


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_when_the_slower_side_becomes_faster_traffic_moves(noise: float) -> None:
    route = RouteTiming(0.05)
    run(route, 200, 0.01, 0.02, noise)
    assert route.leader is True
    run(route, 1500, 0.03, 0.02, noise)
    assert route.leader is False


def test_a_change_of_the_leaders_time_brings_the_looks_back() -> None:
    looks = {}
    for then in (0.01, 0.015):
        route = RouteTiming(0.1)
        run(route, 1000, 0.01, 0.02)
        looks[then] = sum(c.why == "exploring" for c in run(route, 150, then, 0.02))
    assert looks[0.01] <= 1 and looks[0.015] >= 3


def test_nearly_equal_sides_do_not_flap() -> None:
    route = RouteTiming(0.5)
    leaders = []
    for _ in range(300):
        run(route, 1, 0.0100, 0.0099)
        leaders.append(route.leader)
    assert all(leaders)


def test_a_failed_first_look_is_repeated_and_holds_nobody_up() -> None:
    route = RouteTiming(0.1)
    sent = 0
    for _ in range(400):
        choice = route.choose()
        sent += not choice.speculate
        if choice.speculate:
            route.observe(True, 0.64, TOKENS)
    assert MIN_ANSWERS < sent <= 40 + MIN_ANSWERS
    assert not route.compared


def test_without_a_share_nothing_is_explored() -> None:
    assert all(choice.speculate for choice in run(RouteTiming(0.0), 100, 1.0, 0.1))


def test_empty_answers_count_nothing() -> None:
    route = RouteTiming(0.1)
    route.observe(True, 1.0, 0)
    route.observe(True, 0.0, 5)
    assert route.sides[True].n_answers == 0

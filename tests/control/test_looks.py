"""Drafts that are only looked at: when, and what they vouch for."""

from __future__ import annotations

from itertools import pairwise

from parlay.control.looks import Looks


def test_looks_follow_each_other_while_they_show_something() -> None:
    looks = Looks()
    for _ in range(4):
        assert looks.due()
        looks.asked()
        looks.saw(4)


def test_a_drafter_that_shows_little_is_looked_at_ever_more_seldom() -> None:
    looks, at = Looks(), []
    for i in range(600):
        if looks.due():
            at.append(i)
            looks.asked()
            looks.saw(0)
    assert at[:4] == [0, 4, 14, 36]
    assert len(at) < 10


def test_more_than_eight_tokens_that_came_vouch_for_a_drafter_and_a_bad_look_takes_half() -> None:
    looks, vouched = Looks(), []
    for n_right in (8, 4, 0):
        looks.saw(n_right)
        vouched.append(looks.vouch)
    assert vouched == [False, True, False]


def test_looks_beside_passes_go_on_every_few_rounds_whatever_they_show() -> None:
    looks, at = Looks(cheap=True), []
    for i in range(600):
        if looks.due():
            at.append(i)
            looks.asked()
            looks.saw(0)
    assert max(b - a for a, b in pairwise(at)) == 32


def test_tokens_of_rounds_that_nobody_weighed_count_as_waited_for() -> None:
    looks = Looks()
    looks.saw(0)
    assert not looks.due()
    assert looks.due(n_tokens=3)

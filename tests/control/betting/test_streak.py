"""A bet that held is made again without being weighed, as long as nothing speaks against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlay.control.betting.streak import _MOST, Streak
from parlay.control.controller import Choice, View
from parlay.decoding.draft import Draft, Look, Ready, Shown
from parlay.decoding.round import Fallback
from tests.control.synthetic import draft, view

CHOICE = Choice("suffix", 3, reason="profit")


def offered(*confidence: float, n_generated: int = 10) -> View:
    offers = {"suffix": draft("suffix", *confidence), "ngram": draft("ngram", 0.5)}
    return view(offers, ("suffix", "ngram"), n_generated=n_generated)


FIRST = offered(0.9, 0.9, 0.8, 0.7)
HELD = replace(FIRST, n_generated=14)  # all three, and the target's own


def streak() -> Streak:
    """A bet that was weighed twice, and made for the second time now."""
    return Streak(FIRST, CHOICE, Streak(FIRST, CHOICE, None))


def test_a_bet_that_held_is_made_again_a_few_times() -> None:
    made, now = streak(), FIRST
    for n in range(_MOST):
        now = replace(now, n_generated=now.n_generated + 4)
        assert made.goes_on(now), n
        assert made.make_again(now) is CHOICE
    assert not made.goes_on(replace(now, n_generated=now.n_generated + 4))


def test_one_that_was_weighed_for_the_first_time_is_weighed_again() -> None:
    assert not Streak(FIRST, CHOICE, None).goes_on(HELD)
    wider = Streak(FIRST, replace(CHOICE, window=2), None)
    assert not Streak(FIRST, CHOICE, wider).goes_on(HELD)
    other = Streak(FIRST, replace(CHOICE, proposer="ngram", window=1), None)
    assert not Streak(FIRST, CHOICE, other).goes_on(HELD)


@pytest.mark.parametrize("last", [replace(FIRST, seq_id=1), replace(FIRST, answer=7)])
def test_a_bet_in_another_answer_vouches_for_none(last: View) -> None:
    assert not Streak(FIRST, CHOICE, Streak(last, CHOICE, None)).goes_on(HELD)


@pytest.mark.parametrize("n_generated", [10, 11, 13, 15])
def test_one_that_did_not_hold_is_weighed(n_generated: int) -> None:
    assert not streak().goes_on(replace(HELD, n_generated=n_generated))


def with_offer(**offers: Draft) -> View:
    return replace(HELD, offers={**HELD.offers, **offers})


@pytest.mark.parametrize(
    "now",
    [
        replace(HELD, seq_id=1),
        replace(HELD, max_window=2),  # by a guard, whatever is offered
        replace(HELD, ready=Ready(read_s=0.1)),
        replace(HELD, floor=2),
        replace(HELD, window=3),
        replace(HELD, fallback=Fallback.POLICY),
        replace(HELD, thinking=True),
        replace(HELD, proposers=("suffix",)),
        replace(HELD, looks=[Look("model", 1, (0.5,))]),
        replace(HELD, shown=[Shown("ngram", 1, False)]),
        with_offer(suffix=draft("suffix", 0.9, 0.9)),  # less than was bet on
        with_offer(suffix=draft("suffix", 0.9, 0.9, 0.7, 0.9)),  # less sure
        with_offer(suffix=draft("suffix", 0.9, 0.9, 0.9, 0.9, 0.9)),  # more: a wider bet may pay
        with_offer(ngram=draft("ngram", 0.9, 0.9)),
        replace(HELD, offers={"suffix": HELD.offers["suffix"]}),
    ],
)
def test_whatever_else_has_changed_it_is_weighed(now: View) -> None:
    assert streak().goes_on(HELD)
    assert not streak().goes_on(now)


def test_to_be_surer_changes_nothing() -> None:
    assert streak().goes_on(with_offer(suffix=draft("suffix", 0.99, 0.99, 0.99, 0.99)))

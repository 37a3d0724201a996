"""A draft model that is ahead of the text is bet on again, until something speaks against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlay.control.betting.lead import _MOST, Lead
from parlay.control.betting.stopping import Stopping
from parlay.control.controller import Choice, View
from parlay.decoding.draft import NO_DRAFT, Look, Ready, Shown
from parlay.decoding.round import Fallback
from tests.control.synthetic import draft, view

ROWS = 9
CHOICE = Choice("model", 4, reason="profit", n_ahead=4)


def stopping() -> Stopping:
    """A token saves a second, a row takes half of one."""
    odds = [9.0, *[0.1] * 64]  # those who are not sure at all are wrong
    return Stopping(odds, 1.0, [0.9] * 8, [0.5 * n for n in range(ROWS)], 1.0, 0.1, 4)


FIRST = view({"suffix": NO_DRAFT}, ("suffix", "model"), n_generated=10)
READY = replace(FIRST, n_generated=15, ready=Ready(3))


def lead(before: Lead | None = None) -> Lead:
    """A bet that was weighed twice, and made for the second time now."""
    return Lead(FIRST, CHOICE, stopping, before or Lead(FIRST, CHOICE, stopping, None))


def test_a_bet_whose_next_draft_is_ready_is_made_again_a_few_times() -> None:
    made, now = lead(), FIRST
    for n in range(_MOST):
        now = replace(now, n_generated=now.n_generated + 5, ready=Ready(3))
        assert made.goes_on(now), n
        assert replace(made.make_again(now), keep_going=None, verify=None) == CHOICE
    assert not made.goes_on(replace(now, n_generated=now.n_generated + 5))


def test_a_draft_that_is_bet_on_again_is_stopped_by_its_own_confidences() -> None:
    made = lead()
    first = made.make_again(READY)
    assert first.verify is not None
    assert first.verify([0.9, 0.9, 0.001]) == 2
    again = made.make_again(replace(READY, n_generated=20))
    assert again.verify is not None
    assert again.verify([0.9, 0.9, 0.9, 0.9]) == 4


def test_one_that_was_weighed_for_the_first_time_is_weighed_again() -> None:
    assert not Lead(FIRST, CHOICE, stopping, None).goes_on(READY)
    wider = Lead(FIRST, replace(CHOICE, window=5), stopping, None)
    assert not lead(wider).goes_on(READY)
    other = Lead(FIRST, replace(CHOICE, proposer="other"), stopping, None)
    assert not lead(other).goes_on(READY)
    for elsewhere in (replace(FIRST, seq_id=1), replace(FIRST, answer=7)):
        assert not lead(Lead(elsewhere, CHOICE, stopping, None)).goes_on(READY)


@pytest.mark.parametrize(
    "now",
    [
        replace(READY, ready=Ready(0)),  # the text went another way
        replace(READY, ready=Ready(3, proposer="other")),
        replace(READY, n_generated=10),
        replace(READY, seq_id=1),
        replace(READY, max_window=3),
        replace(READY, floor=2),
        replace(READY, window=3),
        replace(READY, fallback=Fallback.POLICY),
        replace(READY, thinking=True),
        replace(READY, proposers=("model",)),
        replace(READY, looks=[Look("model", 1, (0.5,))]),
        replace(READY, shown=[Shown("suffix", 1, False)]),
        replace(READY, offers={"suffix": draft("suffix", 0.9, 0.9, 0.9)}),  # as much as is ready
        replace(READY, offers={}),
    ],
)
def test_whatever_speaks_against_it_it_is_weighed(now: View) -> None:
    assert lead().goes_on(READY)
    assert not lead().goes_on(now)


def test_a_free_draft_of_less_than_is_ready_does_not_stand_in_its_way() -> None:
    assert lead().goes_on(replace(READY, offers={"suffix": draft("suffix", 0.9, 0.9)}))

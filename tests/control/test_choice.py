"""What request and room impose, and a fixed window."""

from __future__ import annotations

import pytest

from parlay.control.choice import Choices, FixedWindow, View, imposed
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.round import Fallback

DRAFT = Draft((1, 2, 3), "suffix", (0.9, 0.9, 0.9))


def view(**given: object) -> View:
    told = {"max_window": 8, "proposers": ("suffix", "model"), "models": ("model",), **given}
    return View(0, 1, 100, 5, 50, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(fallback=Fallback.MEMORY), Fallback.MEMORY),
        (view(proposers=()), Fallback.REQUEST),
        (view(window=0), Fallback.REQUEST),
        (view(max_window=0), Fallback.EXACT),
        (View(0, 1, 100, 5, 1, 0, ("suffix",)), Fallback.NO_DRAFT),
    ],
)
def test_a_request_or_no_room_leaves_nothing_to_choose(seen: View, reason: Fallback) -> None:
    choice = imposed(seen)
    assert choice is not None
    assert (choice.window, choice.fallback) == (0, reason)


def test_a_fixed_window_takes_the_first_proposer_that_has_something_to_say() -> None:
    fixed = FixedWindow(4)
    said = fixed.choose([view(offers={"suffix": DRAFT}), view(offers={"suffix": NO_DRAFT})])
    assert [(each.proposer, each.window) for each in said.each] == [("suffix", 4), ("model", 4)]
    silent = fixed.choose([view(proposers=("suffix",), models=(), offers={"suffix": NO_DRAFT})])
    assert silent.each[0].fallback is Fallback.NO_DRAFT


def test_the_window_of_a_request_is_kept_to_as_far_as_there_is_room() -> None:
    (choice,) = FixedWindow(0).choose([view(window=20, offers={"suffix": DRAFT})]).each
    assert (choice.proposer, choice.window) == ("suffix", 8)


def test_unless_somebody_says_otherwise_drafts_are_whole_and_passes_are_not_padded() -> None:
    said = Choices([])
    drafted = {3: [0.5, 0.4], 5: [0.9]}
    assert set(said.going(drafted)) == {3, 5}
    assert said.verified(drafted) == {3: 2, 5: 1}
    assert said.width(7) == 7

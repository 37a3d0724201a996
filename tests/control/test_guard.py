from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from parlay.control.choice import Choice, FixedWindow, View
from parlay.control.guard import Guarded, LimitAlert, Limits
from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback
from parlay.errors import BadRequest
from tests.control.synthetic import draft, finished

OFFER = {"ngram": draft("ngram", *(0.9,) * 8)}


def view(offers: Mapping[str, Draft], **more: Any) -> View:
    """An answer with these offers."""
    return View(
        **{
            "seq_id": 0,
            "answer": 1,
            "n_context": 64,
            "n_generated": 8,
            "n_remaining": 256,
            "max_window": 16,
            "proposers": tuple(offers),
            "offers": offers,
            **more,
        }
    )


def chosen(guarded: Guarded, views: Sequence[View]) -> Sequence[Choice]:
    return guarded.choose(views).each


def play(guarded: Guarded, n: int, n_accepted: int) -> list[int]:
    """So many rounds, each accepting so many tokens of whatever is drafted; the windows."""
    windows = []
    for _ in range(n):
        (choice,) = chosen(guarded, [view(OFFER)])
        k = choice.window
        accepted = min(k, n_accepted)
        guarded.observe(
            [finished(choice.proposer, k, accepted, fallback=choice.fallback if not k else None)]
        )
        windows.append(k)
    return windows


def test_without_limits_nothing_happens() -> None:
    guarded = Guarded(FixedWindow(4), Limits())
    assert play(guarded, 300, 0) == [4] * 300


def test_low_token_acceptance_falls_back_for_a_while_and_recovers() -> None:
    alerts: list[LimitAlert] = []
    limits = Limits(min_token_acceptance=0.5, n_rounds=32, n_enough=16, n_cool_down=20)
    guarded = Guarded(FixedWindow(4), limits, alerts.append)
    assert play(guarded, 16, 1) == [4] * 16
    assert guarded.cooling
    (choice,) = chosen(guarded, [view(OFFER)])
    assert choice.fallback is Fallback.LOW_ACCEPTANCE
    assert play(guarded, 20, 1) == [0] * 20
    assert play(guarded, 15, 1) == [4] * 15
    assert [(a.kind, a.value, a.limit) for a in alerts] == [("token_acceptance", 0.25, 0.5)]


def test_sequence_acceptance_counts_whole_drafts() -> None:
    """75 % of the tokens, but no draft to its end: the trap of a gate on full matches."""
    limits = Limits(min_sequence_acceptance=0.6, n_enough=16)
    guarded = Guarded(FixedWindow(4), limits)
    play(guarded, 16, 3)
    assert guarded.cooling


def test_a_requests_own_reason_is_kept_while_cooling() -> None:
    limits = Limits(min_token_acceptance=0.5, n_enough=4, n_rounds=4)
    guarded = Guarded(FixedWindow(4), limits)
    play(guarded, 4, 0)
    (choice,) = chosen(guarded, [view(OFFER, fallback=Fallback.REASONING)])
    assert choice.fallback is Fallback.REASONING


def test_many_fallbacks_alert_and_halve_the_window_until_they_are_few() -> None:
    alerts: list[LimitAlert] = []
    guarded = Guarded(FixedWindow(8), Limits(fallback_threshold_pct=15, n_rounds=20), alerts.append)
    for i in range(20):
        guarded.choose([view(OFFER)])
        reason = Fallback.NO_DRAFT if i % 5 == 0 else None
        guarded.observe([finished("ngram", 8, 8, fallback=reason)])
    assert [(a.kind, a.value) for a in alerts] == [("fallback_share", 20.0)]
    assert chosen(guarded, [view(OFFER)])[0].window == 8  # of 16 at most, now of 8
    assert chosen(guarded, [view(OFFER, max_window=8)])[0].window == 4
    play(guarded, 20, 8)
    assert chosen(guarded, [view(OFFER, max_window=8)])[0].window == 8


def test_the_window_is_never_halved_to_nothing_and_comes_back() -> None:
    guarded = Guarded(FixedWindow(4), Limits(fallback_threshold_pct=15, n_rounds=20, max_window=4))
    for _ in range(400):
        guarded.choose([view({"ngram": draft("ngram")})])
        guarded.observe([finished(fallback=Fallback.NO_DRAFT)])
    assert chosen(guarded, [view(OFFER)])[0].window == 1
    assert play(guarded, 100, 4)[-1] == 4


def test_a_controller_stays_within_the_widest_window_and_a_request_may_leave_it() -> None:
    guarded = Guarded(FixedWindow(8), Limits(max_window=3))
    assert chosen(guarded, [view(OFFER)])[0].window == 3
    assert chosen(guarded, [view(OFFER, window=6)])[0].window == 6


@pytest.mark.parametrize("reason", [Fallback.REQUEST, Fallback.UNPROFITABLE])
def test_who_wants_a_plain_round_has_not_fallen_back(reason: Fallback) -> None:
    alerts: list[LimitAlert] = []
    guarded = Guarded(FixedWindow(8), Limits(fallback_threshold_pct=15, n_rounds=16), alerts.append)
    for _ in range(40):
        guarded.choose([view(OFFER, window=0)])
        guarded.observe([finished(fallback=reason)])
    assert alerts == []
    assert chosen(guarded, [view(OFFER, max_window=8)])[0].window == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_token_acceptance": 1.5},
        {"min_sequence_acceptance": -0.1},
        {"fallback_threshold_pct": 0},
        {"n_rounds": 4, "n_enough": 5},
    ],
)
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        Limits(**wrong)  # type: ignore[arg-type]

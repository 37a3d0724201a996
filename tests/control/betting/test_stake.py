"""What may be staked on an offer: at worst, and on average where the text has shown something."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parlay.control.betting.stake import Stake
from parlay.control.evidence import Evidence

SURE = list(accumulate([1.0] * 16))  # tokens expected to hold, by window


def stake(n_right: int, at_risk: float = 0.5, allowance: float = 0.0) -> Stake:
    evidence = Evidence()
    evidence.observe(n_right, wrong=False)
    return Stake(allowance, at_risk, 5.0, evidence)


def allows(stake: Stake, loss_s: float, gained: list[float]) -> bool:
    return stake.bound(1.0, gained).allows(loss_s, len(gained))


def test_what_is_within_the_allowance_needs_no_evidence() -> None:
    assert allows(stake(0, allowance=2.0), 2.0, SURE)
    assert not allows(stake(0, allowance=2.0), 2.1, SURE)


@pytest.mark.parametrize(("n_right", "allowed"), [(5, False), (6, False), (16, False), (17, True)])
def test_each_right_token_makes_up_for_a_pass_of_a_loss(n_right: int, allowed: bool) -> None:
    """Four passes at worst: with n right of n they are lost unless three more are right, and by
    then most of them are made up for."""
    n = n_right
    lost = 4.0 - sum((n + 1) / (n + 1 + i) for i in range(1, 5))
    assert allows(stake(n_right), 4.0, SURE) == allowed == (lost <= 0.5 and n > 5)


def test_neither_confidences_nor_evidence_alone_are_believed() -> None:
    doubtful = list(accumulate(0.5**i for i in range(1, 17)))
    assert allows(stake(100), 4.0, SURE)
    assert not allows(stake(100), 4.0, doubtful)
    assert not allows(stake(0), 4.0, SURE)


def test_a_draft_too_short_to_make_up_for_its_loss_is_not_bet_on() -> None:
    assert not allows(stake(100), 4.0, SURE[:4])
    assert allows(stake(100), 4.0, SURE[:5])


def test_no_bet_may_lose_more_than_the_largest_loss_however_sure_it_is() -> None:
    assert not allows(stake(10_000), 5.1, SURE)


@given(
    rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=24),
    n_right=st.integers(0, 60),
    loss_s=st.floats(0.0, 12.0),
    at_risk=st.floats(-1.0, 3.0),
    window=st.integers(1, 24),
)
def test_what_is_allowed_is_what_is_lost_on_average(
    rates: list[float], n_right: int, loss_s: float, at_risk: float, window: int
) -> None:
    gained = list(accumulate(accumulate(rates, lambda a, b: a * b)))
    own = stake(n_right, at_risk)
    n_needed = int(loss_s) + 1  # right tokens that make up for it
    shown, before, left_s, lost_s = own.evidence.chances(n_needed), 0.0, loss_s, loss_s
    for gain, chance in zip(gained, shown, strict=False):
        lost_s -= min(1.0, left_s) * min(chance, gain - before)
        left_s, before = left_s - 1.0, gain
    assume(abs(lost_s - at_risk) > 1e-6)
    enough = n_needed <= min(window, len(gained)) and own.evidence.tells and at_risk > 0.0
    wanted = loss_s == 0.0 or (enough and loss_s <= own.most_s and lost_s <= at_risk)
    assert own.bound(1.0, gained).allows(loss_s, window) == wanted


def test_a_loss_is_weighed_against_what_the_text_has_shown() -> None:
    assert stake(0, at_risk=2.0, allowance=0.5).bearable == 0.5
    assert stake(16, at_risk=2.0, allowance=0.5).bearable == 2.0
    assert stake(16, at_risk=0.5, allowance=3.0).bearable == 3.0

"""What may be staked on an offer: at worst, and on average where the text has shown something."""

from __future__ import annotations

from itertools import accumulate

import pytest

from parlay.control.betting.stake import Stake
from parlay.control.evidence import Evidence

SURE = list(accumulate([1.0] * 16))  # tokens expected to hold, by window


def stake(n_right: int, at_risk: float = 0.5, allowance: float = 0.0) -> Stake:
    evidence = Evidence()
    evidence.observe(n_right, wrong=False)
    return Stake(allowance, at_risk, 5.0, evidence)


def test_what_is_within_the_allowance_needs_no_evidence() -> None:
    assert stake(0, allowance=2.0).allows(2.0, 1.0, SURE)
    assert not stake(0, allowance=2.0).allows(2.1, 1.0, SURE)


@pytest.mark.parametrize(("n_right", "allowed"), [(5, False), (6, False), (16, False), (17, True)])
def test_each_right_token_makes_up_for_a_pass_of_a_loss(n_right: int, allowed: bool) -> None:
    """Four passes at worst: with n right of n they are lost unless three more are right, and by
    then most of them are made up for."""
    n = n_right
    lost = 4.0 - sum((n + 1) / (n + 1 + i) for i in range(1, 5))
    assert stake(n_right).allows(4.0, 1.0, SURE) == allowed == (lost <= 0.5 and n > 5)


def test_neither_confidences_nor_evidence_alone_are_believed() -> None:
    doubtful = list(accumulate(0.5**i for i in range(1, 17)))
    assert stake(100).allows(4.0, 1.0, SURE)
    assert not stake(100).allows(4.0, 1.0, doubtful)
    assert not stake(0).allows(4.0, 1.0, SURE)


def test_a_draft_too_short_to_make_up_for_its_loss_is_not_bet_on() -> None:
    assert not stake(100).allows(4.0, 1.0, SURE[:4])
    assert stake(100).allows(4.0, 1.0, SURE[:5])


def test_no_bet_may_lose_more_than_the_largest_loss_however_sure_it_is() -> None:
    assert not stake(10_000).allows(5.1, 1.0, SURE)


def test_a_loss_is_weighed_against_what_the_text_has_shown() -> None:
    assert stake(0, at_risk=2.0, allowance=0.5).bearable == 0.5
    assert stake(16, at_risk=2.0, allowance=0.5).bearable == 2.0
    assert stake(16, at_risk=0.5, allowance=3.0).bearable == 3.0

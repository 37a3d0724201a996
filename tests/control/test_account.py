from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.control.account import Account

PLAIN_S = 1.0


def allowance(account: Account, proposer: str = "ngram", n_generated: int = 0) -> float:
    return account.allowance(0, proposer, n_generated, PLAIN_S, limit_s=1.5)


def test_a_proposer_that_has_won_may_stake_more_than_one_without_a_record() -> None:
    account = Account({"ngram": 4.0})
    account.open(0)
    assert allowance(account, "suffix") == 0.5
    assert allowance(account) == 0.5 + 0.15 * 4.0


def test_what_was_won_in_an_answer_may_be_lost_in_it_and_not_in_the_next() -> None:
    account = Account()
    account.open(0)
    account.book(0, "suffix", 3.0)
    assert allowance(account) == 3.5
    account.open(0)
    assert allowance(account) == 0.5


def test_answers_in_which_a_proposer_is_not_bet_on_leave_its_record_as_it_is() -> None:
    account = Account({"ngram": 4.0})
    for _ in range(50):
        account.open(0)
        account.book(0, "suffix", 0.0)
    assert allowance(account) == 0.5 + 0.15 * 4.0


def test_a_record_is_forgotten_by_three_tenths_with_every_answer_it_is_bet_in() -> None:
    account = Account({"ngram": 4.0})
    account.open(0)
    for _ in range(3):
        account.book(0, "ngram", 0.0)
    assert account.to_dict() == {"ngram": 2.8}


def test_a_record_is_worth_a_larger_stake_but_not_any() -> None:
    account = Account({"ngram": 1e6})
    account.open(0)
    assert allowance(account) == 2.0


def test_refused_drafts_that_were_right_make_up_for_a_loss_and_no_more() -> None:
    account = Account({"ngram": 100.0})
    account.open(0)
    account.book(0, "ngram", -1.2)
    before = allowance(account)
    account.regain(0, 0.5)
    assert allowance(account) == pytest.approx(before + 0.5)
    account.regain(0, 50.0)
    assert allowance(account) == pytest.approx(before + 1.2)


def test_only_a_proposer_with_a_record_makes_up_for_a_loss() -> None:
    account = Account()
    account.open(0)
    account.book(0, "ngram", -1.0)
    account.regain(0, 5.0)
    assert allowance(account) == pytest.approx(-0.5)


def test_refused_drafts_that_were_wrong_undo_what_others_made_up_for() -> None:
    account = Account({"ngram": 100.0})
    account.open(0)
    account.book(0, "ngram", -1.0)
    before = allowance(account)
    for seconds in (0.8, -2.0, 0.3):
        account.regain(0, seconds)
    assert allowance(account) == pytest.approx(before + 0.3)


def test_requests_leave_what_they_did_not_lose_up_to_a_limit() -> None:
    account = Account()
    for _ in range(3):
        account.open(0)
        allowance(account, n_generated=100)  # may lose 2 seconds
    account.open(0)
    assert account.savings("model", limit_s=10.0) == 6.0
    assert account.savings("model", limit_s=5.0) == 5.0


def test_a_proposer_that_lost_its_share_of_the_savings_gets_another_chance_one_day() -> None:
    account = Account()
    account.open(0)
    allowance(account, n_generated=200)
    account.book(0, "model", -4.0)
    account.open(0)
    assert account.savings("model", limit_s=5.0) == 0.0
    for _ in range(30):
        account.open(0)
        allowance(account, n_generated=10)
    assert account.savings("model", limit_s=5.0) > 4.0


@given(st.lists(st.floats(0.0, 5.0), max_size=200))
def test_no_answer_loses_more_than_its_share_or_the_stake(losses: list[float]) -> None:
    """A round is bet only if its whole loss is within the allowance."""
    account, lost = Account(), 0.0
    account.open(0)
    for n, loss in enumerate(losses):
        if loss <= allowance(account, n_generated=n):
            account.book(0, "ngram", -loss)
            lost += loss
    assert lost <= max(0.5, 0.02 * len(losses)) + 1e-9


def test_what_drafts_from_one_request_stakes_a_share_of_it_whatever_others_won() -> None:
    account = Account({"prediction": 1000.0})
    account.open(0)
    assert account.own_allowance(0, 0, PLAIN_S, n_remaining=160) == pytest.approx(1.6)
    assert account.own_allowance(0, 0, PLAIN_S, n_remaining=20) == 0.5  # as for anybody
    account.book(0, "prediction", -1.6)
    assert account.own_allowance(0, 20, PLAIN_S, n_remaining=140) == pytest.approx(0.0)
    account.open(1)
    assert account.own_allowance(1, 0, PLAIN_S, n_remaining=160) == pytest.approx(1.6)


def test_drafts_that_were_refused_and_right_make_up_for_part_of_a_loss_on_average() -> None:
    account = Account()
    account.open(0)
    allowance(account)
    account.book(0, "ngram", -3.0)
    assert account.at_risk(0, 0, PLAIN_S, 50) == pytest.approx(-2.5)
    account.regain(0, 10.0)
    assert account.at_risk(0, 0, PLAIN_S, 50) == pytest.approx(-1.0)  # no more than that
    assert account.at_risk(0, 0, PLAIN_S, 200) == pytest.approx(0.0)  # by what it may become
    account.book(0, "ngram", -4.0)
    assert account.at_risk(0, 0, PLAIN_S, 2000) == pytest.approx(-2.0)  # four passes at most


@pytest.mark.parametrize(
    ("change_s", "risks"),
    [(0.0, [0.5, 0.8, 1.0]), (0.5 * PLAIN_S, [0.5, 1.2, 1.5]), (9 * PLAIN_S, [0.56, 1.6, 2.0])],
)
def test_a_text_may_risk_early_what_its_length_allows_up_to_a_pass_or_two_where_changes_are_dear(
    change_s: float, risks: list[float]
) -> None:
    account = Account()
    account.open(0)
    allowance(account)
    found = [account.at_risk(0, 8, PLAIN_S, n, change_s) for n in (20, 72, 2000)]
    assert found == pytest.approx(risks)


def test_a_draft_model_may_lose_2_percent_of_what_a_text_may_have_and_two_passes_at_most() -> None:
    account = Account()
    account.open(0)
    found = [account.first_stake(0, "model", 0, PLAIN_S, n) for n in (10, 50, 1000)]
    assert found == pytest.approx([0.0, 0.5, 1.5])  # beside the half of a pass that anyone may
    # And less as the text earns it by its length.
    assert account.first_stake(0, "model", 75, PLAIN_S, 1000) == pytest.approx(0.5)
    assert account.first_stake(0, "model", 100, PLAIN_S, 1000) == 0.0


def test_what_it_lost_in_earlier_texts_counts_by_half_and_what_it_lost_in_this_one_once() -> None:
    account = Account({"model": -1.0})
    account.open(0)
    before = account.first_stake(0, "model", 0, PLAIN_S, 1000)
    account.book(0, "model", -0.5)
    assert before == account.first_stake(0, "model", 0, PLAIN_S, 1000) == pytest.approx(1.5 - 0.45)

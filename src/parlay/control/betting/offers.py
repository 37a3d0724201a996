"""The best window of every free offer to one sequence, as if it were alone in betting.

Knows one pass: its prices and how much may be lost on it; nothing of draft models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.control.account import Account
from parlay.control.betting.followed_request import FollowedRequest
from parlay.control.betting.market import Market
from parlay.control.betting.stake import Bound, Refusal, Stake
from parlay.control.betting.valuation import gains, worth
from parlay.control.controller import View
from parlay.control.survival import Survival
from parlay.proposers.prediction import PREDICTION

# While less than so many plain passes may be lost, a second that may be lost costs so much more.
_AT_EASE, _CAUTION = 8.0, 2.0
# What a free proposer that has won may stake in one answer beyond others, in plain passes: it costs
# little to try and is tried often.
_FREE_LIMIT = 1.5
# A draft where drafts hold has so many tokens.
_LONG = 8
# Drafts that hold do so for about as many tokens: then it is their shape that is stayed in.
HOLDS = 8.0


@dataclass(slots=True)
class Offer:
    """A free proposer's draft for one sequence, valued."""

    proposer: str
    gained: list[float]  # tokens expected to be accepted, by window
    worth: float  # seconds that one of them saves
    stake: Stake
    bound: Bound  # what may be lost by that stake
    n_allowed: int  # the widest window whose loss is allowed
    window: int = 0
    value: float = 0.0  # seconds saved
    plain_s: float = 0.0  # over a plain pass at this price


def best_offer(
    request: FollowedRequest, market: Market, survival: Survival, account: Account
) -> Offer | None:
    """The best window of the best free offer to one sequence, as if it were alone in betting."""
    view = request.view
    change_s, most_s = market.to_and_fro_s, market.largest_s
    limit_s = _FREE_LIMIT * market.plain_s + 2 * change_s
    best: Offer | None = None
    for proposer, draft in view.offers.items():
        sure = draft.confidence[: view.max_window]  # a limit may be narrower than the search was
        if not sure:
            continue
        rates = survival.of(proposer, view.greedy, view.thinking).by_confidence
        gained = gains(sure, rates.odds, request.difficulty(proposer).factor)
        allowance = _free_allowance(proposer, view, market.plain_s, limit_s, account)
        at_risk = account.at_risk(
            view.seq_id, view.n_generated, market.plain_s, view.n_remaining, change_s
        )
        stake = Stake(allowance, at_risk, most_s, request.evidence(proposer))
        bound = stake.bound(market.plain_s, gained)
        n_allowed = market.widest(bound, _n_certain(sure))
        # What a draft that holds saves is what the windows save that are allowed.
        allowed = gained[: max(1, n_allowed)]
        each = worth(allowed, market.rate, market.share_s(allowed))
        offer = _value_windows(Offer(proposer, gained, each, stake, bound, n_allowed), market)
        if best is None or offer.value > best.value:
            best = offer
    request.refused = None if best is None else _refusal(best, market)
    return best


def caution(allowance: float, plain_s: float) -> float:
    """What a second that may be lost costs more, where so much may be lost at worst."""
    return _CAUTION * max(0.0, 1.0 - allowance / (_AT_EASE * plain_s))


def _free_allowance(
    proposer: str, view: View, plain_s: float, limit_s: float, account: Account
) -> float:
    if proposer == PREDICTION:
        return account.own_allowance(view.seq_id, view.n_generated, plain_s, view.n_remaining)
    return account.allowance(view.seq_id, proposer, view.n_generated, plain_s, limit_s)


def _n_certain(confidence: Sequence[float]) -> int:
    """Tokens at a draft's start that nothing else may come for: their proposer knows the rules."""
    return next((n for n, sure in enumerate(confidence) if sure < 1.0), len(confidence))


def _refusal(offer: Offer, market: Market) -> Refusal | None:
    """Why a good offer is not bet on, if that is the allowance.

    Where drafts hold they are long: a right token wins what it does as one of a long draft.
    """
    if offer.n_allowed:
        return None
    if not market.most_window:
        return None
    wrong_s = market.loss(market.at(1))
    n_long = min(_LONG, market.most_window)
    right_s = market.plain_s - (market.steady[market.at(n_long)] - market.plain_s) / n_long
    likely = offer.gained[0]
    good = likely * right_s > (1.0 - likely) * wrong_s
    return Refusal(offer.proposer, right_s, wrong_s) if good else None


def _value_windows(offer: Offer, market: Market) -> Offer:
    """Find the window that saves most, among those whose loss is allowed.

    A change of shape is charged only as far as the draft may be wrong: if it is right, the new
    shape is the one to be in, and would have to be paid for a round later anyway. For the same
    reason the shape of a plain pass is worth the less to stay in the longer drafts seem to hold.
    """
    rows, prices, steady = market.rows, market.prices, market.steady
    plain_s, doubt = market.plain_s, 1.0 - offer.gained[0]
    leaves = min(1.0, HOLDS * doubt)
    plain_price = steady[rows] + leaves * (prices[rows] - steady[rows])
    price_of_loss = doubt * caution(offer.stake.bearable, plain_s)
    best, best_window = -plain_s, 0
    undoing, each = market.undoing, offer.worth
    rows_at = market.rows_at(offer.n_allowed)
    for window, (rows, gain) in enumerate(zip(rows_at, offer.gained, strict=False), 1):
        price = steady[rows] + doubt * (prices[rows] - steady[rows])
        if undoing.seconds:
            price += undoing.expected_s(offer.gained, window)
        value = each * gain - price - price_of_loss * (price - plain_s)
        if value + plain_price > best:
            best, best_window = value + plain_price, window
    offer.window, offer.value, offer.plain_s = best_window, best, plain_price
    return offer

"""The best way to share the rows of one pass between the free offers of several sequences.

Knows offers and prices; who waits for the pass may lose only so much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parlay.control.account import Account
from parlay.control.betting.market import Market
from parlay.control.betting.offers import HOLDS, Offer, caution
from parlay.control.betting.stake import Bound


def share_rows(offers: Mapping[int, Offer], market: Market, account: Account) -> float:
    """Set the windows of several sequences that share a pass; their value in seconds."""
    limit = Limit(offers, market, account)
    shared = list(offers.values())
    if market.step == 1:
        return _share_any(shared, market, limit)
    return _share_level(shared, market, limit)


class Limit:
    """How long the bets of a pass may make its sequences wait.

    All wait for its end. Who has no draft loses for sure what the pass takes longer; who has one
    may risk it as if alone. While others wait for a slot it is the average that counts: whoever
    ends sooner makes room for them.
    """

    def __init__(self, offers: Mapping[int, Offer], market: Market, account: Account) -> None:
        plain_s = market.plain_s
        views = [request.view for request in market.requests]
        patience = {
            v.seq_id: account.patience(
                v.seq_id, v.n_generated, plain_s, sure=v.seq_id not in offers
            )
            for v in views
        }
        self._allowed = sum([max(0.0, o.stake.allowance) for o in offers.values()])
        self._bounds: list[Bound] = []
        self._gained: list[list[float]] = []
        self._evident, self._room_s = False, market.room_s
        if market.crowded:
            self._least = sum(patience.values()) / len(patience)
            return
        self._least = min([s for i, s in patience.items() if i not in offers], default=math.inf)
        for seq_id, offer in offers.items():
            self._bounds.append(offer.bound.within(patience[seq_id]))
            self._gained.append(offer.gained)
        self._evident = all(offer.stake.evidence.tells for offer in offers.values())

    def _repaid(self, window: int) -> float:
        """What a sequence without a draft gets back: others are ahead then, and end sooner."""
        if not self._evident:
            return 0.0
        return self._room_s * sum([g[min(window, len(g)) - 1] for g in self._gained])

    def allows(self, loss_s: float, window: int) -> bool:
        """Whether so much may be lost, where the longest drafts have so many tokens."""
        if loss_s - self._repaid(window) > self._least:
            return False
        if not all(bound.allows(loss_s, window) for bound in self._bounds):
            return False
        # What each may lose on average by its own text's evidence needs no allowance of all.
        return loss_s <= self._allowed or self._evident


class _Charged:
    """What of a change of shape is charged to one pass: as for one sequence, as far as the drafts
    may be wrong. If they are right, that shape is the one to be in."""

    def __init__(self, offers: Sequence[Offer], market: Market) -> None:
        self._market = market
        # Whoever has most to win decides whether the shape is stayed in.
        weight = sum([offer.gained[-1] for offer in offers])
        self._doubt = 1.0 - sum([o.gained[0] * o.gained[-1] for o in offers]) / weight
        leaves = min(1.0, HOLDS * self._doubt)
        rows, steady = market.rows, market.steady
        self.plain_s = steady[rows] + leaves * (market.prices[rows] - steady[rows])
        least = min([offer.stake.allowance for offer in offers])
        self._caution = self._doubt * caution(least, market.plain_s)

    def bet_s(self, rows: int) -> float:
        steady = self._market.steady[rows]
        price = steady + self._doubt * (self._market.prices[rows] - steady)
        return price + self._caution * (price - self._market.plain_s)


def _share_level(offers: Sequence[Offer], market: Market, limit: Limit) -> float:
    """One width for all: a token more for one of them takes a row of each.

    Where nothing is padded, all have to draft as much, or nobody does.
    """
    most = min(max(len(offer.gained) for offer in offers), market.most_window)
    if market.level:
        everyone = len(offers) == market.n_sequences
        most = min([most, *(len(offer.gained) for offer in offers)]) if everyone else 0
    price_of = _Charged(offers, market)
    best, width = 0.0, 0
    for window in range(1, most + 1):
        rows = market.at(window)
        if not limit.allows(market.loss(rows), window):
            continue  # a wider one may be: its right tokens make up for more
        own = [(o, min(window, len(o.gained))) for o in offers]
        saved = sum([o.worth * o.gained[n - 1] for o, n in own])
        saved -= sum([market.undoing.expected_s(o.gained, n) for o, n in own])
        value = saved - price_of.bet_s(rows) + price_of.plain_s
        if value > best:
            best, width = value, window
    for offer in offers:
        offer.window = min(width, len(offer.gained))
    return best


def _share_any(offers: Sequence[Offer], market: Market, limit: Limit) -> float:
    """Give the rows of one pass to the tokens that save most, whosever they are.

    The tokens of one draft save less and less, so taking the best of all takes the first of each.
    """
    tokens = [
        (offer.worth * (gain - before), i)
        for i, offer in enumerate(offers)
        for before, gain in zip((0.0, *offer.gained), offer.gained, strict=False)
    ]
    tokens.sort(reverse=True)
    widest = max(len(offer.gained) for offer in offers)
    price_of = _Charged(offers, market)
    saved, best, n_best = 0.0, 0.0, 0
    for n, (seconds, _) in enumerate(tokens, start=1):
        rows = market.rows + n
        if rows >= len(market.full) or not limit.allows(market.loss(rows), widest):
            break
        saved += seconds
        value = saved - price_of.bet_s(rows) + price_of.plain_s
        if value > best:
            best, n_best = value, n
    for i, offer in enumerate(offers):
        offer.window = sum(owner == i for _, owner in tokens[:n_best])
    return best

"""The best way to share the rows of one pass between the free offers of several sequences.

Knows offers and prices; who waits for the pass may lose only so much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from parlay.control.account import Account
from parlay.control.betting.market import Market
from parlay.control.betting.offers import Offer
from parlay.control.betting.stake import Stake


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
        plain_s = self._plain_s = market.plain_s
        views = [request.view for request in market.requests]
        patience = {
            v.seq_id: account.patience(
                v.seq_id, v.n_generated, plain_s, sure=v.seq_id not in offers
            )
            for v in views
        }
        self._least = self._allowed = sum([max(0.0, o.stake.allowance) for o in offers.values()])
        self._staking: list[tuple[Stake, list[float]]] = []
        if market.crowded:
            self._least = sum(patience.values()) / len(patience)
            return
        self._least = min([s for i, s in patience.items() if i not in offers], default=math.inf)
        for seq_id, offer in offers.items():
            stake = replace(offer.stake, allowance=patience[seq_id])
            self._staking.append((stake, offer.gained))

    def allows(self, loss_s: float, window: int) -> bool:
        """Whether so much may be lost, where the longest drafts have so many tokens."""
        if loss_s > min(self._allowed, self._least):
            return False
        return all(
            stake.allows(loss_s, self._plain_s, gained[:window]) for stake, gained in self._staking
        )


def _share_level(offers: Sequence[Offer], market: Market, limit: Limit) -> float:
    """One width for all: a token more for one of them takes a row of each.

    Where nothing is padded, all have to draft as much, or nobody does.
    """
    most = min(max(len(offer.gained) for offer in offers), market.most_window)
    if market.level:
        everyone = len(offers) == market.n_sequences
        most = min([most, *(len(offer.gained) for offer in offers)]) if everyone else 0
    best, width = 0.0, 0
    for window in range(1, most + 1):
        rows = market.at(window)
        if not limit.allows(market.loss(rows), window):
            break
        own = [(o, min(window, len(o.gained))) for o in offers]
        saved = sum([o.worth * o.gained[n - 1] for o, n in own])
        saved -= sum([market.undoing.expected_s(o.gained, n) for o, n in own])
        value = saved - market.prices[rows] + market.prices[market.rows]
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
    saved, best, n_best = 0.0, 0.0, 0
    for n, (seconds, _) in enumerate(tokens, start=1):
        rows = market.rows + n
        if not limit.allows(market.loss(rows), widest):
            break
        saved += seconds
        value = saved - market.prices[rows] + market.prices[market.rows]
        if value > best:
            best, n_best = value, n
    for i, offer in enumerate(offers):
        offer.window = sum(owner == i for _, owner in tokens[:n_best])
    return best

"""The bets that can be made on one pass, and what each is worth in seconds.

Knows one pass: its sequences, its prices and how much may be lost on it. Chooses nothing: it finds
the best window of every free offer, the best way to share rows between sequences, and the best
window of a draft model; the controller compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from operator import mul

from parlay.control.account import Account
from parlay.control.controller import View
from parlay.control.cost import DrafterCost
from parlay.control.evidence import Evidence
from parlay.control.foresight import Foresight
from parlay.control.survival import MAX_POSITIONS, Difficulty, Survival
from parlay.control.undoing import FOR_NOTHING, Undoing
from parlay.control.valuation import gains, position_rates, worth
from parlay.proposers.prediction import PREDICTION

# While less than so many plain passes may be lost, a second that may be lost costs so much more.
_AT_EASE, _CAUTION = 8.0, 2.0
# A draft model that has to read more than this many tokens is an investment in the rest of the
# answer: taken to be half of what the request may still generate. It must leave a reserve, in plain
# passes, or nothing could be bet on what it then drafts.
_CATCH_UP, _LIKELY, _RESERVE = 4, 0.5, 0.7
# What a proposer that has won may stake in one answer beyond others, in plain passes: a free one,
# which costs little to try and is tried often; and a draft model. And what one may stake with
# savings that has won nothing yet.
_FREE_LIMIT, _LIMIT, _STAKE_WITH_SAVINGS = 1.5, 9.5, 5.0
# A draft where drafts hold has so many tokens.
_LONG = 8
# Drafts that hold do so for about as many tokens: then it is their shape that is stayed in.
_HOLDS = 8.0
# What one bet may lose at most, in plain passes, however unlikely that is; and beside them what it
# costs to leave the shape of a plain pass and to take a draft back.
_LARGEST_LOSS = 2.0
# A shape that a draft model changes to is stayed in for so many rounds: each bears a part of it.
_STAYS = 8.0


class Request:
    """One request in a slot, as far as a controller follows it."""

    __slots__ = ("_difficulties", "_evidence", "_n_read", "asked", "looking", "refused", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self._n_read: dict[str, int] = {}  # tokens, by draft model
        self.asked = "none"  # the proposer that was bet on
        self.refused: Refusal | None = None
        self._difficulties: dict[tuple[str, bool], Difficulty] = {}
        self._evidence: dict[str, Evidence] = {}
        self.looking = False  # a draft is being compared with the text

    def n_missing(self, proposer: str) -> int:
        """Tokens that a draft model has not read: since its last draft, or beside passes."""
        since = self.view.n_context + 1 - self._n_read.get(proposer, 0)
        return max(1, min(since, self.view.unread.get(proposer, since)))

    def has_read(self, proposer: str, n_generated: int, *, but: int) -> None:
        """A draft model has read all there is after a round, `but` for the last ones."""
        self._n_read[proposer] = self.view.n_context + 1 + n_generated - but

    def evidence(self, proposer: str) -> Evidence:
        """What this text has shown of a proposer."""
        found = self._evidence.get(proposer)
        if found is None:
            found = self._evidence[proposer] = Evidence()
        return found

    def difficulty(self, proposer: str, by_position: bool = False) -> Difficulty:
        """How this text treats a proposer, by its confidences or by position."""
        found = self._difficulties.get((proposer, by_position))
        if found is None:
            found = self._difficulties[proposer, by_position] = Difficulty()
        return found


@dataclass(slots=True)
class Market:
    """The coming pass and its prices."""

    requests: list[Request]  # those that may bet
    n_sequences: int  # all of them
    rows: int  # if nobody bets, padding included
    undrafted: int  # the same without padding
    steady: Sequence[float]  # seconds by rows, the shape being what it was
    full: Sequence[float]  # with the change of shape this very pass would make
    prices: Sequence[float]  # less what its shape will be worth afterwards
    return_s: float  # what coming back to a plain pass costs
    rate: float  # tokens per second, of late
    plain_s: float
    # Rows that the longest draft's next token takes: one, or one of every sequence where a pass is
    # padded lest llama.cpp cut it in parts.
    step: int = 1
    floor: int = 0  # rows that a pass has at least, drafted or padded
    level: bool = False  # nothing is padded, and only drafts of equal length are not cut in parts
    undoing: Undoing = FOR_NOTHING
    crowded: bool = False  # others wait for a slot
    widths: Sequence[int] = ()  # by rows, what a pass is padded to: these are its prices
    owed_s: float = 0.0  # what a plain pass, too, takes longer now: a text begins
    least_rate: float = 0.0  # tokens per second that are valued, whatever can be made

    def at(self, window: int) -> int:
        """Rows of the pass if one sequence drafts so many tokens."""
        return max(self.floor, self.undrafted + window * self.step)

    def rows_at(self, most: int) -> Sequence[int]:
        """The same for every window up to the widest one."""
        first = self.undrafted + self.step
        if self.floor <= first:
            return range(first, first + most * self.step, self.step)
        return [self.at(window) for window in range(1, most + 1)]

    def share_s(self, gained: Sequence[float]) -> list[float]:
        """Seconds that one sequence carries of a pass with so many tokens drafted, from none on,
        and of taking them back; `gained`: tokens expected to hold."""
        steady, plain_s, n_sequences = self.steady, self.plain_s, self.n_sequences
        n = len(gained)
        if self.step > 1:  # all have as many rows
            passes = [steady[self.at(k)] / n_sequences for k in range(n)]
        else:
            others_s = plain_s - plain_s / n_sequences
            passes = [steady[self.at(k)] - others_s for k in range(n)]
        if not self.undoing.seconds:
            return passes
        return [s + self.undoing.expected_s(gained, k) for k, s in enumerate(passes)]

    @property
    def to_and_fro_s(self) -> float:
        """What it costs to leave the shape of a plain pass and to come back to it."""
        rows = min(self.at(1), len(self.full) - 1)
        return self.full[rows] - self.steady[rows] + self.return_s

    @property
    def largest_s(self) -> float:
        """What one bet may lose, however unlikely that is."""
        return _LARGEST_LOSS * self.plain_s + self.to_and_fro_s + self.step * self.undoing.seconds

    @property
    def plainly(self) -> bool:
        """Whether the last pass had the shape of a plain one."""
        return self.full[self.rows] == self.steady[self.rows]

    def widest(self, stake: Stake, gained: Sequence[float], n_certain: int = 0) -> int:
        """The widest window whose loss is allowed; the first tokens may be certain to be right."""
        for window in range(min(len(gained), self.most_window), 0, -1):
            loss_s = self.loss(self.at(window)) - min(n_certain, window) * self.plain_s
            if stake.allows(loss_s, self.plain_s, gained[:window]):
                return window
        return 0

    @property
    def most_window(self) -> int:
        """The widest window that has a price."""
        return (len(self.full) - 1 - self.undrafted) // self.step

    def loss(self, rows: int) -> float:
        """What a pass of so many rows loses if all of its drafts are wrong."""
        window = (rows - self.undrafted) // self.step
        return self.pass_loss(rows) + self.step * self.undoing.worst_s(window)

    def pass_loss(self, rows: int) -> float:
        """The same, but for taking the drafts back: nothing for rows that would be padding."""
        if rows == self.rows:
            return 0.0
        return self.full[rows] - self.plain_s - self.owed_s + self.return_s


@dataclass(frozen=True, slots=True)
class Stake:
    """What may be lost on one offer."""

    allowance: float  # at worst
    at_risk: float  # on average: more at worst, where the text has shown that it is unlikely
    most_s: float  # ever
    evidence: Evidence

    def allows(self, loss_s: float, plain_s: float, gained: Sequence[float]) -> bool:
        """Whether a loss of so much, should all of a draft be wrong, may be risked."""
        if loss_s <= max(0.0, self.allowance):  # who has lost may still bet for nothing
            return True
        if self.at_risk <= 0.0 or loss_s > self.most_s:
            return False
        n_needed = int(loss_s / plain_s) + 1  # right tokens that make up for it
        if n_needed > len(gained) or not self.evidence.tells:
            return False
        return self._on_average(loss_s, plain_s, gained[:n_needed]) <= self.at_risk

    def _on_average(self, loss_s: float, plain_s: float, gained: Sequence[float]) -> float:
        """Each right token makes up for a pass of it. How likely they are tell both the confidences
        and what the text has shown: the less of the two counts."""
        shown, before, lost_s = self.evidence.chances(len(gained)), 0.0, loss_s
        for gain, chance in zip(gained, shown, strict=True):
            lost_s -= min(plain_s, loss_s) * min(chance, gain - before)
            loss_s -= plain_s
            before = gain
        return lost_s


@dataclass(slots=True)
class Offer:
    """A free proposer's draft for one sequence, valued."""

    proposer: str
    gained: list[float]  # tokens expected to be accepted, by window
    worth: float  # seconds that one of them saves
    stake: Stake
    n_allowed: int  # the widest window whose loss is allowed
    window: int = 0
    value: float = 0.0  # seconds saved
    plain_s: float = 0.0  # over a plain pass at this price


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offer that looks good but may not be bet on, for it could lose too much."""

    proposer: str
    right_s: float  # what its next token would win if it is right
    wrong_s: float  # and lose if it is wrong


def best_offer(
    request: Request, market: Market, survival: Survival, account: Account
) -> Offer | None:
    """The best window of the best free offer to one sequence, as if it were alone in betting."""
    view = request.view
    limit_s, most_s = _FREE_LIMIT * market.plain_s + 2 * market.to_and_fro_s, market.largest_s
    best: Offer | None = None
    for proposer, draft in view.offers.items():
        if not draft.confidence:
            continue
        rates = survival.of(proposer, view.greedy, view.thinking).by_confidence
        gained = gains(draft.confidence, rates.odds, request.difficulty(proposer).factor)
        allowance = _free_allowance(proposer, view, market.plain_s, limit_s, account)
        at_risk = account.at_risk(view.seq_id, view.n_generated, market.plain_s, view.n_remaining)
        stake = Stake(allowance, at_risk, most_s, request.evidence(proposer))
        n_allowed = market.widest(stake, gained, _n_certain(draft.confidence))
        # What a draft that holds saves is what the windows save that are allowed.
        allowed = gained[: max(1, n_allowed)]
        each = worth(allowed, market.rate, market.share_s(allowed))
        offer = _value_windows(Offer(proposer, gained, each, stake, n_allowed), market)
        if best is None or offer.value > best.value:
            best = offer
    request.refused = None if best is None else _refusal(best, market)
    return best


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
    leaves = min(1.0, _HOLDS * doubt)
    plain_price = steady[rows] + leaves * (prices[rows] - steady[rows])
    ease = offer.stake.allowance / (_AT_EASE * plain_s)
    price_of_loss = _CAUTION * doubt * max(0.0, 1.0 - ease)
    best, best_window = -plain_s, 0
    for window, gain in enumerate(offer.gained[: offer.n_allowed], 1):
        rows = market.at(window)
        price = steady[rows] + doubt * (prices[rows] - steady[rows])
        price += market.undoing.expected_s(offer.gained, window)
        value = offer.worth * gain - price - price_of_loss * (price - plain_s)
        if value + plain_price > best:
            best, best_window = value + plain_price, window
    offer.window, offer.value, offer.plain_s = best_window, best, plain_price
    return offer


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


@dataclass(slots=True)
class DraftPlan:
    """A draft model for some sequences of the pass: how far, and what that saves."""

    proposer: str
    requests: list[Request]
    rates: list[list[float]]  # per request, by position
    allowance: float
    catch_up_s: float
    step_s: float
    n_ready: int = 0  # tokens that every request has already, drafted ahead
    again_s: float = 0.0  # what catching up takes once it follows the text
    worth: float = 0.0  # seconds that an accepted token saves
    window: int = 0  # expected to save most; 0: more may be lost than is allowed
    rows: int = 0  # of the pass then
    value: float = 0.0  # seconds saved
    gain: float = 0.0  # tokens expected to be accepted
    ahead: bool = False  # whether the drafter should go on beside the pass
    n_ahead: int = 0  # tokens of the next draft that it should make then
    stakes: Sequence[tuple[float, float]] = ()  # of drafting ahead, by window (`foresight.py`)

    @property
    def draft_s(self) -> float:
        return self.catch_up_s + self.steps_s(self.window)

    def steps_s(self, window: int) -> float:
        """So long a draft takes once the drafter has caught up; what is ready takes nothing."""
        return max(0, window - max(1, self.n_ready)) * self.step_s

    def pays_at_best(self, market: Market) -> bool:
        """Whether it would pay if every token were accepted."""
        n_drafted = self.window * len(self.requests)
        seconds = market.steady[self.rows] + self.draft_s
        return (market.n_sequences + n_drafted) * market.plain_s > market.n_sequences * seconds

    def most(self, market: Market, max_window: int) -> int:
        """How far it may draft if the confidences turn out to be high, all going on alike."""
        n = len(self.requests) if market.step == 1 else market.step
        widest = len(market.full) - 1
        most = self.allowance + market.plain_s - market.return_s - self.catch_up_s
        k = max_window
        while k > self.window:
            rows = min(self.rows + (k - self.window) * n, widest)
            undo_s = len(self.requests) * market.undoing.worst_s(k)
            if market.full[rows] + undo_s + self.steps_s(k) <= most:
                break
            k -= 1
        return k


def draft_plan(
    proposer: str,
    requests: list[Request],
    market: Market,
    survival: Survival,
    account: Account,
    drafter: DrafterCost,
    *,
    beside: bool = False,
    vouched: bool = False,
) -> DraftPlan:
    """The best window of a draft model that drafts for these sequences.

    Its time is shared: every step is one pass over all of them. `beside`: it was at work beside the
    last pass, and unless that was of use, the token under way is waited for. `vouched`: drafts that
    were only looked at came true.
    """
    n, n_ready = len(requests), min([r.view.ready.of(proposer) for r in requests])
    n_missing = 0 if n_ready else sum([r.n_missing(proposer) for r in requests])
    plan = DraftPlan(
        proposer,
        requests,
        [rates_of(proposer, request, survival, drafter.longest) for request in requests],
        _allowance(proposer, requests, market, account, vouched),
        (drafter.catch_up_s(n_missing, n) + beside * drafter.under_way_s(n)) if n_missing else 0.0,
        drafter.step_s(n),
        n_ready,
        drafter.catch_up_s(n, n),
    )
    invested = 0.0
    if n_missing > _CATCH_UP * n:
        invested = max(0.0, plan.catch_up_s - drafter.catch_up_s(2 * n, n))
        if drafter.block is None:  # which is drafted while it catches up
            plan.allowance -= _RESERVE * market.plain_s
    both = drafter.both
    foresight = None if both is None else Foresight(both, drafter, plan.rates, n_ready)
    _choose_window(plan, market, invested, foresight)
    return plan


def _choose_window(
    plan: DraftPlan, market: Market, invested: float, foresight: Foresight | None
) -> None:
    """Set the window that saves most, among those whose loss is allowed."""
    rows_at, gained = _together(plan.rates, market.rows)
    if market.step > 1 or market.n_sequences == 1:
        gained = gained[: market.most_window]
        rows_at = market.rows_at(len(gained))
    attained = _attained(plan, market, rows_at, gained)
    # After a passage that was copied the rate of late is out of reach of any draft: at that, its
    # tokens would be worth less than their time.
    each = plan.worth = 1.0 / min(market.rate, max(attained, market.least_rate))
    if foresight is None:
        plan.worth = min(each, 1.0 / attained)
    n_allowed = _n_allowed(plan, market, rows_at)
    if n_allowed == 0:
        return
    rows_at, gained = rows_at[:n_allowed], gained[:n_allowed]
    saved = [0.0] * n_allowed
    if foresight is not None:
        saved = foresight.values(rows_at, market.steady)
    values = _values(plan, market, rows_at, gained, saved)
    _spread(values, plan, market, invested, rows_at, gained)
    best = max(values)
    at = values.index(best)
    plan.window, plan.rows, plan.gain = at + 1, rows_at[at], gained[at]
    # Beside what others offer, its tokens are worth what theirs are.
    more = (each - plan.worth) * plan.gain
    plan.value = best + more + market.prices[market.rows] - plan.catch_up_s
    plan.ahead = saved[at] > 0.0
    if plan.ahead and foresight is not None:
        plan.n_ahead = _next_window(plan, market, foresight, rows_at, gained, saved)
        if len(plan.requests) == 1:
            plan.stakes = foresight.stakes(rows_at, market.steady)


def _next_window(
    plan: DraftPlan,
    market: Market,
    foresight: Foresight,
    rows_at: Sequence[int],
    gained: Sequence[float],
    saved: Sequence[float],
) -> int:
    """How far the next draft goes if it is ready as far as this pass leaves time for it.

    What is made beyond that is of no use, and one token of it is waited for after a miss.
    """
    pass_s = market.steady[plan.rows]
    n_ready = int(foresight.both.n_beside(plan.rows, pass_s)) - 1
    values = _values(replace(plan, n_ready=n_ready), market, rows_at, gained, saved)
    return max(plan.window, values.index(max(values)) + 1)


def _attained(
    plan: DraftPlan, market: Market, rows_at: Sequence[int], gained: Sequence[float]
) -> float:
    """Tokens per second if every round is such a draft: what is not drafted now will be then."""
    n, drafting_s = market.n_sequences, plan.again_s
    best = n / market.plain_s
    for rows, gain in zip(rows_at, gained, strict=True):
        rate = (n + gain) / (market.steady[rows] + drafting_s)
        best = rate if rate > best else best
        drafting_s += plan.step_s
    return best


def _n_allowed(plan: DraftPlan, market: Market, rows_at: Sequence[int]) -> int:
    """The widest window that loses no more than is allowed if all of it is wrong."""
    undoing, n_requests = market.undoing, len(plan.requests)
    for n in range(len(rows_at), 0, -1):
        lost_s = market.pass_loss(rows_at[n - 1]) + plan.catch_up_s + plan.steps_s(n)
        if undoing.seconds:
            lost_s += n_requests * undoing.worst_s(n)
        if lost_s <= plan.allowance:
            return n
    return 0


def _values(
    plan: DraftPlan,
    market: Market,
    rows_at: Sequence[int],
    gained: Sequence[float],
    saved: Sequence[float],
) -> list[float]:
    """Seconds that each window saves, less those of its pass; `saved` by drafting ahead."""
    prices, each, step_s = market.prices, plan.worth, plan.step_s
    values, drafting_s = [], -step_s * max(1, plan.n_ready)  # what is ready takes nothing
    for rows, gain, ahead_s in zip(rows_at, gained, saved, strict=True):
        drafting_s += step_s
        value = each * gain - prices[rows]
        if drafting_s > 0.0:
            value -= drafting_s
        values.append(value + ahead_s if ahead_s > 0.0 else value)
    undoing, n = market.undoing, len(plan.requests)
    if undoing.seconds:
        apart = [gain / n for gain in gained]
        values = [v - n * undoing.expected_s(apart, k) for k, v in enumerate(values, 1)]
    return values


def _spread(
    values: list[float],
    plan: DraftPlan,
    market: Market,
    invested: float,
    rows_at: Sequence[int],
    gained: Sequence[float],
) -> None:
    """What a window begins with is paid back by the rest of the answer, a part each round."""
    prices, steady, n_requests = market.prices, market.steady, len(plan.requests)
    if not invested and prices is steady:
        return
    n_left = plan.requests[0].view.n_remaining * _LIKELY
    most = n_left if market.plainly else _STAYS
    for i, rows in enumerate(rows_at):
        # Negative for a shape that is worth being in, which no window is chosen for.
        begin = invested + prices[rows] - steady[rows]
        n_rounds = n_left / (1.0 + gained[i] / n_requests)
        n_rounds = most if n_rounds > most else n_rounds
        if begin and n_rounds > 1.0:
            values[i] += begin * (1.0 - 1.0 / n_rounds)


def _together(rates: Sequence[Sequence[float]], rows: int) -> tuple[Sequence[int], list[float]]:
    """By window: the rows of the pass, and the tokens expected to be accepted, of all sequences."""
    survival = [list(accumulate(each, mul)) for each in rates]
    if len(survival) == 1:
        return range(rows + 1, rows + len(survival[0]) + 1), list(accumulate(survival[0]))
    columns = [[s for s in column if s is not None] for column in zip_longest(*survival)]
    rows_at = list(accumulate((len(column) for column in columns), initial=rows))[1:]
    return rows_at, list(accumulate(sum(column) for column in columns))


def _allowance(
    proposer: str, requests: Sequence[Request], market: Market, account: Account, vouched: bool
) -> float:
    plain_s = market.plain_s
    allowances = [
        account.allowance(r.view.seq_id, proposer, r.view.n_generated, plain_s, _LIMIT * plain_s)
        for r in requests
    ]
    # Savings are for the first bets of a proposer whose record says nothing yet.
    first = _STAKE_WITH_SAVINGS * plain_s
    stake = account.savings(proposer, first)
    if len(requests) == 1:
        v = requests[0].view
        own = account.first_stake(v.seq_id, proposer, v.n_generated, plain_s, v.n_remaining)
        stake = max(stake, own)
    if vouched:
        stake = max(stake, account.vouched(proposer, first))
    return sum(allowances) + min(stake, max(0.0, first - sum(allowances)))


def rates_of(
    proposer: str, request: Request, survival: Survival, longest: int | None = None
) -> list[float]:
    """P(token j accepted | those before it were), by position, for a draft model in this text."""
    view = request.view
    most = view.max_window if longest is None else min(view.max_window, longest)
    odds = survival.of(proposer, view.greedy, view.thinking).by_position.odds
    difficulty = request.difficulty(proposer, by_position=True).factor
    return position_rates(odds[: min(most, MAX_POSITIONS)], difficulty)

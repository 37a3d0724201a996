"""The best window of a draft model for some sequences of one pass.

Knows one pass, its prices and the drafter's; nothing of what free proposers offer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat, zip_longest
from operator import mul

from parlay.control.account import Account
from parlay.control.betting.followed_request import FollowedRequest
from parlay.control.betting.foresight import Foresight
from parlay.control.betting.market import Market
from parlay.control.betting.valuation import position_rates
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.survival import MAX_POSITIONS, Survival

# A draft model that has to read more than this many tokens is an investment in the rest of the
# answer: taken to be half of what the request may still generate. It must leave a reserve, in plain
# passes, or nothing could be bet on what it then drafts.
_CATCH_UP, _LIKELY, _RESERVE = 4, 0.5, 0.7
# What a draft model that has won may stake in one answer beyond others, in plain passes; and what
# one may stake with savings that has won nothing yet.
_LIMIT, _STAKE_WITH_SAVINGS = 9.5, 5.0
# Drafts that are made ahead hide a part of their time, and what drafts make is foreseen from few:
# tokens of theirs may take so much more. Without that much a wrong guess keeps windows at 1.
_HIDES = 1.25
# A shape that a draft model changes to is stayed in for so many rounds: each bears a part of it.
_STAYS = 8.0


@dataclass(slots=True)
class DraftPlan:
    """A draft model for some sequences of the pass: how far, and what that saves."""

    proposer: str
    requests: list[FollowedRequest]
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
            rows = self.rows + (k - self.window) * n
            undo_s = len(self.requests) * market.undoing.worst_s(k)
            if rows <= widest and market.full[rows] + undo_s + self.steps_s(k) <= most:
                break
            k -= 1
        return k


def draft_plan(
    proposer: str,
    requests: list[FollowedRequest],
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
    else:
        n_priced = bisect_right(rows_at, len(market.full) - 1)
        rows_at, gained = rows_at[:n_priced], gained[:n_priced]
    attained = _attained(plan, market, rows_at, gained)
    # After a passage that was copied the rate of late is out of reach of any draft: at that, its
    # tokens would be worth less than their time.
    each = plan.worth = 1.0 / min(market.rate, max(attained, market.least_rate))
    # Nor is a token worth much more than drafts make it, however slow the last rounds were.
    plan.worth = min(each, (1.0 if foresight is None else _HIDES) / attained)
    n_allowed = _n_allowed(plan, market, rows_at)
    if n_allowed == 0:
        return
    rows_at, gained = rows_at[:n_allowed], gained[:n_allowed]
    stakes, saved = list[tuple[float, float]](), [0.0] * n_allowed
    if foresight is not None:
        widths = [market.width(rows) for rows in rows_at] if market.widths else rows_at
        stakes = foresight.stakes(widths, market.steady)
        saved = foresight.averages(stakes)
    undrafted = _values(plan, market, rows_at, gained, saved)
    values = _less_drafting(undrafted, plan.step_s, plan.n_ready)
    _spread(values, plan, market, invested, rows_at, gained)
    best = max(values)
    at = values.index(best)
    plan.window, plan.rows, plan.gain = at + 1, rows_at[at], gained[at]
    # Beside what others offer, its tokens are worth what theirs are.
    more = (each - plan.worth) * plan.gain
    plain_s = market.prices[market.rows]
    if market.n_sequences > 1 and not market.plainly:
        # Who goes back stays there: rounds that each lose less than the way back lose for ever.
        plain_s = market.plain_s + (plain_s - market.plain_s) / _STAYS
    plan.value = best + more + plain_s - plan.catch_up_s
    plan.ahead = saved[at] > 0.0
    if plan.ahead and foresight is not None:
        plan.n_ahead = _next_window(plan, market, foresight, undrafted)
        if len(plan.requests) == 1:
            plan.stakes = stakes


def _next_window(
    plan: DraftPlan, market: Market, foresight: Foresight, undrafted: Sequence[float]
) -> int:
    """How far the next draft goes if it is ready as far as this pass leaves time for it.

    What is made beyond that is of no use, and one token of it is waited for after a miss.
    """
    pass_s = market.steady[plan.rows]
    n_ready = int(foresight.both.n_beside(market.width(plan.rows), pass_s)) - 1
    values = _less_drafting(undrafted, plan.step_s, n_ready)
    return max(plan.window, values.index(max(values)) + 1)


def _attained(
    plan: DraftPlan, market: Market, rows_at: Sequence[int], gained: Sequence[float]
) -> float:
    """Tokens per second if every round is such a draft: what is not drafted now will be then."""
    n, steady = market.n_sequences, market.steady
    drafting = accumulate(repeat(plan.step_s, len(rows_at)), initial=plan.again_s)
    rates = [
        (n + gain) / (steady[rows] + drafting_s)
        for rows, gain, drafting_s in zip(rows_at, gained, drafting, strict=False)
    ]
    return max([n / market.plain_s, *rates])


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
    prices, each = market.prices, plan.worth
    values = [each * gain - prices[rows] for rows, gain in zip(rows_at, gained, strict=True)]
    if max(saved) > 0.0:
        values = [
            v + ahead_s if ahead_s > 0.0 else v for v, ahead_s in zip(values, saved, strict=True)
        ]
    undoing, n = market.undoing, len(plan.requests)
    if undoing.seconds:
        apart = [gain / n for gain in gained]
        values = [v - n * undoing.expected_s(apart, k) for k, v in enumerate(values, 1)]
    return values


def _less_drafting(values: Sequence[float], step_s: float, n_ready: int) -> list[float]:
    """Windows as they are worth once they are drafted: what is ready takes nothing."""
    n_free = max(1, n_ready)
    slow = [value - n * step_s for n, value in enumerate(values[n_free:], 1)]
    return [*values[:n_free], *slow]


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
    if n_left / (1.0 + gained[-1] / n_requests) >= most > 1.0:  # the same for every window
        part = 1.0 - 1.0 / most
        for i, rows in enumerate(rows_at):
            values[i] += part * (invested + prices[rows] - steady[rows])
        return
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
    proposer: str,
    requests: Sequence[FollowedRequest],
    market: Market,
    account: Account,
    vouched: bool,
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
        stake = max(stake, account.vouched(requests[0].view.seq_id, proposer, first))
    return sum(allowances) + min(stake, max(0.0, first - sum(allowances)))


def rates_of(
    proposer: str, request: FollowedRequest, survival: Survival, longest: int | None = None
) -> list[float]:
    """P(token j accepted | those before it were), by position, for a draft model in this text."""
    view = request.view
    most = view.max_window if longest is None else min(view.max_window, longest)
    odds = survival.of(proposer, view.greedy, view.thinking).by_position.odds
    difficulty = request.difficulty(proposer, by_position=True).factor
    return position_rates(odds[: min(most, MAX_POSITIONS)], difficulty)

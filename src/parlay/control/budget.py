"""One budget of rows: which tokens of which answers are drafted and verified in the coming pass.

Three ideas, for one answer and for many:

1. *Chances.* A token that could be drafted holds if all up to it do: rates by how sure its proposer
   was, times how hard its text is (`rates.py`).
2. *Speed.* A pass costs by its rows, whoever they belong to. Of all bets the one with most expected
   tokens a second is made, if it is faster than a plain pass: tokens are taken in the order of
   their chances, as many as make most of (answers + chances) / (pass + drafting + host).
3. *A veto.* Every pass is booked, won or lost, in plain passes; a bet is made only if its worst
   case can be borne (`purse.py`).

Knows numbers only: neither tokens nor models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any, Literal

from parlay.control.choice import Choice, Choices, Confidences, View, imposed, plain
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.purse import Bank, Pool, Purse
from parlay.control.rates import BLIND, Hardness, Rates, cells_of
from parlay.decoding.draft import Draft
from parlay.decoding.round import Fallback, Round

Promise = Literal["sum", "each"]

MARGIN, UNSTABLE = 0.02, 0.10  # of a plain pass that a bet has to save; by prices of a busy machine
CHANGE = 0.5  # part of a change of shape that one bet has to pay: the next one is often as wide
READING, MANY = 8.0, 16.0  # tokens of a draft model's rounds, and rounds, that pay for its reading
SAVES = 0.7  # passes that a token saves which a vetoed draft had right, on average
EXCESS = 1.5  # times what it should: a pass that took longer was not made longer by its bet
WIDEST, LONGEST = 64, 16  # tokens of a free draft, and of a model's
DEPTHS = (1, 4, 16)  # of a model's drafts for several answers, that are weighed before it begins
SPAN = 8  # rows that may make up for a step in the prices
# Searching: passes that one in vain may take, of all time, at once, and where a bet may come of it.
CHEAP, SEARCH, VAIN, HOPE = 0.01, 0.004, 0.2, 2.5
REPEATS = 0.8  # the chance of each token in a text that is thought to repeat itself
ROOM = 0.25  # of what a token saves, if its answer is ahead and others have long to go
HOPEFUL = 0.7  # of late drafts were right: two in a row from nothing
SAMPLED = " sampled"  # the rates of a proposer where texts are drawn at random


@dataclass(slots=True)
class Text:
    """One answer in a slot."""

    answer: int
    purse: Purse
    hardness: dict[tuple[str, bool], Hardness] = field(default_factory=dict)
    hope: float = 0.0  # how often of late free drafts were right, bet on or not
    waits: int = 0  # passes since it was searched for
    vetoed: tuple[str, float] | None = None  # whose draft, and the passes that it would lose

    def hard(self, who: str, blind: bool = False) -> Hardness:
        found = self.hardness.get((who, blind))
        if found is None:
            found = self.hardness[who, blind] = Hardness()
        return found


@dataclass(slots=True)
class Bet:
    """Drafts that could be made for a pass: whose, with which chances, in what time.

    A unit is a token more for everybody where all have as many rows, else one of anybody's.
    """

    who: list[str]  # by answer; empty: nobody's
    alive: list[list[float]]  # that all tokens up to each are right
    gained: list[float]  # tokens expected to hold, by units
    users: frozenset[int] = frozenset()  # answers that a draft model drafts for
    cost: DrafterCost | None = None
    depth: int = 0  # tokens that it is expected to draft for each of several
    draft_s: Sequence[float] = ()  # before the pass, by units
    undo_s: Sequence[float] = ()  # taking it back, on average
    invested_s: float = 0.0  # reading the text, which pays for itself
    rounds: float = 1.0  # in so many rounds
    units: int = 0  # that are taken
    widest: int = 0  # tokens that the model may draft
    speed: float = 0.0  # tokens a second
    worst: float = 0.0  # plain passes that it may lose
    lost: float = 0.0  # that it would lose, if it is vetoed, by its own rows and drafting

    def sizes(self, equal: bool, units: int | None = None) -> list[int]:
        """Tokens of each answer."""
        units = self.units if units is None else units
        if equal or len(self.alive) == 1:
            return [min(units, len(each)) for each in self.alive]
        order = sorted([(-c, i) for i, each in enumerate(self.alive) for c in each])
        sizes = [0] * len(self.alive)
        for _, i in order[:units]:
            sizes[i] += 1
        return sizes


@dataclass(slots=True)
class Pass:
    """The coming pass, or one that is not yet observed: its answers, its prices and its bet."""

    ids: list[tuple[int, int]]  # slots and answers
    n: int  # sequences, those in gaps of the ids included
    equal: bool  # all have as many rows
    floor: int  # rows of each at least
    curve: Curve
    last_rows: int  # of the pass before it; 0: it had another shape whatever this one has
    settles: bool  # whether that one was the first of its shape
    excused: float  # seconds of changes of shape that no bet made
    odd: bool  # its price is not that of its shape: something else was computed before it
    steady: Sequence[float] = ()  # seconds by rows,
    full: Sequence[float] = ()  # with the change of shape and settling,
    paid: Sequence[float] = ()  # and with the part of it that one bet has to pay
    widths: Sequence[int] = ()  # rows that a lone answer's pass is padded to
    saved: Sequence[float] = ()  # tokens that it is worth that so many answers are one ahead
    most_units: int = 0
    back_s: float = 0.0  # to change to a plain pass again
    plain_s: float = 1.0
    plain_speed: float = 1.0  # tokens a second
    host_s: float = 0.0  # outside the pass and drafting
    pending: float = 0.0  # passes that the one before it may have lost
    offers: list[Mapping[str, Draft]] = field(default_factory=list)
    who: list[str] = field(default_factory=list)
    was_searched: list[bool] = field(default_factory=list)
    bet: Bet | None = None
    vetoed: Bet | None = None  # the fastest that could not be borne,
    missed: float = 0.0  # and its speed
    shaped: bool = False  # whether it is known which shape it had

    def price(self, most: int, pads: bool, n_answers: int) -> None:
        """Seconds by rows, as far as drafts of `most` tokens reach."""
        each = self.n if self.equal else 1
        widest = (1 + most) * (self.n if self.equal else n_answers)
        top = max(self.n * self.floor, min(widest + self.n - n_answers, MAX_ROWS))
        self.most_units = max(0, (top - self.n) // each)
        curve, last = self.curve, self.last_rows
        self.steady = self.full = self.paid = curve.steady
        plain_rows = self.n * self.floor
        if curve.prices_change:
            steady = curve.steady[: top + 1]
            self.full = [s + curve.settling_s for s in curve.changed[: top + 1]]
            if last <= top:
                self.full[last] = steady[last]
            pairs = zip(steady, self.full, strict=True)
            self.paid = [s + CHANGE * (f - s) for s, f in pairs]
            self.back_s = curve.changed[plain_rows] - steady[plain_rows] + curve.settling_s
        self.plain_s = curve.steady[plain_rows]
        if pads:  # rows that nobody reads, where the pass is cheaper with them
            self.widths = widths = list(range(top + 1))
            for rows in range(top - 1, 1, -1):
                if self.paid[widths[rows + 1]] < self.paid[rows]:
                    widths[rows] = widths[rows + 1]
        self.plain_speed = n_answers / (self.paid[plain_rows] + self.host_s)

    def worth(self, tokens: float) -> float:
        """What it is worth that so many of several answers are a token ahead."""
        if not self.saved:
            return tokens
        low = min(int(tokens), len(self.saved) - 2)
        return self.saved[low] + (tokens - low) * (self.saved[low + 1] - self.saved[low])

    def rows(self, units: int) -> int:
        """Of a pass with so many units drafted."""
        if self.equal:
            return self.n * max(self.floor, 1 + units)
        rows = max(self.n * self.floor, self.n + units)
        return self.widths[rows] if units and self.widths else rows

    def width(self, rows: int) -> int:
        """Rows that a lone answer's pass of so many is padded to."""
        return self.widths[rows] if 1 < rows < len(self.widths) else rows

    def rows_of(self, drafted: Sequence[int]) -> int:
        """Of a pass with so many tokens drafted for each."""
        return min(MAX_ROWS, self.rows(max(drafted) if self.equal else sum(drafted)))

    def worst_s(self, units: int) -> float:
        """Seconds that are lost if nothing drafted holds and the shape has to change back."""
        rows = self.rows(units)
        extra_s = self.full[rows] - min(self.excused, self.full[rows] - self.steady[rows])
        return max(0.0, extra_s - self.plain_s) + self.back_s

    def slope(self, units: int) -> float:
        """Seconds of one more row, at best of the next few."""
        t, r = self.paid, self.rows(units)
        return max(
            0.0,
            min(
                [(t[b] - t[r]) / (b - r) for b in range(r + 1, r + 1 + SPAN) if b < len(t)],
                default=0.0,
            ),
        )


class BudgetController:
    """See the module."""

    def __init__(
        self,
        costs: CostTable,
        kept: Mapping[str, Any] | None = None,
        *,
        cutting: Cutting = APART,
        promise: Promise = "sum",
    ) -> None:
        kept = kept or {}
        self.costs, self.cutting, self.promise = costs, cutting, promise
        self.bank, self.pool = Bank(float(kept.get("saved", Bank().saved))), Pool()
        self.rates = {who: Rates(each) for who, each in kept.get("rates", {}).items()}
        self.texts: dict[int, Text] = {}  # by slot
        self.ids: list[tuple[int, int]] = []  # of the last pass
        self.shape, self.settles = (0, 0), False  # its sequences and rows; whether it was new
        self.excused = 0.0
        self.passes: deque[Pass] = deque(maxlen=4)  # chosen for, not yet observed
        self.turn, self.depth = 0, DEPTHS[1]
        self.search_s = self.vain_s = self.hoped_s = self.host_s = 0.0
        self.needs = 0.0

    def kept(self) -> dict[str, Any]:
        """What is worth keeping between runs, per pair of models."""
        rates = {who: [each.right, each.n] for who, each in self.rates.items()}
        return {"saved": self.bank.saved, "rates": rates}

    # -- choosing ---------------------------------------------------------------------------------

    def choose(self, views: Sequence[View]) -> Choices:
        """The bet with most tokens a second, if it saves time and can be borne."""
        texts = [self._text(view) for view in views]
        given = [imposed(view) for view in views]
        free_to = [i for i, choice in enumerate(given) if choice is None]
        most = max([min(WIDEST, views[i].max_window) for i in free_to], default=0)
        now = self._begin(views, most)
        best: Bet | None = None
        if most:
            best = self._best(self._free_bets(views, texts, free_to, now), now, texts, None)
            best = self._best(self._model_bets(views, texts, free_to, now, best), now, texts, best)
        now.bet = best
        self.passes.append(now)
        choices = [choice or plain(Fallback.UNPROFITABLE) for choice in given]
        if best is not None:
            sizes = best.sizes(now.equal)
            for i in free_to:
                n = best.widest if i in best.users else sizes[i]
                if best.who[i] and (n := min(n, views[i].max_window)):
                    gain = best.speed * (now.plain_s + now.host_s) / len(views)
                    choices[i] = Choice(best.who[i], n, expected_gain=gain)
        for i, search in enumerate(self._searches(views, texts, now)):
            if not search and choices[i].search:
                choices[i] = replace(choices[i], search=False)
        if best is None or not best.users:
            return Choices(choices, width=now.width)
        going = partial(self._going, now, texts, best)
        return Choices(choices, going, partial(self._verified, now, texts, best), now.width)

    def _text(self, view: View) -> Text:
        """The answer in a slot; a new one has a purse, and what the last one left is saved."""
        text = self.texts.get(view.seq_id)
        if text is None or text.answer != view.answer:
            if text is not None:
                self.bank.close(text.purse)
            text = self.texts[view.seq_id] = Text(view.answer, self.bank.open(view.n_remaining))
        return text

    def _begin(self, views: Sequence[View], most: int) -> Pass:
        """Prices of the coming pass. Where the batch changes, so does its shape: plain decoding
        pays for that, too."""
        pending = self._resolve(views)
        ids = [(view.seq_id, view.answer) for view in views]
        slots = [view.seq_id for view in views]
        gaps = not self.cutting.unified and not self.cutting.recurrent
        n = max(slots) - min(slots) + 1 if gaps else len(slots)
        n_context = max([view.n_context for view in views])
        curve = self.costs.curve(n_context, n)
        odd = ids != self.ids or views[0].shape_is_new
        if odd:
            self.ids, self.shape, self.settles = ids, (0, 0), False
            self.excused = curve.changed[n] - curve.steady[n] + curve.settling_s
        last = self.shape[1] if self.shape[0] == n else 0
        equal = len(views) > 1 and views[0].equal
        floor = max([view.floor for view in views])
        now = Pass(ids, n, equal, floor, curve, last, self.settles, self.excused, odd)
        now.offers = [view.offers for view in views]
        now.who = [{True: "", False: SAMPLED}[view.greedy] for view in views]
        now.was_searched = [view.searched and bool(view.proposers) for view in views]
        now.pending, now.host_s = pending, self.host_s
        now.price(most, len(views) == 1 and views[0].pads, len(views))
        if len(views) > 1 and not views[0].crowded:
            now.saved = self._saved(n_context, len(views), now)
        return now

    def _saved(self, n_context: int, n: int, now: Pass) -> list[float]:
        """Whoever is ahead ends sooner and leaves a smaller pass to the others. If nobody waits for
        the slot, that saves what the pass is cheaper then, and not a part of it for each token."""
        curves = [self.costs.curve(n_context, k) for k in range(1, n)]
        plain_s = [0.0, *(c.steady[k * now.floor] for k, c in enumerate(curves, 1)), now.plain_s]
        each = n / now.plain_s
        return [
            ROOM * m + (1.0 - ROOM) * each * max(0.0, now.plain_s - plain_s[n - m])
            for m in range(n + 1)
        ]

    def _resolve(self, views: Sequence[View]) -> float:
        """What the last pass may have lost, in plain passes, while it is not yet observed; its
        shape is that of the tokens it verified."""
        if not self.passes:
            return 0.0
        last, held = self.passes[-1], {v.seq_id: v.held for v in views if v.held is not None}
        drafted = [held[s].n_drafted if s in held else 0 for s, _ in last.ids]
        accepted = [held[s].n_accepted if s in held else 0 for s, _ in last.ids]
        rows, undone = last.rows_of(drafted), sum(map(self._is_paid, drafted, accepted))
        self._shaped(last, rows, undone > 0)
        if (bet := last.bet) is None:
            return 0.0
        spent_s = bet.draft_s[bet.widest or bet.units] if len(last.ids) == 1 else bet.draft_s[-1]
        spent_s += bet.invested_s + undone * self.costs.undoing.seconds
        spent_s += last.full[rows] - min(last.excused, last.full[rows] - last.steady[rows])
        return max(0.0, spent_s / last.plain_s - 1.0 - sum(accepted) / len(last.ids))

    def _is_paid(self, n_drafted: int, n_accepted: int) -> bool:
        undoing = self.costs.undoing
        return undoing.seconds > 0.0 and undoing.is_paid(n_drafted, n_accepted)

    def _shaped(self, made: Pass, rows: int, undone: bool) -> None:
        """A pass was made, of so many rows."""
        if made.shaped:
            return
        made.shaped, changed = True, rows != made.last_rows
        extra_s = made.curve.changed[rows] - made.curve.steady[rows] if changed else 0.0
        if made.settles and not changed:
            extra_s = made.curve.settling_s
        self.excused = max(0.0, self.excused - extra_s)
        self.shape, self.settles = ((0, 0), False) if undone else ((made.n, rows), changed)

    def _free_bets(
        self, views: Sequence[View], texts: Sequence[Text], free_to: Sequence[int], now: Pass
    ) -> Iterator[Bet]:
        """What free proposers offer: to a lone answer any of them, to several each one's best."""
        found: dict[int, list[tuple[str, list[float]]]] = {}
        for i in free_to:
            for who, offer in views[i].offers.items():
                sure = offer.confidence[: min(WIDEST, views[i].max_window)]
                if sure and who in views[i].proposers:
                    rates = self._rates(who + now.who[i])
                    if alive := rates.chances(sure, texts[i].hard(who)):
                        found.setdefault(i, []).append((who, alive))
        if len(views) == 1:
            for who, alive in found.get(0, ()):
                yield self._bet([who], [alive], now)
        elif found:
            chosen = [max(found.get(i, [("", [])]), key=_hopes) for i in range(len(views))]
            yield self._bet([who for who, _ in chosen], [alive for _, alive in chosen], now)

    def _bet(self, who: list[str], alive: list[list[float]], now: Pass) -> Bet:
        if len(alive) == 1:
            gains = list(alive[0])
        elif now.equal:
            gains = [now.worth(sum(column)) for column in zip_longest(*alive, fillvalue=0.0)]
        else:
            gains, said = [], [0.0] * max(map(len, alive))
            for chance, at in sorted([(c, at) for each in alive for at, c in enumerate(each)])[
                ::-1
            ]:
                gains.append(now.worth(said[at] + chance) - now.worth(said[at]))
                said[at] += chance
        del gains[now.most_units :]
        bet = Bet(who, alive, list(accumulate(gains, initial=0.0)))
        bet.draft_s = bet.undo_s = [0.0] * len(bet.gained)
        if self.costs.undoing.seconds:
            bet.undo_s = self._undo_s(alive, len(bet.gained))
        return bet

    def _undo_s(self, alive: Sequence[Sequence[float]], n_units: int) -> list[float]:
        """Taking drafts back, on average, by the tokens of each."""
        undoing, found = self.costs.undoing, [0.0]
        for units in range(1, n_units):
            lengths = [min(units, len(each)) for each in alive]
            holds = [undoing.must_hold(n) for n in lengths]
            lost = sum([1.0 - each[h - 1] for each, h in zip(alive, holds, strict=True) if h])
            found.append(lost * undoing.seconds)
        return found

    def _model_bets(
        self,
        views: Sequence[View],
        texts: Sequence[Text],
        free_to: Sequence[int],
        now: Pass,
        free: Bet | None,
    ) -> Iterator[Bet]:
        """Draft models: for a lone answer every depth is weighed, for several two a round, the
        last best one and another in turn; there a model drafts for those to whom that is worth more
        than what is free."""
        alone = len(views) == 1
        for model in dict.fromkeys(who for i in free_to for who in views[i].models):
            cost = self.costs.cost_of(model)
            if cost is None:
                continue
            longest = min(LONGEST, cost.longest or LONGEST)
            blind = {}
            for i in free_to:
                if model in views[i].models:
                    rates, hard = self._rates(model + now.who[i]), texts[i].hard(model, True)
                    blind[i] = rates.blind(min(longest, views[i].max_window), hard)
            if not alone:
                blind = self._for_whom(blind, now, free, cost)
            if not any(blind.values()):
                continue
            self.turn += 1
            turns = [longest] if alone else {self.depth, DEPTHS[self.turn % len(DEPTHS)]}
            for depth in turns:
                yield self._model_bet(model, cost, blind, depth, views, now, free)

    def _for_whom(
        self, blind: Mapping[int, list[float]], now: Pass, free: Bet | None, cost: DrafterCost
    ) -> dict[int, list[float]]:
        """Whom a draft of the model is expected to bring more than what is free."""
        speed, units = (free.speed, free.units) if free else (now.plain_speed, 0)
        row = speed * now.slope(units)
        share = row + speed * cost.step_s(len(now.ids)) / len(now.ids)
        found = {}
        for i, alive in blind.items():
            own = sum([c - row for c in free.alive[i] if c > row]) if free else 0.0
            if not own or sum([c - share for c in alive if c > share]) > own:
                found[i] = alive
        return found

    def _model_bet(
        self,
        model: str,
        cost: DrafterCost,
        blind: Mapping[int, list[float]],
        depth: int,
        views: Sequence[View],
        now: Pass,
        free: Bet | None,
    ) -> Bet:
        n, m = len(views), len(blind)
        who = [model if i in blind else free.who[i] if free else "" for i in range(n)]
        left = [free.alive[i] if free else [] for i in range(n)]
        bet = self._bet(who, [blind[i][:depth] if i in blind else left[i] for i in range(n)], now)
        bet.users, bet.cost, bet.depth = frozenset(blind), cost, depth
        ready = min([views[i].ready.get(model, 0) for i in blind])
        unread = sum([views[i].unread.get(model, 1) for i in blind])
        first_s = 0.0 if ready else cost.catch_up_s(m, m)
        step_s, n_units = cost.step_s(m), len(bet.gained)
        steps = [max(0, (k if n == 1 else depth) - max(1, ready)) for k in range(1, n_units)]
        bet.draft_s = [0.0] + [first_s + step_s * each for each in steps]
        bet.invested_s = 0.0 if ready else max(0.0, cost.catch_up_s(unread, m) - first_s)
        rest = min([views[i].n_remaining for i in blind]) / READING
        bet.rounds = max(1.0, min(MANY, rest))
        return bet

    def _best(
        self, bets: Iterator[Bet], now: Pass, texts: Sequence[Text], best: Bet | None
    ) -> Bet | None:
        """The fastest bet that can be borne, if it is faster than a plain pass."""
        least = now.plain_speed * (1.0 + (MARGIN if self.costs.stable else UNSTABLE))
        speed = least if best is None else best.speed
        missed = max(least, now.missed)
        n = len(now.ids)
        for bet in bets:
            more_s = now.host_s + bet.invested_s / bet.rounds
            for k in range(1, len(bet.gained)):
                seconds = now.paid[now.rows(k)] + bet.draft_s[k] + bet.undo_s[k] + more_s
                found = (n + bet.gained[k]) / seconds
                if found <= speed and found <= missed:
                    continue
                worst = self._worst(bet, k, now)
                if self._bears(worst, now, texts):
                    if found > speed:
                        best, speed = bet, found
                        bet.units, bet.speed, bet.worst = k, found, worst
                elif found > missed:
                    missed = now.missed = found
                    now.vetoed = bet
                    extra_s = now.paid[now.rows(k)] - now.paid[now.rows(0)] + bet.draft_s[k]
                    bet.lost, bet.worst = extra_s / now.plain_s, worst
        if best is not None and best.users and not best.widest:
            best.widest = best.units
            if n > 1:
                self.depth, best.widest = best.depth, LONGEST
            else:
                wider = range(best.units + 1, len(best.gained))
                can = [k for k in wider if self._bears(self._worst(best, k, now), now, texts)]
                best.widest = max(can, default=best.units)
                best.worst = self._worst(best, best.widest, now)
        return best

    def _worst(self, bet: Bet, k: int, now: Pass) -> float:
        """Plain passes that are lost if all of it is wrong and the shape has to change back."""
        seconds = now.worst_s(k) + bet.draft_s[k] + bet.invested_s
        if self.costs.undoing.seconds:
            seconds += sum([self.costs.undoing.worst_s(n) for n in bet.sizes(now.equal, k)])
        return seconds / (now.plain_s + now.host_s)

    def _bears(self, worst: float, now: Pass, texts: Sequence[Text]) -> bool:
        """A lone answer, or each one if that is promised, bears it by its own purse; else all
        together do, and each within its wide guard."""
        worst_of_two = worst + now.pending
        if len(texts) == 1 or self.promise == "each":
            return all(text.purse.left(worst) >= worst_of_two for text in texts)
        if self.pool.left(worst, [text.purse for text in texts]) < worst_of_two:
            return False
        return all(text.purse.guard >= worst_of_two for text in texts)

    # -- while a model drafts ---------------------------------------------------------------------

    def _known(self, now: Pass, texts: Sequence[Text], bet: Bet, drafted: Confidences) -> None:
        """The chances of what is drafted by now."""
        for i, (slot, _) in enumerate(now.ids):
            if i in bet.users and slot in drafted:
                sure, hard = drafted[slot][: bet.widest], texts[i].hard(bet.who[i])
                alive = self._rates(bet.who[i] + now.who[i]).chances(sure, hard)
                bet.alive[i] = alive + [0.0] * (len(sure) - len(alive))

    def _going(
        self, now: Pass, texts: Sequence[Text], bet: Bet, drafted: Confidences
    ) -> Collection[int]:
        """For whom the model drafts another token."""
        assert bet.cost is not None
        self._known(now, texts, bet, drafted)
        places = {slot: i for i, (slot, _) in enumerate(now.ids)}
        going = {slot for slot in drafted if places.get(slot, -1) not in bet.users}
        asked = [places[slot] for slot in drafted if slot not in going]
        if len(now.ids) == 1:
            return going | {now.ids[0][0] for i in asked if self._goes_on(now, texts[i], bet)}
        row, speed = bet.speed * now.slope(bet.units), bet.speed
        hope = []
        for i in asked:
            alive, rates = bet.alive[i], self._rates(bet.who[i] + now.who[i])
            if len(alive) < bet.widest:
                blind = texts[i].hard(bet.who[i], True).of(rates.right[BLIND])
                hope.append(((alive[-1] if alive else 1.0) * blind - row, i))
        hope.sort(reverse=True)
        m, step_s = len(hope), bet.cost.step_s  # the last in line is worth what it adds to the step
        while m > 1 and hope[m - 1][0] < speed * (step_s(m) - step_s(m - 1)):
            m -= 1
        if not m or sum([value for value, _ in hope[:m]]) <= speed * step_s(m):
            return going
        n_steps = max([len(bet.alive[i]) for i in asked])
        spent_s = bet.draft_s[1] + max(0, n_steps + 1 - bet.depth) * step_s(m)
        if not self._bears((spent_s + bet.invested_s + now.back_s) / now.plain_s, now, texts):
            return going
        return going | {now.ids[i][0] for _, i in hope[:m]}

    def _goes_on(self, now: Pass, text: Text, bet: Bet) -> bool:
        """Whether any longer draft is expected to be worth more than what there is."""
        assert bet.cost is not None
        alive, step_s = bet.alive[0], bet.cost.step_s()
        blind = text.hard(bet.who[0], True).of(self._rates(bet.who[0] + now.who[0]).right[BLIND])
        chances, n = list(alive), len(alive)
        while len(chances) < bet.widest:
            chances.append(chances[-1] * blind)
        gained = accumulate(chances, initial=0.0)
        undo_s = self._undo_s([chances], len(chances) + 1) if self.costs.undoing.seconds else None
        values = []
        for k, tokens in enumerate(gained):
            value = tokens / bet.speed - now.paid[now.rows(k)] - (undo_s[k] if undo_s else 0.0)
            values.append(value - max(0, k - n) * step_s)
        return max(values[: n + 1]) < max(values[n + 1 :], default=float("-inf"))

    def _verified(
        self, now: Pass, texts: Sequence[Text], bet: Bet, drafted: Confidences
    ) -> Mapping[int, int]:
        """How much of each draft goes into the pass, now that it is known how sure the model is."""
        self._known(now, texts, bet, drafted)
        assert bet.cost is not None
        steps = max([len(each) for each in drafted.values()])
        found = self._bet(bet.who, bet.alive, now)
        planned = bet.depth if len(now.ids) > 1 else 1
        spent_s = bet.draft_s[1] + max(0, steps - planned) * bet.cost.step_s(len(bet.users))
        best, speed = 0, len(now.ids) / (now.paid[now.rows(0)] + spent_s + now.host_s)
        for k in range(1, len(found.gained)):
            seconds = now.paid[now.rows(k)] + spent_s + found.undo_s[k] + now.host_s
            tokens = len(now.ids) + found.gained[k]
            if tokens >= speed * seconds and (
                len(now.ids) == 1
                or self._bears((now.worst_s(k) + spent_s) / now.plain_s, now, texts)
            ):
                best, speed = k, tokens / seconds
        sizes = found.sizes(now.equal, best)
        whole = {slot: len(each) for slot, each in drafted.items()}
        return {
            **whole,
            **{s: sizes[i] for i, (s, _) in enumerate(now.ids) if i in bet.users and s in whole},
        }

    # -- searching --------------------------------------------------------------------------------

    def _searches(self, views: Sequence[View], texts: Sequence[Text], now: Pass) -> Sequence[bool]:
        """For whom free proposers are asked before the next pass. A search is a small bet: it is
        made while those in vain have taken little of late; of texts that seem to repeat themselves
        more, if drafts of all of them would make up for it."""
        n, each_s = len(texts), self.search_s
        if n * each_s <= CHEAP * now.plain_s:
            return [True] * n
        for text, view in zip(texts, views, strict=True):
            text.waits = 0 if view.searched else text.waits + 1
        hopeful = [i for i, text in enumerate(texts) if text.hope >= HOPEFUL]
        found = [False] * n
        search_s = len(hopeful) * each_s
        affords = self.hoped_s + search_s <= HOPE * VAIN * now.plain_s
        if hopeful and affords and self._bears(self.needs, now, texts):
            likely = [REPEATS**k for k in range(1, 1 + now.most_units)]
            bet = self._bet([""] * n, [likely if i in hopeful else [] for i in range(n)], now)
            best = max(
                (n + gained) / (now.paid[now.rows(k)] + search_s + now.host_s)
                for k, gained in enumerate(bet.gained)
            )
            if best > now.plain_speed * (1.0 + MARGIN):
                for i in hopeful:
                    found[i] = True
        left_s = VAIN * now.plain_s - self.vain_s
        for i in sorted(range(n), key=lambda i: -texts[i].waits):
            if not found[i] and left_s >= each_s:
                found[i], left_s = True, left_s - each_s
        return found

    def _observe_search(self, made: Pass, rounds: Sequence[Round]) -> None:
        timing, bet = rounds[0].timing, any(r.n_drafted + r.n_dropped for r in rounds)
        back_s, n = SEARCH * timing.total_s, sum(made.was_searched)
        if bet:  # what a bet won is worth as much searching
            n_ahead = sum([r.n_generated - 1 for r in rounds])
            back_s += max(0.0, made.plain_s * (1 + n_ahead / len(rounds)) - timing.total_s)
            self.needs = 0.0
        self.vain_s = max(0.0, self.vain_s - back_s)
        self.hoped_s = max(0.0, self.hoped_s - back_s)
        if n and not bet:
            each_s = timing.draft_s / n
            self.search_s += (each_s - self.search_s) * (0.25 if self.search_s else 1.0)
            texts = [self.texts[r.seq_id] for r in rounds]
            n_hopeful = sum(
                w and t.hope >= HOPEFUL for w, t in zip(made.was_searched, texts, strict=True)
            )
            self.hoped_s += n_hopeful * each_s
            self.vain_s += (n - n_hopeful) * each_s
            self.needs = 0.0 if made.vetoed is None else made.vetoed.worst
        for r in rounds:
            if (text := self.texts.get(r.seq_id)) is not None and r.agreed:
                text.hope += 0.5 * (any(r.agreed.values()) - text.hope)

    # -- learning ---------------------------------------------------------------------------------

    def observe(self, rounds: Sequence[Round]) -> None:
        """Book what the pass won or lost, and learn its price and what came of drafts."""
        ids = [(r.seq_id, r.answer) for r in rounds]
        while self.passes and self.passes[0].ids != ids:
            self.passes.popleft()  # it failed, and was made again in another way
        if not self.passes:
            return
        made = self.passes.popleft()
        drafted, accepted = [r.n_drafted for r in rounds], [r.n_accepted for r in rounds]
        undone = sum(map(self._is_paid, drafted, accepted))
        self._shaped(made, min(rounds[0].n_pass_rows, MAX_ROWS), undone > 0)
        self._observe_time(made, rounds, undone)
        self._observe_search(made, rounds)
        for i, r in enumerate(rounds):
            text = self.texts.get(r.seq_id)
            if text is not None and text.answer == r.answer:
                self._learn(made, i, r, text)

    def _observe_time(self, made: Pass, rounds: Sequence[Round], undone: int) -> None:
        first, curve, pace = rounds[0], made.curve, self.costs.pace
        timing, rows = first.timing, first.n_pass_rows
        betting = any(r.n_drafted + r.n_dropped for r in rounds)
        whole = rows <= MAX_ROWS and (not made.equal or rows % made.n == 0)
        changed = rows != made.last_rows
        settling = made.settles and not changed
        expected = timing.verify_s / pace
        if whole:
            expected = curve.of(rows, changed) + settling * curve.settling_s
        n_context = max([r.n_context for r in rounds])
        undo_s, steady = undone * self.costs.undoing.seconds, not changed and not settling
        seconds = made.plain_s + made.host_s
        if betting or not steady:
            # Noise and others' work are no bet's loss; what drafting took is.
            seconds = min(
                (timing.verify_s + timing.overhead_s) / pace,
                EXCESS * (expected + undo_s + made.host_s),
            )
            if first.reads_prompt:
                seconds = expected + undo_s + made.host_s
            if betting:
                seconds += timing.draft_s / pace
            if whole:
                seconds -= min(
                    made.excused,
                    max(0.0, seconds - curve.steady[rows]),
                    curve.changed[rows] - curve.steady[rows] if changed else curve.settling_s,
                )
        self._book(made, rounds, seconds / (made.plain_s + made.host_s))
        if first.reads_prompt or not whole:
            return
        host_s = max(0.0, timing.overhead_s / pace - undo_s)
        if undone:
            self.costs.undoing = self.costs.undoing.after(
                (timing.overhead_s / pace - made.host_s) / undone
            )
        else:
            self.host_s += 0.1 * (host_s - self.host_s)
        if made.odd:
            return
        if settling:
            self.costs.observe_settling(rows, n_context, made.n, timing.verify_s)
        else:
            self.costs.observe(rows, n_context, made.n, changed, timing.verify_s)

    def _book(self, made: Pass, rounds: Sequence[Round], passes: float) -> None:
        """It took so many plain passes."""
        alone = len(rounds) == 1 or self.promise == "each"
        for r in rounds:
            text = self.texts.get(r.seq_id)
            if text is not None and text.answer == r.answer:
                text.purse.n += r.n_generated
                text.purse.waited += r.n_generated - passes
                if alone:
                    text.purse.net += r.n_generated - passes
        if not alone:
            ahead = [sum([r.n_generated > k for r in rounds]) for k in range(1, WIDEST)]
            self.pool.book(1.0 + sum([made.worth(m) for m in ahead if m]) / len(rounds) - passes)

    def _learn(self, made: Pass, i: int, r: Round, text: Text) -> None:
        """What came of offers, taken or not, tells how hard a text is; rates are those of bets."""
        kind = made.who[i]
        if made.was_searched[i]:  # what was vetoed then is followed until the next search
            vetoed = made.vetoed
            text.vetoed = (vetoed.who[i], vetoed.lost) if vetoed is not None else None
        if text.vetoed is not None and text.vetoed[0] in r.agreed:
            passes = SAVES if r.agreed[text.vetoed[0]] else -text.vetoed[1]
            text.purse.miss(passes)
        for who, n_right in r.agreed.items():
            offer = made.offers[i].get(who)
            if offer is not None:
                tried = cells_of(offer.confidence[: r.n_generated])
                text.hard(who).see(self._rates(who + kind), tried, n_right)
        if not r.n_drafted or len(r.confidence) < r.n_drafted:
            return
        rates, tried = self._rates(r.proposer + kind), cells_of(r.confidence)
        hard = text.hard(r.proposer)
        if r.proposer not in r.agreed:
            hard.see(rates, tried, r.n_accepted)
            blind, unsure = [BLIND] * r.n_drafted, text.hard(r.proposer, True)
            unsure.see(rates, blind, r.n_accepted)
            rates.see(blind, r.n_accepted, unsure)
        rates.see(tried, r.n_accepted, hard)

    def _rates(self, who: str) -> Rates:
        found = self.rates.get(who)
        if found is None:
            found = self.rates[who] = Rates()
        return found


def _hopes(offer: tuple[str, list[float]]) -> float:
    return sum(offer[1])

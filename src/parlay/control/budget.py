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
from dataclasses import replace
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any, Literal

from parlay.control.choice import Choice, Choices, Confidences, View, imposed, plain
from parlay.control.coming import Bet, Pass, Text
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.purse import Bank, Pool
from parlay.control.rates import BLIND, Rates, cells_of
from parlay.control.searching import Searching
from parlay.decoding.draft import JOINED
from parlay.decoding.round import Fallback, Round

Promise = Literal["sum", "each"]

MARGIN, UNSTABLE = 0.02, 0.10  # of a plain pass that a bet has to save; by prices of a busy machine
READING, MANY = 8.0, 16.0  # tokens of a draft model's rounds, and rounds, that pay for its reading
SAVES = 0.7  # passes that a token saves which a vetoed draft had right, on average
EXCESS = 1.5  # times what it should: a pass that took longer was not made longer by its bet
WIDEST, LONGEST = 64, 16  # tokens of a free draft, and of a model's
DEPTHS = (1, 4, 16)  # of a model's drafts for several answers, that are weighed before it begins
REPEATS = 0.8  # the chance of each token in a text that seems to repeat itself
HOST = 0.1  # what one pass moves of what the host is believed to take
SAMPLED = " sampled"  # the rates of a proposer where texts are drawn at random


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
        self.host_s = 0.0  # outside of passes and drafting
        self.searching = Searching()

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
        wakes = partial(self._wakes, now, texts)
        for i, search in enumerate(self.searching.due(views, texts, now, wakes)):
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
        now.kinds = ["" if view.greedy else SAMPLED for view in views]
        now.was_searched = [view.searched and bool(view.proposers) for view in views]
        now.pending, now.host_s = pending, self.host_s
        now.price(most, len(views) == 1 and views[0].pads, len(views))
        if len(views) > 1 and not views[0].crowded:
            now.saved = self._saved(n_context, len(views), now)
        return now

    def _saved(self, n_context: int, n: int, now: Pass) -> list[float]:
        """Tokens that plain passes make in the time that is saved if so many end sooner."""
        curves = [self.costs.curve(n_context, k) for k in range(1, n)]
        plain_s = [0.0, *(c.steady[k * now.floor] for k, c in enumerate(curves, 1)), now.plain_s]
        each = n / now.plain_s
        return [each * max(0.0, now.plain_s - left_s) for left_s in plain_s[::-1]]

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
        rows = min(rows, len(last.full) - 1)  # a window that a request asked for may be wider
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
                if sure:
                    rates = self._rates(who + now.kinds[i])
                    if alive := rates.chances(sure, texts[i].hard(who)):
                        found.setdefault(i, []).append((who, alive))
        if len(views) == 1:
            for who, alive in found.get(0, ()):
                yield self._bet([who], [alive], now)
        elif found:
            chosen = [max(found.get(i, [("", [])]), key=_hopes) for i in range(len(views))]
            yield self._bet([who for who, _ in chosen], [alive for _, alive in chosen], now)

    def _bet(self, who: list[str], alive: list[list[float]], now: Pass) -> Bet:
        order: list[tuple[float, int]] = []
        if now.equal:
            gains = [sum(column) for column in zip_longest(*alive, fillvalue=0.0)]
        else:
            order = [(chance, i) for i, each in enumerate(alive) for chance in each]
            order.sort(key=lambda token: -token[0])
            gains = [chance for chance, _ in order]
        del gains[now.most_units :]
        bet = Bet(who, alive, list(accumulate(gains, initial=0.0)), order)
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
                    rates, hard = self._rates(model + now.kinds[i]), texts[i].hard(model, True)
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
        bet.ready = ready = min([views[i].ready.get(model, 0) for i in blind])
        bet.unread = unread = sum([views[i].unread.get(model, 1) for i in blind])
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
                worth = now.worth(bet.ahead(now.equal, k)) if now.saved else bet.gained[k]
                found = (n + worth) / seconds
                if found <= speed and found <= missed:
                    continue
                worst = self._worst(bet, k, now)
                if self._bears(worst, now, texts):
                    if found > speed:
                        best, speed = bet, found
                        bet.units, bet.speed, bet.worst = k, found, worst
                        bet.part = worth / bet.gained[k]
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
                alive = self._rates(bet.who[i] + now.kinds[i]).chances(sure, hard)
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
            alive, rates = bet.alive[i], self._rates(bet.who[i] + now.kinds[i])
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
        if not alive:  # nobody says how sure it is
            return True
        blind = text.hard(bet.who[0], True).of(self._rates(bet.who[0] + now.kinds[0]).right[BLIND])
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
            if now.saved and tokens >= speed * seconds:
                tokens = len(now.ids) + now.worth(found.ahead(now.equal, k))
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

    def _wakes(
        self, now: Pass, texts: Sequence[Text], hopeful: Sequence[int], search_s: float
    ) -> bool:
        """Whether texts that seem to repeat themselves are worth so long a search: their drafts
        would make up for it, and could be borne."""
        if not self._bears(self.searching.needs, now, texts):
            return False
        n, likely = len(texts), [REPEATS**k for k in range(1, 1 + now.most_units)]
        bet = self._bet([""] * n, [likely if i in hopeful else [] for i in range(n)], now)
        paid = [now.paid[now.rows(k)] + search_s + now.host_s for k in range(len(bet.gained))]
        worth = [now.worth(bet.ahead(now.equal, k)) for k in range(len(bet.gained))]
        speeds = [(n + tokens) / s for tokens, s in zip(worth, paid, strict=True)]
        return max(speeds) > now.plain_speed * (1.0 + MARGIN)

    # -- learning ---------------------------------------------------------------------------------

    def observe(self, rounds: Sequence[Round]) -> None:
        """Book what the pass won or lost, and learn its price and what came of drafts."""
        told, n = {(r.seq_id, r.answer): r for r in rounds}, rounds[0].n_sequences
        while self.passes and not (
            told.keys() <= {*self.passes[0].ids} and n >= self.passes[0].size
        ):
            self.passes.popleft()  # it failed, and was made again in another way
        if not self.passes:  # nobody chose here for this one
            self.shape, self.settles = (0, 0), False
            return
        made = self.passes.popleft()
        places = [i for i, key in enumerate(made.ids) if key in told]
        rounds = [told[made.ids[i]] for i in places]
        undone = sum([self._is_paid(r.n_drafted, r.n_accepted) for r in rounds])
        self._shaped(made, min(rounds[0].n_pass_rows, MAX_ROWS), undone > 0)
        self._book(made, places, rounds, undone)
        self._learn_prices(made, places, rounds, undone)
        self.searching.observe(made, places, rounds, self.texts)
        for i, r in zip(places, rounds, strict=True):
            text = self.texts.get(r.seq_id)
            if text is not None and text.answer == r.answer:
                self._learn(made, i, r, text)

    def _book(
        self, made: Pass, places: Sequence[int], rounds: Sequence[Round], undone: int
    ) -> None:
        """What the pass took beyond a plain one is its bet's, and of the plain passes after it as
        far as the shape has to change back; noise and others' work are nobody's loss."""
        first, pace, timing = rounds[0], self.costs.pace, rounds[0].timing
        betting = any(r.n_drafted + r.n_dropped for r in rounds)
        if made.bet is None and betting:  # a request asked for that window
            return
        plain_s, rows = made.plain_s + made.host_s, min(first.n_pass_rows, MAX_ROWS)
        changed, seconds = rows != made.last_rows, made.plain_s + made.host_s
        settling = made.settles and not changed
        if betting or changed or settling:
            expected_s = self._expected_s(made, first) + made.host_s
            expected_s += undone * self.costs.undoing.seconds
            seconds = min((timing.verify_s + timing.overhead_s) / pace, EXCESS * expected_s)
            if first.reads_prompt:
                seconds = expected_s
            if betting:
                seconds += timing.draft_s / pace
            if changed or settling:  # as far as plain decoding would have paid it, too
                curve = made.curve
                more_s = curve.changed[rows] - curve.steady[rows] if changed else curve.settling_s
                seconds -= min(made.excused, more_s, max(0.0, seconds - curve.steady[rows]))
        passes = seconds / plain_s
        alone = len(rounds) == 1 or self.promise == "each"
        for r in rounds:
            text = self.texts.get(r.seq_id)
            if text is not None and text.answer == r.answer:
                won = r.n_generated - passes - r.outside_s / pace / plain_s
                text.purse.n += r.n_generated
                text.purse.waited += won
                text.purse.net += won if alone else 0.0
        if not alone:
            part = 1.0 if made.bet is None else made.bet.part
            n_ahead = sum([r.n_generated - 1 for r in rounds])
            self.pool.book(1.0 + part * n_ahead / len(rounds) - passes)

    def _is_whole(self, made: Pass, first: Round) -> bool:
        """Whether a pass has a price of its own: it was not cut in parts, nor read a prompt."""
        rows = first.n_pass_rows
        fits = rows <= MAX_ROWS and not (made.equal and rows % made.n)
        return fits and not first.reads_prompt

    def _expected_s(self, made: Pass, first: Round) -> float:
        """By the prices, or as long as it took where it has none."""
        rows = min(first.n_pass_rows, MAX_ROWS)
        if not self._is_whole(made, first) and not first.reads_prompt:
            return first.timing.verify_s / self.costs.pace
        changed = rows != made.last_rows
        settling_s = made.curve.settling_s if made.settles and not changed else 0.0
        return made.curve.of(rows, changed) + settling_s

    def _learn_prices(
        self, made: Pass, places: Sequence[int], rounds: Sequence[Round], undone: int
    ) -> None:
        """None of a pass that something else was in or before: it has another price."""
        first, costs, timing = rounds[0], self.costs, rounds[0].timing
        if not self._is_whole(made, first):
            return
        if undone and timing.overhead_s:
            taken_s = timing.overhead_s / costs.pace - made.host_s
            costs.undoing = costs.undoing.after(taken_s / undone)
        elif not undone:
            self.host_s += HOST * (timing.overhead_s / costs.pace - self.host_s)
        self._learn_drafting(made, places, rounds)
        if made.odd:
            return
        rows, n_context = first.n_pass_rows, max([r.n_context for r in rounds])
        changed = rows != made.last_rows
        if made.settles and not changed:
            costs.observe_settling(rows, n_context, made.n, timing.verify_s)
        else:
            costs.observe(
                rows, n_context, made.n, changed, timing.verify_s, n_plain=made.n * made.floor
            )

    def _learn_drafting(self, made: Pass, places: Sequence[int], rounds: Sequence[Round]) -> None:
        """What the draft model took: of one that drafted all of its tokens itself."""
        bet = made.bet
        if bet is None or bet.cost is None or bet.ready:
            return
        pairs = [(i, r) for i, r in zip(places, rounds, strict=True) if i in bet.users]
        made_by = [r.n_drafted + r.n_dropped for _, r in pairs]
        if not made_by or 0 in made_by or any(JOINED in r.proposer for r in rounds):
            return
        n_steps = [sum([n > k for n in made_by]) for k in range(1, max(made_by))]
        expected_s = bet.cost.catch_up_s(bet.unread, len(made_by))
        expected_s += sum([bet.cost.step_s(n) for n in n_steps])
        search_s = self.searching.each_s * sum(made.was_searched)
        bet.cost.observe(
            expected_s, max(0.0, rounds[0].timing.draft_s / self.costs.pace - search_s)
        )

    def _learn(self, made: Pass, i: int, r: Round, text: Text) -> None:
        """What came of offers, taken or not, tells how hard a text is; rates are those of bets."""
        kind = made.kinds[i]
        if made.was_searched[i]:  # what was vetoed then is followed until the next search
            vetoed = made.vetoed
            text.vetoed = (vetoed.who[i], vetoed.lost) if vetoed is not None else None
        if text.vetoed is not None and text.vetoed[0] in r.agreed:
            text.purse.miss(SAVES if r.agreed[text.vetoed[0]] else -text.vetoed[1])
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
            if JOINED in r.proposer:  # what of it is the model's is not told
                return
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

"""Chooses proposers and windows by what they are worth in time, plain decoding included.

Knows prices, survival and an account; never sees text. For the sequences of one pass, which share
its cost, it weighs every free proposer's offer by the confidences of that very draft and a draft
model by its survival, and takes what saves most seconds: often a short window, often none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parlay.control.account import Account
from parlay.control.betting.draft_plan import DraftPlan, draft_plan, rates_of
from parlay.control.betting.followed import Request
from parlay.control.betting.foresight import Foresight
from parlay.control.betting.market import Market
from parlay.control.betting.offers import Offer, best_offer
from parlay.control.betting.sharing import share_rows
from parlay.control.betting.stopping import Stopping
from parlay.control.controller import Choice, View, given, no_room, plain
from parlay.control.looks import Looks
from parlay.control.prices.both import Both
from parlay.control.prices.cost import MAX_ROWS, CostTable, Curve, DrafterCost
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.prices.cutting import seconds as seconds_of
from parlay.control.prices.shapes import Shapes
from parlay.control.probing import Probing
from parlay.control.search_pace import SearchPace
from parlay.control.survival import Survival
from parlay.decoding.draft import Look
from parlay.decoding.round import WAITS, Fallback, Round

# A bet must save at least this part of a plain pass; more if the prices are not to be relied on.
_MARGIN, _UNSTABLE_MARGIN = 0.02, 0.10
# The rate decoded at is averaged over about ten passes.
_RATE_KEPT = 0.9
# One pass is not believed to have taken more than so many times what it should have.
_LARGEST_EXCESS = 2.0
# Plain passes are what everything is measured against: one at least every so many.
_N_WITHOUT_PLAIN = 512
_WIDTHS = (0, 1, 3, 7, 15, 31)  # rows more than without a draft, as far as prices have steps

# A token that was only looked at and came makes up for so much of a pass that bets lost before.
_VOUCHED = 0.25
_LOOKS, _LOOK = "look", 0.5  # a choice's reason; plain passes that one look may take
_NOTHING_S = 1e-9
_SEARCH_SHARE = 0.05  # of a pass that searching may take, while it is done at all
_NOT_SEARCHED = replace(plain(Fallback.UNPROFITABLE), reason="not_searched")

_Offers = dict[int, Offer]  # by sequence


class ProfitController:
    """The default controller."""

    def __init__(
        self,
        costs: CostTable,
        kept: Mapping[str, Any] | None = None,
        cutting: Cutting = APART,
    ) -> None:
        """`kept`: what `to_dict` gave after an earlier run with the same pair of models;
        `cutting`: how the target's passes over several sequences are cut."""
        kept = kept or {}
        self.cutting = cutting
        self.reprice(costs)
        self.survival = Survival.from_dict(kept.get("survival", {}))
        self.account = Account(kept.get("record", {}))
        self._shapes = Shapes()
        self._requests: dict[int, Request] = {}
        self._probing: dict[str, Probing] = {}
        self._looks: dict[str, Looks] = {}
        self._search_pace = SearchPace()
        self._n_without_plain = 0
        self._beside = False  # whether a drafter was at work beside the last pass
        self._both: Both | None = None  # its prices
        self._last_proposer = "none"  # whom the shape of the last pass is owed to

    def reprice(self, costs: CostTable) -> None:
        """Other prices from now on, between two rounds; all that was learned of drafts stays."""
        self.costs = costs
        self._margin = _MARGIN if costs.stable else _UNSTABLE_MARGIN
        self._tokens, self._seconds = 0.0, 0.0  # decaying sums: what was generated, in what time

    def to_dict(self) -> dict[str, Any]:
        """What is worth keeping between runs, per pair of models."""
        return {"survival": self.survival.to_dict(), "record": self.account.to_dict()}

    # -- before a pass --------------------------------------------------------

    def due(self, n_texts: int) -> int:
        return self._search_pace.due(n_texts)

    def rests(self) -> bool:
        return self._search_pace.rests

    def notice(self) -> None:
        self._search_pace.notice()

    def choose(self, views: Sequence[View]) -> list[Choice]:
        n = len(views)
        requests = [self._follow(view, n) for view in views]
        imposed = [self._imposed(request, n) for request in requests]
        betting = [r for r, choice in zip(requests, imposed, strict=True) if choice is None]
        if not betting:
            return [choice for choice in imposed if choice is not None]
        if not any(request.view.searched for request in betting):
            return [_NOT_SEARCHED if choice is None else choice for choice in imposed]
        if any(_is_offered(request.view) for request in betting):
            windows = [choice.window for choice in imposed if choice is not None]
            found = self._bet(self._market(betting, views, windows))
        else:
            found = self._decline_all(betting, n)
        return [
            found[view.seq_id] if choice is None else choice
            for view, choice in zip(views, imposed, strict=True)
        ]

    def _follow(self, view: View, n_sequences: int) -> Request:
        """The request behind a view; a slot whose answer is no longer than before has a new one."""
        request = self._requests.get(view.seq_id)
        if request is None or view.n_generated <= request.view.n_generated:
            request = self._requests[view.seq_id] = Request(view)
            self.account.open(view.seq_id)
            if n_sequences == 1:  # how fast the last text was says nothing about this one
                self._tokens = self._seconds = 0.0
                if view.n_generated:  # by the pass that read the prompt
                    self._shapes.begin()
        request.view = view
        if view.look is not None:
            self._saw(request, view.look)
        request.asked, request.refused = "none", None
        return request

    def _imposed(self, request: Request, n_sequences: int) -> Choice | None:
        """What the request or the exact shapes leave no choice about."""
        view = request.view
        choice = given(view) or (no_room(view) if view.max_window == 0 else None)
        if choice is None:
            return None
        request.asked = choice.proposer
        return self._ahead_where_it_pays(choice, request, n_sequences) if choice.window else choice

    def _ahead_where_it_pays(self, choice: Choice, request: Request, n_sequences: int) -> Choice:
        """A window that was asked for is kept to; whether its drafter goes on meanwhile is not
        part of it."""
        view, cost = request.view, self.costs.cost_of(choice.proposer)
        if cost is None or cost.both is None or choice.proposer in view.offers:
            return choice
        rates = rates_of(choice.proposer, request, self.survival)
        rows = min(n_sequences * (1 + choice.window), MAX_ROWS)
        steady = self.costs.curve(view.n_context, n_sequences).steady
        foresight = Foresight(cost.both, cost, [rates], view.ready.of(choice.proposer))
        saved = foresight.values([rows] * choice.window, steady)[-1]
        return replace(choice, ahead=saved > 0.0)

    def _market(
        self, requests: list[Request], views: Sequence[View], windows: Sequence[int]
    ) -> Market:
        """The coming pass; `windows` are those that were imposed on others."""
        n_context = max([request.view.n_context for request in requests])
        n_sequences, floor = len(views), views[0].floor
        wants = [request.view.max_window for request in requests]
        if n_sequences == 1 or self._joins_any:
            n_shape, step, undrafted = n_sequences, 1, n_sequences + sum(windows)
            most = undrafted + sum(wants)
        else:
            n_shape = step = self._n_shape([view.seq_id for view in views])
            undrafted = n_shape * (1 + max(windows, default=0))
            most = undrafted + step * max(wants)
        rows = max(undrafted, n_shape * floor)
        most = min(max(most, rows), MAX_ROWS)
        curve = self.costs.curve(n_context, n_shape)
        plain_s = curve.steady[rows]
        rate = n_sequences / plain_s
        if self._tokens > rate * self._seconds:
            rate = min(self._tokens / self._seconds, _attainable(curve.steady, rows, most))
        full, prices = self._shapes.prices(curve, most)
        return_s = self._shapes.back_s(curve, rows)
        return Market(
            requests,
            n_sequences,
            rows,
            undrafted,
            curve.steady,
            full if len(full) <= most + 1 else full[: most + 1],
            prices,
            return_s,
            rate,
            plain_s,
            step,
            n_shape * floor,
            level=step > 1 and self.cutting.recurrent,
            undoing=self.costs.undoing,
            crowded=views[0].crowded,
            owed_s=self._shapes.owed_s(curve, rows),
        )

    def _padded(self, market: Market) -> Market:
        """The same, where a pass over one sequence is padded to what is cheaper."""
        view = market.requests[0].view
        curve = self.costs.curve(view.n_context, market.n_sequences)
        if not self._pads(market.requests, market.n_sequences, curve):
            return market
        widths = self._shapes.widths(curve, market.full)
        widths[1] = min(self._plain_width(view, curve), len(widths) - 1)
        steady, full, prices = (
            [each[n] for n in widths] for each in (market.steady, market.full, market.prices)
        )
        return replace(market, steady=steady, full=full, prices=prices, widths=widths)

    def _pads(self, requests: Sequence[Request], n_sequences: int, curve: Curve) -> bool:
        view = requests[0].view
        alone = n_sequences == 1 and bool(view.offers)
        return view.pads and alone and curve.prices_change and not self.cutting.recurrent

    def _plain_width(self, view: View, curve: Curve) -> int:
        """Rows of a round without a draft. What was won in this text may be spent on waiting."""
        lost_s = curve.steady[self._shapes.last] - curve.steady[1]
        waits = self._shapes.waits(curve) and self._shapes.last <= view.max_window + 1
        return self._shapes.last if waits and lost_s <= self.account.left(view.seq_id) else 1

    def _decline_all(self, requests: Sequence[Request], n_sequences: int) -> dict[int, Choice]:
        """Nobody has anything to say: no price is asked for but that of waiting."""
        first = requests[0].view
        curve = self.costs.curve(first.n_context, n_sequences)
        pads = self._pads(requests, n_sequences, curve)
        widths = (0, self._plain_width(first, curve)) if pads else ()
        return {r.view.seq_id: _shaped(_decline(r.view), widths) for r in requests}

    def _bet(self, market: Market) -> dict[int, Choice]:
        """The best of: no draft at all, what the free proposers offer, a draft model."""
        if self._n_without_plain >= _N_WITHOUT_PLAIN:
            return {r.view.seq_id: _decline(r.view) for r in market.requests}
        padded = self._padded(market)
        offers, saved = self._free_bets(padded)
        plan = self._draft_plan(market, offers, saved)
        choices: dict[int, Choice] = {}
        for request in market.requests:
            seq_id = request.view.seq_id
            if plan is not None and request in plan.requests:
                choices[seq_id] = self._draft(request, plan, market)
                continue
            if seq_id in offers:
                choice = _take(request, offers[seq_id], padded)
            else:
                choice = self._look(request, market) or _decline(request.view)
            choices[seq_id] = _shaped(choice, padded.widths)
        return choices

    def _look(self, request: Request, market: Market) -> Choice | None:
        """Nothing pays: a block may be filled in all the same, to see whether the text follows."""
        if market.n_sequences > 1 or request.view.max_window <= 1 or request.looking:
            return None
        for proposer in _models_of(market):
            cost = self.costs.cost_of(proposer)
            if cost is None or cost.block is None:
                continue
            looks = self._looks.setdefault(proposer, Looks())
            if looks.due() and self._may_look(proposer, request, cost, market.plain_s):
                looks.asked()
                request.asked, request.looking = proposer, True
                window = min(request.view.max_window, cost.longest or request.view.max_window)
                return _looking(proposer, window)
        return None

    def _may_look(self, proposer: str, request: Request, cost: DrafterCost, plain_s: float) -> bool:
        """It is lost time, and comes out of what may be lost."""
        view, limit_s = request.view, _LOOK * plain_s
        seconds = cost.draft_s(cost.longest or view.max_window, request.n_missing(proposer))
        allowed = self.account.allowance(view.seq_id, proposer, view.n_generated, plain_s, limit_s)
        return seconds <= min(limit_s, max(allowed, self.account.savings(proposer, limit_s)))

    def _saw(self, request: Request, look: Look) -> None:
        """What was drafted without a bet, and how much of it came."""
        view, name = request.view, look.proposer
        request.looking = False
        self._looks.setdefault(name, Looks()).saw(look.n_right)
        known, n = self.survival.of(name, view.greedy, view.thinking), len(look.confidence)
        known.observe_confidence(look.confidence, look.n_right, request.difficulty(name))
        known.observe_position(n, look.n_right, request.difficulty(name, True))
        plain_s = self.costs.curve(view.n_context, 1).steady[1]
        self.account.vouch(name, _VOUCHED * max(0, look.n_right - 1) * plain_s)

    def _free_bets(self, market: Market) -> tuple[_Offers, float]:
        """The free offers worth taking, and the seconds they save."""
        offers = {
            request.view.seq_id: offer
            for request in market.requests
            if (offer := best_offer(request, market, self.survival, self.account)) is not None
        }
        if not offers:
            return offers, 0.0
        if market.n_sequences > 1:
            saved = share_rows(offers, market, self.account)
        else:
            saved = next(iter(offers.values())).value
        if saved <= self._margin * market.plain_s:
            return {}, 0.0
        return {seq_id: offer for seq_id, offer in offers.items() if offer.window}, saved

    # -- a draft model --------------------------------------------------------

    def _draft_plan(self, market: Market, offers: _Offers, saved: float) -> DraftPlan | None:
        """The best draft model for all sequences, or for those without an offer, if that pays;
        one that does not is tried now and then."""
        if offers and market.n_sequences == 1:
            market, saved = _beside_offer(market, saved, *offers.values())
        plans = self._plans(market)
        least = max(saved, self._margin * market.plain_s)
        found = [self._instead_of_offers(plan, market, offers, saved) for plan in plans]
        best = max(found, key=lambda each: each[1], default=None)
        paying = None if best is None or not best[0].window or best[1] <= least else best[0]
        if paying is not None:
            self._probing[paying.proposer].used()
        others = [p for p in plans if paying is None or p.proposer != paying.proposer]
        trial = None if offers else self._trial(others, market)
        return paying if trial is None else trial

    def _plans(self, market: Market) -> list[DraftPlan]:
        """What each draft model would do for everyone, but for those looked at too lately."""
        return [
            self._plan(proposer, market.requests, market)
            for proposer in _models_of(market)
            if self.costs.cost_of(proposer) is not None
            and not self._probing.setdefault(proposer, Probing()).too_soon()
        ]

    def _instead_of_offers(
        self, everyone: DraftPlan, market: Market, offers: _Offers, saved: float
    ) -> tuple[DraftPlan, float]:
        """A draft model for all, or beside the offers that others have: what saves more."""
        if offers and len(offers) < len(market.requests) and market.step == 1:
            without = [r for r in market.requests if r.view.seq_id not in offers]
            n_taken = sum(offer.window for offer in offers.values())
            beside = replace(market, rows=market.rows + n_taken)
            rest = self._plan(everyone.proposer, without, beside)
            if rest.window and saved + rest.value > everyone.value:
                return rest, saved + rest.value
        return everyone, everyone.value

    def _trial(self, plans: Sequence[DraftPlan], market: Market) -> DraftPlan | None:
        """A draft model that does not pay, if it would at its best and has waited long enough."""
        changes = market.return_s > 0.0  # then blocks are looked at instead
        plans = [p for p in plans if p.window and not (changes and self._is_block(p.proposer))]
        due = [p for p in plans if self._probing[p.proposer].wait()]
        for plan in due[:1]:
            self._probing[plan.proposer].tried()
            return plan if plan.pays_at_best(market) else None
        return None

    def _is_block(self, proposer: str) -> bool:
        cost = self.costs.cost_of(proposer)
        return cost is not None and cost.block is not None

    def _plan(self, proposer: str, requests: list[Request], market: Market) -> DraftPlan:
        cost = self.costs.cost_of(proposer)
        assert cost is not None
        known, looks = (self.survival, self.account), self._looks.get(proposer)
        vouched = looks is not None and looks.vouch
        return draft_plan(
            proposer, requests, market, *known, cost, beside=self._beside, vouched=vouched
        )

    def _draft(self, request: Request, plan: DraftPlan, market: Market) -> Choice:
        """Let the drafter go on as long as its confidences make it worth while."""
        view, proposer = request.view, plan.proposer
        request.asked = proposer
        known = self.survival.of(proposer, view.greedy, view.thinking)
        most = len(plan.rates[plan.requests.index(request)])
        # What is drafted beside a pass is of use to one sequence as far as its confidences go. Of
        # several all have to hold: nobody waits for tokens that are worth less than the pass.
        shared = plan.ahead and not plan.stakes
        window = plan.window if shared else plan.most(market, most)
        # The change of shape it begins with was decided upon: here it is the same for every window.
        prices = market.steady if market.plainly else _changed_to(plan.rows, market)
        if market.n_sequences == 1 and market.floor > 1:  # what would be padding costs nothing
            prices = [prices[market.at(n - 1)] for n in range(window + 2)]
        elif market.step == 1:
            prices = prices[plan.rows - 1 - min(plan.window, view.max_window) :]
        else:  # all go on alike, and share what that costs
            each = [prices[market.at(k)] for k in range(window + 1)]
            prices = [0.0, *(seconds / len(plan.requests) for seconds in each)]
        stopping = Stopping(
            known.by_confidence.odds,
            request.difficulty(proposer).factor,
            plan.rates[plan.requests.index(request)],
            prices,
            plan.worth,
            plan.step_s / len(plan.requests),  # they share it, as long as others go on too
            window,
            market.undoing,
            plan.stakes,
        )
        gain = _gain(plan.gain, market.prices[plan.rows] + plan.draft_s, market)
        return Choice(
            proposer,
            window,
            keep_going=stopping.keep_going,
            verify=stopping.verify,
            expected_gain=gain,
            reason="profit" if plan.value > 0 else "probe",
            ahead=plan.ahead,
            n_ahead=plan.n_ahead,
        )

    # -- after it -------------------------------------------------------------

    def prices(self) -> CostTable | None:
        return self.costs

    def observe(self, rounds: Sequence[Round]) -> None:
        if all(r.reason == _NOT_SEARCHED.reason for r in rounds):
            self._observe_skipped(rounds)
            return
        self._spend(rounds)
        self._learn_all(rounds)
        self._beside, self._both = rounds[0].beside, self._both_of(rounds)

    def _learn_all(self, rounds: Sequence[Round]) -> None:
        # A pass that also read a prompt tells nothing about the price of its rounds.
        if sum([r.n_rows for r in rounds]) == rounds[0].n_pass_rows - rounds[0].n_padding:
            self._observe_time(rounds)
        for r in rounds:
            request = self._requests.get(r.seq_id)
            if request is not None:
                self._learn(r, request)
        self._shapes.observe(rounds[0].n_pass_rows, drafted=_is_bet(rounds))
        if self._n_undone(rounds):  # what held was read again, in a shape of its own
            self._shapes.leave()

    def _observe_skipped(self, rounds: Sequence[Round]) -> None:
        """Nothing was weighed and nothing is learned: such a round must cost next to nothing."""
        timing = rounds[0].timing
        self._search_pace.observe(
            timing.draft_s, timing.verify_s, searched=0, of=len(rounds), found=False
        )
        self._shapes.observe(rounds[0].n_pass_rows)

    def _spend(self, rounds: Sequence[Round]) -> None:
        """What searching took where no bet came of it, and proposers outside of rounds.

        Searching has a bound of its own (`search_pace.py`): only what is beyond it counts, or a
        model whose searches take a fiftieth of a pass could never bet.
        """
        timing = rounds[0].timing
        beyond_s = max(0.0, timing.draft_s - _SEARCH_SHARE * timing.verify_s)
        search_s = 0.0 if _is_bet(rounds) else beyond_s / len(rounds)
        for r in rounds:
            if r.seq_id in self._requests:
                self.account.spend(r.seq_id, (search_s + r.outside_s) / self.costs.pace)

    def _learn(self, r: Round, request: Request) -> None:
        view = request.view
        for proposer, n_agreed in r.agreed.items():
            draft = view.offers.get(proposer)
            if draft is not None and draft.confidence:
                known = self.survival.of(proposer, view.greedy, view.thinking)
                n = min(len(draft.confidence), r.n_generated)
                known.observe_confidence(
                    draft.confidence[:n], n_agreed, request.difficulty(proposer)
                )
                request.evidence(proposer).observe(n_agreed, n_agreed < n)
        n_made = r.n_drafted + r.n_dropped
        if not n_made:
            self._regain(r, request)
            if r.reason == _LOOKS:  # it had nothing to say: that is all there will be to see
                self._looks[request.asked].saw(0)
                request.looking = False
        if not n_made or request.asked in view.offers:
            return
        # It never read its own last token; if any was rejected, only the target's is new to it.
        # Drafting ahead it has.
        n_unread = 2 if r.n_accepted == n_made and not r.beside else 1
        request.has_read(request.asked, r.n_generated, but=n_unread)
        if r.n_drafted:
            proposer = request.asked
            known = self.survival.of(proposer, view.greedy, view.thinking)
            known.observe_confidence(r.confidence, r.n_accepted, request.difficulty(proposer))
            known.observe_position(r.n_drafted, r.n_accepted, request.difficulty(proposer, True))

    def _regain(self, r: Round, request: Request) -> None:
        """What was refused and right is worth another try, whatever was lost in this text."""
        refused = request.refused
        if refused is not None and refused.proposer in r.agreed:
            right = r.agreed[refused.proposer] > 0
            self.account.regain(r.seq_id, refused.right_s if right else -refused.wrong_s)

    def _observe_time(self, rounds: Sequence[Round]) -> None:
        self._observe_search(rounds)
        first = rounds[0]
        n_context = max([r.n_context for r in rounds])
        n_shape, rows = self._n_made(rounds), first.n_pass_rows
        if n_shape is None:
            self._observe_parts(rounds, n_context)
            return
        curve = self.costs.curve(n_context, n_shape)
        changed, pace = rows != self._shapes.last, self.costs.pace
        settling_s = 0.0 if changed or self._shapes.settled else curve.settling_s
        drafter, draft_s = self._expected_draft(rounds)
        all_s = first.timing.verify_s + first.timing.overhead_s
        undo_s = pace * self._observe_undoing(rounds, all_s / pace, curve, changed)
        pass_s = max(0.0, all_s - undo_s)
        # Another job may have slowed the pass down; what drafting took is always its own.
        expected = curve.of(rows, changed) + settling_s + undo_s / pace
        seconds = min(all_s / pace, _LARGEST_EXCESS * expected) + first.timing.draft_s / pace
        n_plain = n_shape * self._floor(first)
        plain_s = curve.steady[n_plain]
        owed_s = self._shapes.owed_s(curve, n_plain, settling_s)
        return_s = curve.of(n_plain, changed) + settling_s - plain_s - owed_s
        if first.reason == WAITS:
            return_s = seconds - plain_s
        self._book(rounds, seconds - owed_s, plain_s, return_s)
        self._n_without_plain = 0 if rows == n_plain else self._n_without_plain + 1
        if settling_s:
            self.costs.observe_settling(rows, n_context, n_shape, pass_s)
        else:
            both = self._both_of(rounds)
            self.costs.observe(rows, n_context, n_shape, changed, pass_s, both)
        self._observe_ahead(rounds)
        if drafter is not None:
            drafter.observe(draft_s * pace, first.timing.draft_s)

    def _observe_search(self, rounds: Sequence[Round]) -> None:
        betting, timing = _is_bet(rounds), rounds[0].timing
        # A drafter that was asked and had nothing to say took time of its own, not a search's.
        if betting or not any(r.window for r in rounds):
            self._search_pace.observe(
                timing.draft_s,
                timing.verify_s,
                searched=self._n_searched(rounds),
                of=len(rounds),
                found=betting,
                right=any(r.n_accepted for r in rounds) if betting else _was_right(rounds),
            )

    def _n_searched(self, rounds: Sequence[Round]) -> int:
        requests = [self._requests.get(r.seq_id) for r in rounds]
        return sum([request is not None and request.view.searched for request in requests])

    def _observe_ahead(self, rounds: Sequence[Round]) -> None:
        """What was drafted for these rounds was drafted beside the pass before them."""
        made = next((r for r in rounds if r.n_drafted_ahead), None)
        if self._both is not None and made is not None:
            each_s = made.drafted_ahead_s / made.n_drafted_ahead
            self._both.observe_token(self._shapes.last, each_s / self.costs.pace)

    def _both_of(self, rounds: Sequence[Round]) -> Both | None:
        """Prices of the draft model that was at work beside the pass of these rounds."""
        if not rounds[0].beside:
            return None
        requests = (self._requests.get(r.seq_id) for r in rounds if r.n_drafted + r.n_dropped)
        asked = (r.asked for r in requests if r is not None and r.asked not in r.view.offers)
        cost = next((self.costs.cost_of(name) for name in asked), None)
        return None if cost is None else cost.both

    def _observe_undoing(
        self, rounds: Sequence[Round], seconds: float, curve: Curve, changed: bool
    ) -> float:
        """What taking drafts back took of a pass's time."""
        undoing, rows = self.costs.undoing, rounds[0].n_pass_rows
        n_undone = self._n_undone(rounds)
        if n_undone and rows in curve.known and rows not in curve.young:
            self.costs.undoing = undoing.after((seconds - curve.of(rows, changed)) / n_undone)
        return n_undone * undoing.seconds

    def _n_undone(self, rounds: Sequence[Round]) -> int:
        """Drafts of a finished pass that were not taken back for nothing."""
        return sum([self.costs.undoing.is_paid(r.n_drafted, r.n_accepted) for r in rounds])

    @property
    def _joins_any(self) -> bool:
        """Whether one pass takes any rows of any sequences."""
        return self.cutting.unified and not self.cutting.recurrent

    def _n_shape(self, ids: Sequence[int]) -> int:
        """Sequences of a pass, with those that are there only to close gaps in the ids."""
        gaps = not self._joins_any and not self.cutting.recurrent
        return max(ids) - min(ids) + 1 if gaps else len(ids)

    def _n_made(self, rounds: Sequence[Round]) -> int | None:
        """Sequences of a finished pass, padding included; None: it was cut in parts."""
        first, n = rounds[0], len(rounds)
        if n == 1 or self._joins_any:
            return n
        if not first.n_padding:
            return n if len(self.cutting.parts({r.seq_id: r.n_rows for r in rounds})) == 1 else None
        each = max([r.n_rows for r in rounds])
        for n_shape in (self._n_shape([r.seq_id for r in rounds]), n):
            if first.n_pass_rows % n_shape == 0 and first.n_pass_rows >= n_shape * each:
                return n_shape
        return None

    def _floor(self, r: Round) -> int:
        request = self._requests.get(r.seq_id)
        return 1 if request is None else request.view.floor

    def _observe_parts(self, rounds: Sequence[Round], n_context: int) -> None:
        """A pass that was cut: it has no price of its own, but what it lost was lost."""
        n, timing = len(rounds), rounds[0].timing
        plain_s = self.costs.curve(n_context, n).steady[n]
        parts = self.cutting.parts({r.seq_id: r.n_rows for r in rounds})
        pace, expected = self.costs.pace, seconds_of(parts, self.costs, n_context)
        pass_s = min((timing.verify_s + timing.overhead_s) / pace, _LARGEST_EXCESS * expected)
        self._book(rounds, pass_s + timing.draft_s / pace, plain_s, 0.0)

    def _expected_draft(self, rounds: Sequence[Round]) -> tuple[DrafterCost | None, float]:
        """The draft model that drafted for these rounds, and what it should have taken."""
        drafted = [
            (r.n_drafted + r.n_dropped, request)
            for r in rounds
            if (request := self._requests.get(r.seq_id)) is not None
            and request.asked not in request.view.offers
            and r.n_drafted + r.n_dropped
        ]
        # With something ready it began somewhere in the middle.
        ready = any(request.view.ready.of(request.asked) for _, request in drafted)
        names = {request.asked for _, request in drafted}
        cost = self.costs.cost_of(names.pop()) if len(names) == 1 else None
        if cost is None or ready:
            return None, 0.0
        n_missing = sum([request.n_missing(request.asked) for _, request in drafted])
        wait_s = cost.under_way_s(len(drafted)) if self._beside else 0.0
        n_steps = max(n for n, _ in drafted)
        return cost, wait_s + cost.draft_s(n_steps, n_missing, len(drafted))

    def _book(
        self, rounds: Sequence[Round], seconds: float, plain_s: float, return_s: float
    ) -> None:
        """What was won over plain decoding, shared by the sequences of the pass.

        A plain pass in another shape than the last one pays for the bet before it, and one that
        waits in the shape of drafts for the next.
        """
        n = len(rounds)
        self._tokens = _RATE_KEPT * self._tokens + sum([r.n_generated for r in rounds])
        self._seconds = _RATE_KEPT * self._seconds + seconds
        betting = _is_bet(rounds)
        for r in rounds:
            request = self._requests.get(r.seq_id)
            if request is None or request.view.window is not None:  # nobody here chose it
                continue
            if betting:
                won = plain_s * r.n_generated - seconds
                self.account.book(r.seq_id, request.asked, won / n)
                self.account.wait(r.seq_id, won)
                self._last_proposer = request.asked
            elif abs(return_s) > _NOTHING_S:
                self.account.book(r.seq_id, self._last_proposer, -return_s / n)
                self.account.wait(r.seq_id, -return_s)


def _looking(proposer: str, window: int) -> Choice:
    """A whole block, confidences included, and none of it in the pass."""
    return Choice(
        proposer,
        window,
        Fallback.UNPROFITABLE,
        keep_going=lambda _drafted: True,
        reason=_LOOKS,
        ahead=False,
        look=True,
    )


def _was_right(rounds: Sequence[Round]) -> bool:
    """Whether at least half of the texts went on as somebody had offered."""
    return 2 * sum(any(r.agreed.values()) for r in rounds) >= len(rounds)


def _is_bet(rounds: Sequence[Round]) -> bool:
    return any(r.n_drafted or r.n_dropped for r in rounds)


def _attainable(steady: Sequence[float], rows: int, most: int) -> float:
    """Tokens per second at the very best, where a pass has so many rows at most.

    Where little of an answer is left, what was made of late cannot be made any more.
    """
    widths = (*(rows + k for k in _WIDTHS if rows + k < most), most)
    return max([width / steady[width] for width in widths])


def _is_offered(view: View) -> bool:
    """Whether there is anything to bet on: a draft, or a model that makes some."""
    return any(name not in view.offers for name in view.proposers) or any(
        draft.tokens for draft in view.offers.values()
    )


def _decline(view: View) -> Choice:
    drafts = (view.offers[s].tokens if s in view.offers else True for s in view.proposers)
    return plain(Fallback.UNPROFITABLE if any(drafts) else Fallback.NO_DRAFT)


def _shaped(choice: Choice, widths: Sequence[int]) -> Choice:
    """With the padding of its pass."""
    if not widths or (choice.window == 0 and widths[1] == 1):
        return choice
    return replace(choice, widths=widths, reason=choice.reason if choice.window else WAITS)


def _take(request: Request, offer: Offer, market: Market) -> Choice:
    request.asked = offer.proposer
    gain = offer.gained[offer.window - 1]
    expected = _gain(gain, market.prices[market.at(offer.window)], market)
    return Choice(offer.proposer, offer.window, expected_gain=expected, reason="profit")


def _beside_offer(market: Market, saved: float, offer: Offer) -> tuple[Market, float]:
    """The market as a free offer sees it, and what that saves over the plain pass of plans: a token
    must not be worth more as part of another draft."""
    saved += market.prices[market.rows] - offer.plain_s
    least = 1.0 / offer.worth
    return replace(market, rate=max(market.rate, least), least_rate=least), saved


def _changed_to(rows: int, market: Market) -> Sequence[float]:
    """Prices where a change to so many rows is decided upon."""
    prices = [*market.prices]
    prices[rows] = min(prices[rows], market.steady[rows])
    return prices


def _gain(gain: float, seconds: float, market: Market) -> float:
    """Tokens per second over plain decoding's."""
    return (1.0 + gain / market.n_sequences) * market.plain_s / seconds


def _models_of(market: Market) -> list[str]:
    """The draft models of the first sequence that has any."""
    for request in market.requests:
        view = request.view
        found = [name for name in view.proposers if name not in view.offers]
        if found:
            return found
    return []

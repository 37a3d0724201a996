"""Chooses proposers and windows by what they are worth in time, plain decoding included.

Knows prices, survival and an account; never sees text. For the sequences of one pass, which share
its cost, it weighs every free proposer's offer by the confidences of that very draft and a draft
model by its survival, and takes what saves most seconds: often a short window, often none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from parlay.control.betting.draft_plan import DraftPlan, draft_plan, rates_of
from parlay.control.betting.followed_request import FollowedRequest
from parlay.control.betting.foresight import Foresight
from parlay.control.betting.lead import Lead
from parlay.control.betting.market import Market
from parlay.control.betting.offers import Offer, best_offer
from parlay.control.betting.sharing import share_rows
from parlay.control.betting.stopping import Stopping
from parlay.control.betting.streak import Streak
from parlay.control.controller import Choice, View, given, no_room, plain
from parlay.control.learning import LOOKS, LOOKS_BESIDE, NOT_SEARCHED, Learner
from parlay.control.looks import IN_A_ROW, Looks
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.prices.shapes import faster_widths
from parlay.control.probing import Probing
from parlay.decoding.draft import Draft, Look, Shown
from parlay.decoding.round import WAITS, Fallback

# A bet must save at least this part of a plain pass; more if the prices are not to be relied on.
_MARGIN, _UNSTABLE_MARGIN = 0.02, 0.10
# Plain passes are what everything is measured against: one at least every so many.
_N_WITHOUT_PLAIN = 512
_WIDTHS = (0, 1, 3, 7, 15, 31)  # rows more than without a draft, as far as prices have steps

# Plain passes that one look may take; the tokens of a draft model's.
_LOOK, _LOOKED, _HALF = 0.5, 8, 4
_BESIDE = 0.005  # of the plain time of an answer that looks beside its passes may take in any case
_NOT_SEARCHED = replace(plain(Fallback.UNPROFITABLE), reason=NOT_SEARCHED)

_Offers = dict[int, Offer]  # by sequence


class ProfitController(Learner):
    """The default controller."""

    _repeat: Streak | Lead | None = None  # the last round was such a bet on one text,
    _last_repeat: Streak | Lead | None = None  # and so was the one before it

    @property
    def _margin(self) -> float:
        return _MARGIN if self.costs.stable else _UNSTABLE_MARGIN

    def due(self, n_texts: int) -> int:
        return self._search_pace.due(n_texts)

    def rests(self) -> bool:
        return self._search_pace.rests

    def notice(self) -> None:
        self._search_pace.notice()

    def hear(self, seq_id: int, looks: Sequence[Look], n_generated: int) -> Choice | None:
        """Nobody waits while this is weighed: only if a draft model pays now, a round has to be."""
        request = self._requests.get(seq_id)
        if request is None:
            return None
        request.looking = ""
        request.view = view = _later(request.view, n_generated)
        for look in looks:
            self._saw(request, look)
        market = self._market([request], [view], ())
        priced = [name for name in _models_of(market) if self.costs.cost_of(name) is not None]
        plans = [self._plan(name, [request], market) for name in priced]
        if any(plan.window and plan.value > self._margin * market.plain_s for plan in plans):
            self._search_pace.wake()
            return None
        return self._look(request, market, under_way=True)

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Sequence[Shown], n_generated: int
    ) -> None:
        """Nobody waits while this is weighed: only if a bet pays now, a round is searched."""
        request = self._requests.get(seq_id)
        if request is None:
            return
        self._heed(request, shown)
        if request.considers(n_generated) and any(draft.tokens for draft in offers.values()):
            view = replace(_later(request.view, n_generated), offers=offers)
            with request.supposing(view):
                worth_it = self._free_bets(self._padded(self._market([request], [view], ())))[0]
            if worth_it:
                request.woke(n_generated)
                self._search_pace.wake()

    def again(self, view: View) -> Choice | None:
        if self._repeat is None or not self._repeat.goes_on(view):
            return None
        self._requests[view.seq_id].bet_again(view)
        return self._repeat.make_again(view)

    def choose(self, views: Sequence[View]) -> list[Choice]:
        self._repeat, self._last_repeat = None, self._repeat
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

    def _follow(self, view: View, n_sequences: int) -> FollowedRequest:
        """The request behind a view; a slot whose answer is no longer than before has a new one."""
        request = self._requests.get(view.seq_id)
        if (
            request is None
            or view.answer != request.view.answer
            or view.n_generated <= request.view.n_generated
        ):
            request = self._requests[view.seq_id] = FollowedRequest(view)
            self.account.open(view.seq_id)
            self._both = None  # what is ready was drafted beside a prompt: no price of a round's
            if n_sequences == 1:  # how fast the last text was says nothing about this one
                self._tokens = self._seconds = 0.0
                if view.n_generated:  # by the pass that read the prompt
                    self._shapes.begin()
        request.weigh(view)
        if view.looks is not None:
            request.looking = ""
            for look in view.looks:
                self._saw(request, look)
        if view.shown:
            self._heed(request, view.shown)
        if view.ready.read_s:
            self._spend_reading(view)
        return request

    def _imposed(self, request: FollowedRequest, n_sequences: int) -> Choice | None:
        """What the request or the exact shapes leave no choice about."""
        view = request.view
        choice = given(view) or (no_room(view) if view.max_window == 0 else None)
        if choice is None:
            return None
        request.asked = choice.proposer
        return self._ahead_where_it_pays(choice, request, n_sequences) if choice.window else choice

    def _ahead_where_it_pays(
        self, choice: Choice, request: FollowedRequest, n_sequences: int
    ) -> Choice:
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
        self, requests: list[FollowedRequest], views: Sequence[View], windows: Sequence[int]
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
        rows = min(max(undrafted, n_shape * floor), MAX_ROWS)
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
            room_s=self._room_s(n_context, n_sequences, plain_s),
        )

    def _padded(self, market: Market) -> Market:
        """The same, where a pass over one sequence is padded to what is cheaper."""
        view = market.requests[0].view
        curve = self.costs.curve(view.n_context, market.n_sequences)
        if not self._pads(market.requests, market.n_sequences, curve):
            return market
        widths = self._shapes.widths(curve, market.full)
        widths[1] = min(self._plain_width(view, curve), len(widths) - 1)
        return market.padded(widths)

    def _widened(self, market: Market) -> Market:
        """The same for a draft model: only where the kernels of a wider pass are faster. To stay in
        a shape it is not padded, its drafts have any width."""
        view = market.requests[0].view
        has_model = len(view.offers) < len(view.proposers)
        if not (view.pads and has_model) or market.n_sequences > 1 or self.cutting.recurrent:
            return market
        widths = faster_widths(market.steady, len(market.full) - 1)
        return market.padded(widths) if widths else market

    def _pads(self, requests: Sequence[FollowedRequest], n_sequences: int, curve: Curve) -> bool:
        view = requests[0].view
        alone = n_sequences == 1 and bool(view.offers)
        return view.pads and alone and curve.prices_change and not self.cutting.recurrent

    def _plain_width(self, view: View, curve: Curve) -> int:
        """Rows of a round without a draft. What was won in this text may be spent on waiting."""
        last = self._shapes.last
        if last > view.max_window + 1 or not self._shapes.waits(curve):
            return 1
        lost_s = curve.steady[last] - curve.steady[1]
        return last if lost_s <= self.account.left(view.seq_id) else 1

    def _decline_all(
        self, requests: Sequence[FollowedRequest], n_sequences: int
    ) -> dict[int, Choice]:
        """Nobody has anything to say: no price is asked for but that of waiting."""
        first = requests[0].view
        curve = self.costs.curve(first.n_context, n_sequences)
        pads = self._pads(requests, n_sequences, curve)
        widths = (0, self._plain_width(first, curve)) if pads else ()
        return {r.view.seq_id: _shaped(_decline(r.view), widths) for r in requests}

    def _bet(self, market: Market) -> dict[int, Choice]:
        """The best of: no draft at all, what the free proposers offer, a draft model."""
        if self._n_without_plain >= _N_WITHOUT_PLAIN:
            self._n_without_plain = 0  # beside a window that was asked for no pass is plain
            return {r.view.seq_id: _decline(r.view) for r in market.requests}
        padded = self._padded(market)
        offers, saved = self._free_bets(padded)
        drafted = self._widened(market)
        plan = self._draft_plan(drafted, offers, saved)
        choices: dict[int, Choice] = {}
        for request in market.requests:
            seq_id = request.view.seq_id
            if plan is not None and request in plan.requests:
                choices[seq_id] = self._draft(request, plan, drafted)
                continue
            if seq_id in offers:
                choices[seq_id] = taken = _take(request, offers[seq_id], padded)
                if market.n_sequences == 1:
                    self._repeat = Streak(request.view, taken, self._last_repeat)
            else:
                look = self._look(request, market)
                if look is not None:
                    request.asked = look.proposer
                choices[seq_id] = _shaped(look or _decline(request.view), padded.widths)
        return choices

    def _look(
        self, request: FollowedRequest, market: Market, *, under_way: bool = False
    ) -> Choice | None:
        """Nothing pays: a block may be filled in all the same, or a draft be made beside passes,
        to see whether the text follows. `under_way`: a pass is, and waits for no block."""
        if market.n_sequences > 1 or request.view.max_window <= 1 or request.looking:
            return None
        n_since = request.n_since()
        for proposer in _models_of(market):
            cost = self.costs.cost_of(proposer)
            if cost is None or (cost.block is None and cost.both is None):
                continue
            looks = self._looks.setdefault(proposer, Looks(cheap=cost.block is None))
            due = looks.due(n_since) and not (under_way and cost.block is not None)
            if due and self._may_look(proposer, request, cost, market.plain_s):
                looks.asked()
                request.looking = proposer
                window = min(request.view.max_window, cost.longest or _LOOKED)
                looking = _looking if cost.block is not None else _looking_beside
                return looking(proposer, window)
        return None

    def _may_look(
        self, proposer: str, request: FollowedRequest, cost: DrafterCost, plain_s: float
    ) -> bool:
        """It is lost time, and comes out of what may be lost."""
        view, limit_s = request.view, _LOOK * plain_s
        n_missing = request.n_missing(proposer)
        if cost.block is None and cost.both is not None:  # passes take so much longer
            each_s = cost.catch_up_s(_HALF) + _HALF * cost.both.token_s[1]
            seconds = cost.catch_up_s(n_missing) + IN_A_ROW * each_s
            seconds *= cost.both.slowdown[1] - 1.0
        else:
            seconds = cost.draft_s(cost.longest or view.max_window, n_missing)
        allowed = self.account.allowance(view.seq_id, proposer, view.n_generated, plain_s, limit_s)
        if cost.block is None:  # a text that has lost may still be looked at, for so much
            own_s = _BESIDE * view.n_generated * plain_s
            allowed = max(allowed, own_s - request.looked_s)
        may = seconds <= min(limit_s, max(allowed, self.account.savings(proposer, limit_s)))
        request.looked_s += may * seconds
        return may

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
            beside = market.copy()
            beside.rows += n_taken
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

    def _plan(self, proposer: str, requests: list[FollowedRequest], market: Market) -> DraftPlan:
        cost = self.costs.cost_of(proposer)
        assert cost is not None
        known, looks = (self.survival, self.account), self._looks.get(proposer)
        vouched = looks is not None and looks.vouch
        return draft_plan(
            proposer, requests, market, *known, cost, beside=self._beside, vouched=vouched
        )

    def _draft(self, request: FollowedRequest, plan: DraftPlan, market: Market) -> Choice:
        """Let the drafter go on as long as its confidences make it worth while."""
        view, proposer = request.view, plan.proposer
        request.asked = proposer
        known = self.survival.of(proposer, view.greedy, view.thinking)
        most = len(plan.rates[plan.requests.index(request)])
        # What is drafted beside a pass is of use to one sequence as far as its confidences go. Of
        # several all have to hold: nobody waits for tokens that are worth less than the pass.
        shared = plan.ahead and not plan.stakes
        window = min(plan.window, most) if shared else plan.most(market, most)
        # The change of shape it begins with was decided upon: here it is the same for every window.
        prices = market.steady if market.plainly else _changed_to(plan.rows, market)
        if market.n_sequences == 1 and market.floor > 1:  # what would be padding costs nothing
            prices = [prices[market.at(n - 1)] for n in range(window + 2)]
        elif market.step == 1:
            prices = prices[plan.rows - 1 - min(plan.window, view.max_window) :]
        else:  # all go on alike, and share what that costs
            each = [prices[market.at(k)] for k in range(window + 1)]
            prices = [0.0, *(seconds / len(plan.requests) for seconds in each)]
        stopping = partial(
            Stopping,
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
        own = stopping()
        choice = Choice(
            proposer,
            window,
            keep_going=own.keep_going,
            verify=own.verify,
            expected_gain=gain,
            reason="profit" if plan.value > 0 else "probe",
            ahead=plan.ahead,
            n_ahead=plan.n_ahead,
            widths=market.widths,
        )
        if plan.ahead and market.n_sequences == 1 and plan.value > 0:
            self._repeat = Lead(view, choice, stopping, self._last_repeat)
        return choice


def _later(view: View, n_generated: int) -> View:
    """The same text, so many tokens being there: since a round was weighed it went on."""
    n_more = max(0, n_generated - view.n_generated)
    return replace(
        view,
        n_context=view.n_context + n_more,
        n_generated=view.n_generated + n_more,
        n_remaining=max(1, view.n_remaining - n_more),
    )


def _looking(proposer: str, window: int) -> Choice:
    """A whole block, confidences included, and none of it in the pass."""
    return Choice(
        proposer,
        window,
        Fallback.UNPROFITABLE,
        keep_going=lambda _drafted: True,
        reason=LOOKS,
        ahead=False,
        look=True,
    )


def _looking_beside(proposer: str, window: int) -> Choice:
    """Drafts that are made while the target goes on without them, one after the other."""
    choice = plain(Fallback.UNPROFITABLE)
    return replace(
        choice,
        proposer=proposer,
        keep_going=lambda _drafted: True,
        ahead=False,
        n_ahead=window,
        reason=LOOKS_BESIDE,
        look=True,
    )


def _attainable(steady: Sequence[float], rows: int, most: int) -> float:
    """Tokens per second at the very best, where a pass has so many rows at most.

    Where little of an answer is left, what was made of late cannot be made any more.
    """
    widths = [*[rows + k for k in _WIDTHS if rows + k < most], most]
    return max([width / steady[width] for width in widths])


def _is_offered(view: View) -> bool:
    """Whether there is anything to bet on: a draft, or a model that makes some."""
    offered = all(map(view.offers.__contains__, view.proposers))
    return not offered or any(draft.tokens for draft in view.offers.values())


def _decline(view: View) -> Choice:
    drafts = (view.offers[s].tokens if s in view.offers else True for s in view.proposers)
    return plain(Fallback.UNPROFITABLE if any(drafts) else Fallback.NO_DRAFT)


def _shaped(choice: Choice, widths: Sequence[int]) -> Choice:
    """With the padding of its pass."""
    if not widths or (choice.window == 0 and widths[1] == 1):
        return choice
    return replace(choice, widths=widths, reason=choice.reason if choice.window else WAITS)


def _take(request: FollowedRequest, offer: Offer, market: Market) -> Choice:
    request.asked = offer.proposer
    gain = offer.gained[offer.window - 1]
    expected = _gain(gain, market.prices[market.at(offer.window)], market)
    return Choice(
        offer.proposer,
        offer.window,
        expected_gain=expected,
        reason="profit",
        widths=market.widths,
    )


def _beside_offer(market: Market, saved: float, offer: Offer) -> tuple[Market, float]:
    """The market as a free offer sees it, and what that saves over the plain pass of plans: a token
    must not be worth more as part of another draft."""
    saved += market.prices[market.rows] - offer.plain_s
    least, beside = 1.0 / offer.worth, market.copy()
    beside.rate = beside.least_rate = least
    return beside, saved


def _changed_to(rows: int, market: Market) -> Sequence[float]:
    """Prices where a change to so many rows is decided upon."""
    prices, widths = [*market.prices], market.widths or range(len(market.prices))
    for n, width in enumerate(widths):
        if width == widths[rows]:
            prices[n] = min(prices[n], market.steady[n])
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

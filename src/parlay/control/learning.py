"""What a profit controller learns of finished passes: prices, rates, and what was won or lost.

Knows rounds and what was asked for; chooses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlay.control.account import Account
from parlay.control.betting.followed_request import FollowedRequest
from parlay.control.controller import View
from parlay.control.looks import Looks
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS, Curve
from parlay.control.prices.cutting import APART, Cutting
from parlay.control.prices.cutting import seconds as seconds_of
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.prices.shapes import Shapes
from parlay.control.probing import Probing
from parlay.control.search_pace import SearchPace
from parlay.control.survival import Survival
from parlay.decoding.draft import JOINED, Look, Shown
from parlay.decoding.round import WAITS, Fallback, Round

# Reasons of choices that are learned from in another way.
LOOKS, LOOKS_BESIDE, NOT_SEARCHED = "look", "look_beside", "not_searched"
# The rate decoded at is averaged over about ten passes.
_RATE_KEPT = 0.9
# One pass is not believed to have taken more than so many times what it should have.
_LARGEST_EXCESS = 2.0
# A token that was only looked at and came makes up for so much of a pass that bets lost before.
# In this text it makes up for twice as much, and one that did not come takes as much back.
_VOUCHED, _SHOWN = 0.25, 0.5
# Of the neighbours of a request, so many end before it does.
_ENDS_SOONER = 0.5
_NOTHING_S = 1e-9
_SEARCH_SHARE = 0.05  # of a pass that searching may take, while it is done at all


class Learner:
    """All that is known between two passes."""

    def __init__(
        self,
        costs: CostTable,
        kept: Mapping[str, Any] | None = None,
        cutting: Cutting = APART,
        *,
        glances: bool = True,
    ) -> None:
        """`kept`: what `to_dict` gave after an earlier run with the same pair of models;
        `cutting`: how the target's passes over several sequences are cut; `glances`: whether texts
        that nobody searches are followed, while a device computes."""
        kept = kept or {}
        self.cutting = cutting
        self.reprice(costs)
        self.survival = Survival.from_dict(kept.get("survival", {}))
        self.account = Account(kept.get("record", {}))
        self._shapes = Shapes()
        self._requests: dict[int, FollowedRequest] = {}
        self._looks: dict[str, Looks] = {}
        self._probing: dict[str, Probing] = {}
        self._search_pace = SearchPace(glances=glances)
        self._n_without_plain = 0
        self._beside = False  # whether a drafter was at work beside the last pass
        self._both: Both | None = None  # its prices
        self._last_proposer = "none"  # whom the shape of the last pass is owed to
        self._n_owing = 0  # sequences of the bet that left the plain shape, until it has settled

    def reprice(self, costs: CostTable) -> None:
        """Other prices from now on, between two rounds; all that was learned of drafts stays."""
        self.costs = costs
        self._tokens, self._seconds = 0.0, 0.0  # decaying sums: what was generated, in what time

    def to_dict(self) -> dict[str, Any]:
        """What is worth keeping between runs, per pair of models."""
        return {"survival": self.survival.to_dict(), "record": self.account.to_dict()}

    def prices(self) -> CostTable | None:
        return self.costs

    def observe(self, rounds: Sequence[Round]) -> None:
        if all(r.reason == NOT_SEARCHED for r in rounds):
            self._observe_skipped(rounds)
            return
        betting = _is_bet(rounds)
        self._spend(rounds, betting)
        both = self._both_of(rounds)
        self._learn_all(rounds, betting, both)
        self._beside, self._both = rounds[0].beside, both

    def _learn_all(self, rounds: Sequence[Round], betting: bool, both: Both | None) -> None:
        # A pass that also read a prompt tells nothing about the price of its rounds.
        if sum([r.n_rows for r in rounds]) == rounds[0].n_pass_rows - rounds[0].n_padding:
            self._observe_time(rounds, betting, both)
        for r in rounds:
            request = self._requests.get(r.seq_id)
            if request is not None:
                self._learn(r, request)
                request.observed()
        self._observe_shape(rounds, betting)
        if self._n_undone(rounds):  # what held was read again, in a shape of its own
            self._shapes.leave()

    def _observe_skipped(self, rounds: Sequence[Round]) -> None:
        """Nothing was weighed and nothing is learned: such a round must cost next to nothing."""
        timing = rounds[0].timing
        self._search_pace.observe(
            timing.draft_s, timing.verify_s, searched=0, of=len(rounds), found=False
        )
        self._observe_shape(rounds, betting=False)

    def _observe_shape(self, rounds: Sequence[Round], betting: bool) -> None:
        first = rounds[0]
        self._shapes.observe(first.n_pass_rows, drafted=betting)
        if betting or first.reason == WAITS:
            self._n_owing = len(rounds)
        elif self._shapes.settled:
            self._n_owing = 0

    def _spend(self, rounds: Sequence[Round], betting: bool) -> None:
        """What searching took where no bet came of it, and proposers outside of rounds.

        Searching has a bound of its own (`search_pace.py`): only what is beyond it counts, or a
        model whose searches take a fiftieth of a pass could never bet.
        """
        timing = rounds[0].timing
        beyond_s = max(0.0, timing.draft_s - _SEARCH_SHARE * timing.verify_s)
        search_s = 0.0 if betting else beyond_s / len(rounds)
        for r in rounds:
            if r.seq_id in self._requests:
                self.account.spend(r.seq_id, (search_s + r.outside_s) / self.costs.pace)

    def _spend_reading(self, view: View) -> None:
        """A draft model read the prompt beside the target, whose pass took the longer for it."""
        cost = self.costs.cost_of(view.ready.proposer)
        if cost is not None and cost.both is not None:
            longer = cost.both.slowdown[min(view.n_context, MAX_ROWS)] - 1.0
            self.account.spend(view.seq_id, longer * view.ready.read_s / self.costs.pace)

    def _learn(self, r: Round, request: FollowedRequest) -> None:
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
            if r.window and r.fallback is Fallback.DRAFT_ERROR:
                for each in self._requests.values():  # whoever failed starts over with all of them
                    each.has_forgotten(request.asked)
            if r.reason == LOOKS:  # it had nothing to say: that is all there will be to see
                self._looks[request.asked].saw(0)
                request.looking = ""
        if not n_made or request.asked in view.offers:
            return
        if JOINED in r.proposer:  # what of it is the model's is not told
            request.has_read(request.asked, 0, but=0)
            return
        # It never read its own last token; if any was rejected, only the target's is new to it.
        # Drafting ahead it has.
        n_unread = 2 if r.n_accepted == n_made and not r.beside else 1
        request.has_read(request.asked, r.n_generated, but=n_unread)
        if r.n_drafted:
            proposer = request.asked
            known = self.survival.of(proposer, view.greedy, view.thinking)
            known.observe_confidence(
                r.confidence, r.n_accepted, request.difficulty(proposer), even=True
            )
            known.observe_position(r.n_drafted, r.n_accepted, request.difficulty(proposer, True))

    def _heed(self, request: FollowedRequest, shown: Sequence[Shown]) -> None:
        """What a text has shown of free proposers in rounds that nobody searched."""
        view = request.view
        for each in shown:
            request.evidence(each.proposer).observe(each.n_right, each.wrong)
            known = self.survival.of(each.proposer, view.greedy, view.thinking)
            difficulty = request.difficulty(each.proposer)
            n_right = len(each.confidence) - each.wrong
            if n_right >= 0:
                known.observe_confidence(each.confidence, n_right, difficulty)

    def _saw(self, request: FollowedRequest, look: Look) -> None:
        """What was drafted without a bet, and how much of it came."""
        view, name = request.view, look.proposer
        self._looks.setdefault(name, Looks()).saw(look.n_right)
        known, n = self.survival.of(name, view.greedy, view.thinking), len(look.confidence)
        known.observe_confidence(look.confidence, look.n_right, request.difficulty(name), even=True)
        known.observe_position(n, look.n_right, request.difficulty(name, True))
        plain_s = self.costs.curve(view.n_context, 1).steady[1]
        self.account.vouch(name, _VOUCHED * max(0, look.n_right - 1) * plain_s)
        self.account.show(view.seq_id, _SHOWN * (look.n_right - 1) * plain_s)

    def _regain(self, r: Round, request: FollowedRequest) -> None:
        """What was refused and right is worth another try, whatever was lost in this text."""
        refused = request.refused
        if refused is not None and refused.proposer in r.agreed:
            right = r.agreed[refused.proposer] > 0
            self.account.regain(r.seq_id, refused.right_s if right else -refused.wrong_s)

    def _observe_time(self, rounds: Sequence[Round], betting: bool, both: Both | None) -> None:
        """`both`: prices of the drafter that was at work beside the pass."""
        self._observe_search(rounds, betting)
        first = rounds[0]
        n_context = max([r.n_context for r in rounds])
        n_shape, rows = self._n_made(rounds), first.n_pass_rows
        if n_shape is None or rows > MAX_ROWS:
            self._observe_parts(rounds, betting, n_context)
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
        # No more than it took: a device that had the shape before settles sooner, and a text must
        # not seem faster for it than it is.
        owed_s = self._shapes.owed_s(curve, n_plain, settling_s)
        owed_s = min(owed_s, max(0.0, seconds - curve.steady[rows]))
        return_s = 0.0
        if self._n_owing == len(rounds):
            back_s = curve.of(n_plain, changed) + settling_s - plain_s
            return_s = min(back_s, max(0.0, seconds - plain_s)) - owed_s
        if first.reason == WAITS:
            return_s = seconds - plain_s
        self._book(rounds, betting, seconds - owed_s, plain_s, return_s)
        self._n_without_plain = 0 if rows == n_plain else self._n_without_plain + 1
        if settling_s:
            self.costs.observe_settling(rows, n_context, n_shape, pass_s)
        else:
            self.costs.observe(rows, n_context, n_shape, changed, pass_s, both)
        self._observe_ahead(rounds)
        if drafter is not None:
            drafter.observe(draft_s * pace, first.timing.draft_s)

    def _observe_search(self, rounds: Sequence[Round], betting: bool) -> None:
        timing = rounds[0].timing
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
        betting = (self._requests.get(r.seq_id) for r in rounds if r.n_drafted + r.n_dropped)
        asked = (r.asked for r in betting if r is not None and r.asked not in r.view.offers)
        looking = (self._requests[r.seq_id].looking for r in rounds if r.seq_id in self._requests)
        cost = next((self.costs.cost_of(name) for name in (*asked, *looking) if name), None)
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
        if self.costs.undoing.free is None:
            return 0
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

    def _observe_parts(self, rounds: Sequence[Round], betting: bool, n_context: int) -> None:
        """A pass that was cut: it has no price of its own, but what it lost was lost."""
        n, timing = len(rounds), rounds[0].timing
        plain_s = self.costs.curve(n_context, n).steady[min(n, MAX_ROWS)]
        parts = self.cutting.parts({r.seq_id: r.n_rows for r in rounds})
        pace, expected = self.costs.pace, seconds_of(parts, self.costs, n_context)
        pass_s = min((timing.verify_s + timing.overhead_s) / pace, _LARGEST_EXCESS * expected)
        self._book(rounds, betting, pass_s + timing.draft_s / pace, plain_s, 0.0)

    def _expected_draft(self, rounds: Sequence[Round]) -> tuple[DrafterCost | None, float]:
        """The draft model that drafted for these rounds, and what it should have taken."""
        drafted = [
            (r.n_drafted + r.n_dropped, request)
            for r in rounds
            if (request := self._requests.get(r.seq_id)) is not None
            and request.asked not in request.view.offers
            and r.n_drafted + r.n_dropped
        ]
        # With something ready it began somewhere in the middle, and what a grammar forces took it
        # no step.
        ready = any(request.view.ready.of(request.asked) for _, request in drafted)
        ready = ready or JOINED in "".join([r.proposer for r in rounds])
        names = {request.asked for _, request in drafted}
        cost = self.costs.cost_of(names.pop()) if len(names) == 1 else None
        if cost is None or ready:
            return None, 0.0
        n_missing = sum([request.n_missing(request.asked) for _, request in drafted])
        wait_s = cost.under_way_s(len(drafted)) if self._beside else 0.0
        n_steps = max(n for n, _ in drafted)
        return cost, wait_s + cost.draft_s(n_steps, n_missing, len(drafted))

    def _book(
        self,
        rounds: Sequence[Round],
        betting: bool,
        seconds: float,
        plain_s: float,
        return_s: float,
    ) -> None:
        """What was won over plain decoding, shared by the sequences of the pass.

        A plain pass in another shape than the last one pays for the bet before it, and one that
        waits in the shape of drafts for the next. If there was none, it changed for another reason,
        and would have without bets: a sequence began or ended, a prompt was read.
        """
        n, n_ahead = len(rounds), sum([r.n_generated - 1 for r in rounds])
        room_s = self._room_s(max([r.n_context for r in rounds]), n, plain_s) if betting else 0.0
        self._tokens = _RATE_KEPT * self._tokens + sum([r.n_generated for r in rounds])
        self._seconds = _RATE_KEPT * self._seconds + seconds
        for r in rounds:
            request = self._requests.get(r.seq_id)
            if request is None or request.view.window is not None:  # nobody here chose it
                continue
            if betting:
                won = plain_s * r.n_generated - seconds
                self.account.book(r.seq_id, request.asked, won / n)
                self.account.wait(r.seq_id, won + room_s * (n_ahead - r.n_generated + 1))
                self._last_proposer = request.asked
            elif abs(return_s) > _NOTHING_S:
                self.account.book(r.seq_id, self._last_proposer, -return_s / n)
                self.account.wait(r.seq_id, -return_s)

    def _room_s(self, n_context: int, n_sequences: int, plain_s: float) -> float:
        """What a token that one sequence is ahead saves each of the others: whoever ends sooner
        leaves a smaller pass to the rest. Half of it, for as many end before as after."""
        if n_sequences == 1:
            return 0.0
        alone_s = self.costs.curve(n_context, 1).steady[1]
        return max(0.0, _ENDS_SOONER * (plain_s - alone_s) / (n_sequences - 1))


def _was_right(rounds: Sequence[Round]) -> bool:
    """Whether at least half of the texts went on as somebody had offered."""
    return 2 * sum(any(r.agreed.values()) for r in rounds) >= len(rounds)


def _is_bet(rounds: Sequence[Round]) -> bool:
    return any(r.n_drafted or r.n_dropped for r in rounds)

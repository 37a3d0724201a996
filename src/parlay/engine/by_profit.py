"""The profit controller by the three methods of `control/choice.py`.

Knows views and choices of both kinds; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from parlay.control import controller as former
from parlay.control.choice import Choice, Choices, Confidences, View
from parlay.control.prices.cost import CostTable
from parlay.control.profit import ProfitController
from parlay.decoding.draft import NO_DRAFT
from parlay.decoding.round import Fallback, Round


class ByProfit:
    """One profit controller."""

    def __init__(self, inner: ProfitController) -> None:
        self.inner = inner
        self._asked_to_look: set[int] = set()

    @property
    def costs(self) -> CostTable:
        return self.inner.costs

    def choose(self, views: Sequence[View]) -> Choices:
        made = self.inner.choose([self._view(view) for view in views])
        n_due = self.inner.due(len(views))
        chosen = {view.seq_id: choice for view, choice in zip(views, made, strict=True)}
        self._asked_to_look = {seq_id for seq_id, choice in chosen.items() if choice.look}
        each = [
            Choice(
                "none" if choice.look and not choice.window else choice.proposer,
                choice.window,
                choice.fallback if choice.window else choice.fallback or Fallback.UNPROFITABLE,
                search=i < n_due,
                expected_gain=choice.expected_gain,
                reason=choice.reason,
            )
            for i, choice in enumerate(made)
        ]

        def going(drafted: Confidences) -> Collection[int]:
            return [s for s, sure in drafted.items() if _goes_on(chosen[s], sure)]

        def verified(drafted: Confidences) -> Mapping[int, int]:
            return {s: _n_verified(chosen[s], sure) for s, sure in drafted.items()}

        def width(rows: int) -> int:
            return made[0].width(rows) if len(made) == 1 else rows

        return Choices(each, going, verified, width)

    def observe(self, rounds: Sequence[Round]) -> None:
        self.inner.observe(rounds)
        if any(n for r in rounds if not r.n_drafted for n in r.agreed.values()):
            self.inner.notice()

    def kept(self) -> dict[str, Any]:
        return self.inner.to_dict()

    def _view(self, view: View) -> former.View:
        offers = view.offers
        if not view.searched:
            offers = {name: NO_DRAFT for name in view.proposers if name not in view.models}
        return former.View(
            view.seq_id,
            view.n_context,
            n_prompt=max(1, view.n_context - view.n_generated),
            n_generated=view.n_generated,
            max_window=view.max_window,
            proposers=view.proposers,
            offers=offers,
            window=view.window,
            greedy=view.greedy,
            fallback=view.fallback,
            n_remaining=view.n_remaining,
            answer=view.answer,
            searched=view.searched,
            crowded=view.crowded,
            floor=view.floor,
            pads=view.pads,
            looks=[] if view.seq_id in self._asked_to_look else None,
            unread=view.unread,
        )


def _goes_on(choice: former.Choice, sure: Sequence[float]) -> bool:
    return choice.keep_going is None or choice.keep_going(sure)


def _n_verified(choice: former.Choice, sure: Sequence[float]) -> int:
    if choice.look:
        return 0
    return len(sure) if choice.verify is None else choice.verify(sure)

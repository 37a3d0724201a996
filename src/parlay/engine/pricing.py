"""The ground a profit controller stands on in a server: prices, measured while nobody waits.

Knows the engine and what earlier runs kept; knows nothing of HTTP. The target answers before it is
measured: until then every row is taken to cost as much as a pass, and a few rounds are tried to
learn better, since a server that is never idle would never bet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from parlay import store
from parlay.control.controller import Choice, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.profit import ProfitController
from parlay.control.trials import Trials
from parlay.decoding.draft import Draft, Look, Shown
from parlay.decoding.round import Round
from parlay.engine.engine import Engine
from parlay.engine.startup.learned import keep_learned, learned_controller
from parlay.timing import measuring

log = logging.getLogger("parlay.server")
Step = Callable[[], None]
_ORIGIN = "measured by the server while it was idle"


class Pricing:
    """A profit controller whose prices may come later, and whose pair may change."""

    def __init__(self, engine: Engine, drafters: Sequence[Path]) -> None:
        self._engine = engine
        self._target_key = engine.pair_key(())
        costs = _known(self._target_key)
        self.measured = costs is not None  # and believed; else `steps` are still to be made
        if costs is None and engine.watched.samples[1, 1, False]:  # the probe's passes
            costs = measuring.table(engine.watched)
        self._trials = Trials(engine.target.steady) if costs is None else None
        self.controller = ProfitController(
            costs or _unmeasured(), cutting=engine.cutting, glances=engine.target.steady
        )
        self._pair_key = ""
        self.pair(drafters)

    # -- a controller; on the worker's thread ---------------------------------

    def due(self, n_texts: int) -> int:
        return self.controller.due(n_texts) if self._trials is None else n_texts

    def rests(self) -> bool:
        return self._trials is None and self.controller.rests()

    def notice(self) -> None:
        self.controller.notice()

    def hear(self, seq_id: int, looks: Sequence[Look], n_generated: int) -> Choice | None:
        return self.controller.hear(seq_id, looks, n_generated)

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Sequence[Shown], n_generated: int
    ) -> None:
        self.controller.consider(seq_id, offers, shown, n_generated)

    def again(self, view: View) -> Choice | None:
        return None if self._trials is not None else self.controller.again(view)

    def choose(self, views: Sequence[View]) -> list[Choice]:
        trial = None if self._trials is None else self._trials.next(views)
        if trial is None:
            return self.controller.choose(views)
        at, tried = trial.at, list(views)
        tried[at] = replace(views[at], window=trial.window, proposers=(trial.proposer,))
        choices = self.controller.choose(tried)
        choices[at] = replace(choices[at], reason="trial")
        return choices

    def prices(self) -> CostTable | None:
        return self.controller.prices()

    def observe(self, rounds: Sequence[Round]) -> None:
        self.controller.observe(rounds)
        if self._trials is not None and self._trials.observe(rounds):
            self._take_over(self._trials.table())

    # -- what is kept ---------------------------------------------------------

    def pair(self, drafters: Sequence[Path]) -> None:
        """What was learned of these drafters; what is known of those before is kept on disk."""
        key = self._engine.pair_key([path for path in drafters if path.is_file()])
        if key != self._pair_key:
            self.save()
            self._pair_key = key
            engine, costs = self._engine, self.controller.costs
            self.controller = learned_controller(
                costs, key, engine.cutting, glances=engine.target.steady
            )

    def save(self) -> None:
        """Keep what was learned, so that the next start begins with it."""
        if self._pair_key:
            keep_learned(self._pair_key, self.controller)

    # -- prices; on the worker's thread, while nobody waits --------------------

    def steps(self) -> deque[Step]:
        """What is left to be timed, in parts that a request may come between."""
        engine = self._engine
        n = engine.settings.context.n_sequences
        wanted = measuring.tasks(engine.watched, None, engine.widest, n, engine.most_rows)
        if self.measured:
            return deque()
        return deque([*(partial(self._time, run) for _, run in wanted), self._settle])

    def _time(self, run: Step) -> None:
        """With the threads that prices are kept for."""
        self._engine.crews.by_rule()
        run()

    def _settle(self) -> None:
        """Take over what was measured."""
        found = measuring.table(self._engine.watched, origin=_ORIGIN)
        self._take_over(found)
        self._trials = None
        self.measured = found.stable
        self._engine.watched.forget()  # should it be measured again, then afresh
        if found.stable:
            store.save("costs", self._target_key, {**found.to_dict(), "drafter": None})
        else:
            log.info("the machine is busy: what passes cost here will be measured again")

    def _take_over(self, found: CostTable) -> None:
        """Other prices for the target; what was learned and the drafter's price stay."""
        before = self.controller.costs
        found.drafter, found.drafters = before.drafter, before.drafters
        self.controller.reprice(found)


def _known(key: str) -> CostTable | None:
    return store.read("costs", key, CostTable.from_dict)


def _unmeasured() -> CostTable:
    """Prices at which no bet can pay: each row as much as a pass of its own."""
    return CostTable({(1, 1): Curve({1: 1.0}, {})}, name="unmeasured", stable=False)

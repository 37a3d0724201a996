"""The ground a profit controller stands on in a server: prices, measured while nobody waits.

Knows the engine and what earlier runs kept; knows nothing of HTTP. The target answers before it is
measured: until then every row is taken to cost as much as a pass, and nothing is drafted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from parlay import store
from parlay.control.choice import Choices, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.decoding.round import Round
from parlay.engine.calibration import keep_learned, learned_controller
from parlay.engine.engine import Engine
from parlay.timing import measuring

log = logging.getLogger("parlay.server")
Step = Callable[[], None]
_ORIGIN = "measured by the server while it was idle"


class Pricing:
    """The controller of a server: its prices may come later, and its pair may change."""

    def __init__(self, engine: Engine, drafters: Sequence[Path]) -> None:
        self._engine = engine
        self._target_key = engine.pair_key(())
        costs = _known(self._target_key)
        self.measured = costs is not None  # and believed; else `steps` are still to be made
        if costs is None and engine.watched.samples[1, 1, False]:  # the probe's passes
            costs = measuring.table(engine.watched)
        self.prices = costs or _unmeasured()
        self._pair_key = ""
        self.pair(drafters)

    # -- a controller; on the engine's thread ---------------------------------

    def choose(self, views: Sequence[View]) -> Choices:
        return self.controller.choose(views)

    def observe(self, rounds: Sequence[Round]) -> None:
        self.controller.observe(rounds)

    def kept(self) -> dict[str, Any]:
        return self.controller.kept()

    # -- what is kept ---------------------------------------------------------

    def pair(self, drafters: Sequence[Path]) -> None:
        """What was learned of these drafters; what is known of those before is kept on disk."""
        key = self._engine.pair_key([path for path in drafters if path.is_file()])
        if key != self._pair_key:
            self.save()
            self._pair_key = key
            self._control()

    def _control(self) -> None:
        """By the prices as they are, and what was learned of the pair."""
        engine = self._engine
        promise = engine.settings.promise
        self.controller = learned_controller(self.prices, self._pair_key, engine.cutting, promise)

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
        self._engine.cores.by_rule()
        run()

    def _settle(self) -> None:
        """Take over what was measured."""
        found = measuring.table(self._engine.watched, origin=_ORIGIN)
        self._take_over(found)
        self.measured = found.stable
        self._engine.watched.forget()  # should it be measured again, then afresh
        if found.stable:
            store.save("costs", self._target_key, {**found.to_dict(), "drafter": None})
        else:
            log.info("the machine is busy: what passes cost here will be measured again")

    def _take_over(self, found: CostTable) -> None:
        """Other prices for the target; what was learned and the drafters' prices stay."""
        found.drafter, found.drafters = self.prices.drafter, self.prices.drafters
        self.save()
        self.prices = found
        self._control()
        if self._engine.prices is not None:  # this controls it
            self._engine.prices = found


def _known(key: str) -> CostTable | None:
    return store.read("costs", key, CostTable.from_dict)


def _unmeasured() -> CostTable:
    """Prices at which no bet can pay: each row as much as a pass of its own."""
    return CostTable({(1, 1): Curve({1: 1.0}, {})}, name="unmeasured", stable=False)

"""Measures a server in its idle moments: plain passes for the speed-up, then prices for the bets.

Knows the engine's slots; gives way to every request. A step runs on the worker's thread, between
two rounds, and only if no answer is being made and none ended just now: it takes the slots, and who
goes on at once, as agents do, should find there what was read before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from parlay.backend.plain_speed import PlainSpeed
from parlay.engine.engine import Engine
from parlay.engine.pricing import Pricing
from parlay.errors import ParlayError
from parlay.timing.measuring import time_plain

log = logging.getLogger("parlay.server")
Step = Callable[[], None]
_PAUSE_S = 0.25
_QUIET_S = 1.0
# A busy machine's prices are not believed: try again after this long, then five times as long.
_AGAIN_S = (60.0, 300.0, 1500.0)


class WarmUp:
    """What is still to be measured."""

    def __init__(self, engine: Engine, baseline: PlainSpeed) -> None:
        self._engine = engine
        n = engine.settings.context.n_sequences
        self._steps: deque[Step] = deque(
            partial(self._time_plain, baseline, i) for i in range(1, n + 1)
        )
        self._pricing: Pricing | None = None
        self._wanted = asyncio.Event()
        self._last_used, self._quiet_since = 0, float("-inf")

    def price(self, pricing: Pricing) -> None:
        """Windows will be chosen by time: its prices are wanted."""
        self._pricing = pricing
        self._steps += pricing.steps()
        self._wanted.set()

    async def run(self, patience_s: float) -> None:
        """Everything that is left, as far as requests leave time for it."""
        end = time.monotonic() + patience_s
        while self._steps and time.monotonic() < end:
            if await self._made(self._steps[0]):
                self._steps.popleft()
            else:
                await asyncio.sleep(_PAUSE_S)

    async def go_on(self) -> None:
        """As long as the server runs: the rest, and again whatever could not be believed."""
        while True:
            self._wanted.clear()
            await self._finish()
            await self._wanted.wait()

    async def _finish(self) -> None:
        await self.run(float("inf"))
        for wait_s in _AGAIN_S:
            if self._pricing is None or self._pricing.measured:
                return
            await asyncio.sleep(wait_s)
            self._steps += self._pricing.steps()
            await self.run(float("inf"))

    async def _made(self, step: Step) -> bool:
        """Whether that is done with; a pass that fails costs a price, never an answer."""
        try:
            return await asyncio.wrap_future(self._on_worker(step))
        except ParlayError as error:
            log.warning("a measurement failed and was left out: %s", error)
            return True

    def _on_worker(self, step: Step) -> Future[bool]:
        """Whether the step was made: not while an answer is, nor right after one."""
        return self._engine.call(partial(self._make, step))

    def _make(self, step: Step) -> bool:
        if self._engine.active or self._engine.n_waiting or not self._quiet():
            return False
        self._vacate()
        step()
        return True

    def _quiet(self) -> bool:
        """Whether no answer has ended for a while."""
        if (used := self._engine.slots.last_used) != self._last_used:
            self._last_used, self._quiet_since = used, time.monotonic()
        return time.monotonic() - self._quiet_since >= _QUIET_S

    def _vacate(self) -> None:
        """Timed passes use the slots: the next turn finds what was there where it was put away."""
        self._engine.slots.vacate()

    def _time_plain(self, baseline: PlainSpeed, n_sequences: int) -> None:
        target = self._engine.target
        for s in range(n_sequences):
            target.clear(s)
        baseline.set(n_sequences, time_plain(target, n_sequences))

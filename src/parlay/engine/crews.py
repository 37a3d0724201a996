"""Lets the crew that is fastest now make each pass, and prices bets for it.

Hears rounds; knows the target's threads, which of their numbers keep the bits, and the price table.
How a crew waits changes no bit, how many threads it has may: in exact mode only those that were
tried on this text's length make a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from parlay.control.crew import Crew
from parlay.control.crew_choice import CrewChoice
from parlay.control.prices.cost import CostTable
from parlay.decoding.round import Round
from parlay.decoding.span import Span
from parlay.engine.exact.exactness import Inexact
from parlay.engine.exact.thread_bits import ThreadBits, is_prompt
from parlay.llama.threads import Threads

Prices = Callable[[], CostTable | None]


@dataclass(frozen=True, slots=True)
class _Settled:
    """The prices as the chosen crew left them under one load."""

    table: CostTable
    crew: Crew
    level: int
    pace: float


class Crews:
    """On the worker's thread."""

    def __init__(
        self, threads: Threads, choice: CrewChoice, bits: ThreadBits, prices: Prices
    ) -> None:
        self.choice = choice
        self._threads = threads
        self._bits = bits
        self._prices = prices
        self._used = choice.rule
        self._settled: _Settled | None = None

    def ready(self, spans: Sequence[Span], exact: bool) -> Inexact | None:
        """Before a pass; why its bits may not be those of the rule, if they may not."""
        reads = is_prompt(spans)
        if reads or any(span.start == 0 for span in spans):
            self.choice.look()
        crew = self._wanted(reads)
        while exact and not self._bits.same(crew.threads, spans):
            self.choice.refuse(crew)
            crew = self._wanted(reads)
        self._use(crew)
        return None if self._bits.known(crew.threads, spans) else Inexact.THREADS

    def _wanted(self, reads: bool) -> Crew:
        """A prompt takes as long as many passes: nobody races there."""
        return self.choice.chosen if reads else self.choice.now

    def rest(self) -> None:
        """Now and then while there is nothing to do: so the next text begins with a fresh look."""
        self.choice.look()

    def by_rule(self) -> None:
        """Before passes that are measured."""
        self._use(self.choice.rule)

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """For passes whose bits are compared, by as many threads as the rule has. Where others want
        cores they sleep: spinning, each pass might take seconds of somebody's answer."""
        rule = self.choice.rule
        if self.choice.chosen == rule:
            self._use(rule)
            yield
            return
        with self._threads.meanwhile(rule.threads):
            yield

    def close(self) -> None:
        self._threads.close()

    def to_dict(self) -> dict[str, Any]:
        """Who won under which load, and which numbers of threads keep the bits."""
        return {**self.choice.to_dict(), **self._bits.to_dict()}

    def recall(self, record: Mapping[str, Any]) -> None:
        """From an earlier run; raises ValueError or LookupError where it is no record."""
        self.choice.recall(record)
        self._bits.recall(record)

    def _use(self, crew: Crew) -> None:
        if crew != self._used:
            self._used = crew
            self._threads.use(crew.threads, sleeps=crew.sleeps)

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one pass."""
        first = rounds[0]
        if first.reads_prompt:
            return
        raced = self.choice.racing
        shape = (len(rounds), first.n_pass_rows, max(r.n_context for r in rounds).bit_length())
        self.choice.observe(self._used, shape, first.timing.verify_s)
        if not raced:
            self._note()
        self._reprice()

    # -- prices ---------------------------------------------------------------

    def _note(self) -> None:
        table, choice = self._prices(), self.choice
        if table is not None:
            self._settled = _Settled(table, choice.chosen, choice.level, table.pace)

    def _reprice(self) -> None:
        """A crew that is not the one prices were learned under: they follow at once, drafters' too.
        Those share the threads, and their own pace is over the machine's."""
        settled, table, choice = self._settled, self._prices(), self.choice
        if settled is None or table is not settled.table or choice.now == self._used:
            return
        if settled.level != choice.level:
            return  # no race compares two loads: rounds will tell
        factor = choice.over(choice.now) / choice.over(settled.crew)
        table.pace = settled.pace * factor

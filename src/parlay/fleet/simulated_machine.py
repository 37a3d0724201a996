"""One machine: the runtime's scheduler played on a clock of its own, with measured prices.

Follows `runtime/scheduler.py`: slots, chunks of prompts, one pass for all that decode; and
llama.cpp, which splits a pass over unequal spans into several of equal ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from parlay.errors import BadRequest
from parlay.fleet.arrivals import Arrival
from parlay.fleet.exact_rows import ExactRows
from parlay.fleet.odds import MAX_WINDOW, Draws, Odds
from parlay.fleet.prices import Prices

Windows = Callable[[int], int]  # sequences that decode -> the window of their round


@dataclass(frozen=True, slots=True)
class PassShape:
    """How a machine is set up."""

    slots: int
    chunk: int = 128  # tokens of a prompt read in one pass
    batch: int = 512  # most rows in one pass
    # Passes stay in an exact class, and prompts are read in passes of their own; None: any shape.
    exact: ExactRows | None = None
    splits: bool = True  # llama.cpp computes unequal spans apart; other engines do not

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= self.batch or not 1 <= self.chunk <= self.batch:
            raise BadRequest("slots and chunk must be from 1 to the rows of a batch")


@dataclass(slots=True)
class SimulatedJob:
    """A request on its way."""

    arrival: Arrival
    n_pending: int  # tokens of the prompt still to be read
    n_context: int
    slot: int = -1
    n_made: int = 0
    started_s: float = -1.0
    first_s: float = -1.0  # when its first token was there
    done_s: float = -1.0

    @classmethod
    def of(cls, arrival: Arrival) -> SimulatedJob:
        n_reused = arrival.n_reused
        return cls(arrival, arrival.n_prompt - n_reused, n_reused)

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival.at_s

    @property
    def tpot_s(self) -> float:
        """Seconds for each token after the first; 0 for an answer of one."""
        return (self.done_s - self.first_s) / max(1, self.n_made - 1)


def plain(_n_sequences: int) -> int:
    """No speculation."""
    return 0


class SimulatedMachine:
    """Runs steps; time passes only in `step`."""

    def __init__(
        self, prices: Prices, shape: PassShape, odds: Odds | None, windows: Windows, rng: Random
    ) -> None:
        self._prices = prices
        self._shape = shape
        self._odds = odds
        self._draws = Draws(odds, rng) if odds is not None else None
        self._windows: Windows = windows if odds is not None else plain
        self._waiting: deque[SimulatedJob] = deque()
        self._active: list[SimulatedJob] = []
        # The slot idle for longest comes first, as in the runtime.
        self._free = deque(range(shape.slots))
        self._last = (0, 0)  # sequences and rows of the last pass
        self.busy_s = 0.0
        self.n_tokens = 0

    @property
    def load(self) -> int:
        """Requests that are here, running or not."""
        return len(self._waiting) + len(self._active)

    def add(self, job: SimulatedJob) -> None:
        self._waiting.append(job)

    def step(self, now: float) -> float:
        """One round for all that decode and a part of what must be read; when it ends."""
        self._admit(now)
        began = now
        for group in self._groups():
            now = self._run(group, now)
            self._retire(now)
        self.busy_s += now - began
        return now

    def _admit(self, now: float) -> None:
        while self._waiting and self._free:
            job = self._waiting.popleft()
            job.slot = self._free.popleft()
            job.started_s = now
            self._active.append(job)

    def _groups(self) -> list[list[SimulatedJob]]:
        reading = [job for job in self._active if not job.n_made]
        decoding = [job for job in self._active if job.n_made]
        exact = self._shape.exact
        groups = (
            [decoding + reading] if exact is None else [reading[:1], *self._in(exact, decoding)]
        )
        return [group for group in groups if group]

    def _in(
        self, exact: ExactRows, decoding: Sequence[SimulatedJob]
    ) -> Iterator[list[SimulatedJob]]:
        """Those who decode, parted into passes of the class: as many as decode fastest."""
        left = sorted(decoding, key=lambda job: job.slot)
        while left:
            numbers = exact.numbers(_n_neighbours([job.slot for job in left]))
            context = self._context(left)
            n = max(numbers, key=lambda n: n / self._prices.pass_s(n, exact.floor(n), context))
            yield left[:n]
            left = left[n:]

    def _retire(self, now: float) -> None:
        done = [job for job in self._active if job.n_made >= job.arrival.n_answer]
        for job in done:
            job.done_s = now
            self._free.append(job.slot)
        if done:
            self._active = [job for job in self._active if job.done_s < 0]

    # -- one pass -------------------------------------------------------------

    def _run(self, group: Sequence[SimulatedJob], now: float) -> float:
        decoding = [job for job in group if job.n_made]
        drafted = self._draft(decoding)
        rows = self._rows(drafted)
        spans = {job.slot: n for job, n in zip(decoding, rows, strict=True)}
        chunks = self._chunks(group, self._shape.batch - sum(spans.values()))
        reading = {job.slot: n for job, n in chunks}
        seconds = self._pass_s(spans, reading, self._context(group))
        now += seconds + self._draft_s(drafted)
        self._take(decoding, drafted)
        for job, n in chunks:
            self._read(job, n, now)
        return now

    def _draft(self, decoding: Sequence[SimulatedJob]) -> list[int]:
        """The drafted tokens of each sequence."""
        n = len(decoding)
        if self._draws is None or n == 0:
            return [0] * n
        most = min(self._windows(n), MAX_WINDOW)
        if self._shape.exact is not None:
            most = min(most, self._shape.exact.widest(n))
        most = min(most, self._shape.batch // n - 1)
        offered = self._draws.offered
        return [
            min(most, job.arrival.n_answer - job.n_made - 1) if most and offered() else 0
            for job in decoding
        ]

    def _rows(self, drafted: Sequence[int]) -> list[int]:
        """Of each sequence; in a class all have as many, and padding where that is not enough."""
        exact = self._shape.exact
        if exact is None or not drafted:
            return [1 + k for k in drafted]
        return [exact.padded(len(drafted), 1 + max(drafted))] * len(drafted)

    def _draft_s(self, drafted: Sequence[int]) -> float:
        if self._odds is None or not self._odds.drafts_by_model:
            return 0.0
        made = [k for k in drafted if k]
        return self._prices.draft_s(max(made), len(made)) if made else 0.0

    def _chunks(self, group: Sequence[SimulatedJob], room: int) -> list[tuple[SimulatedJob, int]]:
        found = []
        for job in group:
            if job.n_made:
                continue
            n = min(job.n_pending, self._shape.chunk - job.n_context % self._shape.chunk)
            if n <= room:
                found.append((job, n))
                room -= n
        return found

    def _context(self, group: Sequence[SimulatedJob]) -> int:
        return sum(job.n_context for job in group) // len(group)

    def _pass_s(self, spans: dict[int, int], reading: dict[int, int], n_context: int) -> float:
        if not self._shape.splits:
            together = (
                self._prices.pass_s(
                    max(1, len(spans)), -(-sum(spans.values()) // max(1, len(spans))), n_context
                )
                if spans
                else 0.0
            )
            return together + sum(self._prices.prompt_s(n) for n in reading.values())
        seconds = 0.0
        for n, rows, slots in equal_parts({**spans, **reading}, self._shape.batch):
            changed, self._last = (n, rows) != self._last, (n, rows)
            if n == 1 and slots[0] in reading:
                seconds += self._prices.prompt_s(rows)
            else:
                seconds += self._prices.pass_s(n, rows, n_context, changed)
        return seconds

    def _take(self, decoding: Sequence[SimulatedJob], drafted: Sequence[int]) -> None:
        for job, k in zip(decoding, drafted, strict=True):
            made = 1 + (self._draws.accepted(k) if k and self._draws else 0)
            made = min(made, job.arrival.n_answer - job.n_made)
            job.n_made += made
            job.n_context += made
            self.n_tokens += made

    def _read(self, job: SimulatedJob, n: int, now: float) -> None:
        job.n_pending -= n
        job.n_context += n
        if job.n_pending == 0:  # the prompt's end gives the first token
            job.n_made = 1
            job.first_s = now
            self.n_tokens += 1


def _n_neighbours(slots: Sequence[int]) -> int:
    """Of slots in order, how many of the first follow each other: llama.cpp joins no others."""
    n = 1
    while n < len(slots) and slots[n] == slots[n - 1] + 1:
        n += 1
    return n


def equal_parts(spans: dict[int, int], batch: int) -> list[tuple[int, int, list[int]]]:
    """How llama.cpp splits a pass: neighbouring sequences, as many rows of each as all have.

    Gives the sequences, the rows of each and the slots of every part (its `split_equal`).
    """
    left = dict(sorted(spans.items()))
    parts = []
    while left:
        slots: list[int] = []
        for slot in left:
            if slots and slot != slots[-1] + 1:
                break
            slots.append(slot)
        rows = min(*(left[slot] for slot in slots), max(1, batch // len(slots)))
        parts.append((len(slots), rows, slots))
        for slot in slots:
            left[slot] -= rows
            if left[slot] == 0:
                del left[slot]
    return parts

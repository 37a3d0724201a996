"""Measures what passes cost on this machine: the cost table a controller starts from.

Knows only `Passes`. A `Stopwatch` around a model also times passes made for another purpose: the
probe of exact shapes makes most of those that matter, so that start-up pays for them once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median, quantiles
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.prices.undoing import Undoing
from parlay.decoding.span import Passes, Span
from parlay.errors import BadRequest
from parlay.proposers.follower import Follower
from parlay.timing.probe_text import real_tokens, rewind

log = logging.getLogger("parlay.timing")

Clock = Callable[[], float]
Progress = Callable[[float, str], None]  # share done, and what is being done


def quietly(_share: float, _what: str) -> None:
    """Nobody wants to see it."""


# Python's own part of a round, beside choosing one token per row.
OVERHEAD_S = 60e-6
_N_PREFIX = 24
_N_TOGETHER = 8  # tokens before passes over several sequences: every one of them reads its own
# Small shapes are used most and change most; of the others two passes have to do, and one on a CPU,
# where it is long: later rounds correct what it misled about.
_N_SAMPLES, _N_SAMPLES_WIDE, _SMALL_ROWS = 3, 2, 5
# Every shape up to here is measured, then those where kernels are known to switch.
_DENSE_ROWS = 9
# Drafts whose rejection is timed have more tokens than this.
_N_REJECTED = 2
_N_CHANGES = 2
_SPARSE_ROWS = (12, 16, 17, 24, 32)
_ROWS_EACH = (1, 2, 4)  # of several sequences
# And on a GPU, where they cost little, those that a sure draft of one sequence may take.
_WIDE_ROWS = (33, 65)
_N_STEPS = 8
# For all passes; those of several sequences come last, and there are more where changes cost.
_BUDGET_S, _BUDGET_CHANGES_S = 4.0, 6.0
_LONGEST = 1024  # tokens of a text that goes on, so that attention costs next to nothing
_N_WARM_UP = 2
_CATCH_UPS = (2, 8, 32)
# On a GPU a text is read in next to no time, and no line through the rows above tells that.
_WHOLE_TEXT = 256
# On an idle machine half of the single passes lie within 2 to 5 % of each other.
LARGEST_SPREAD = 0.2

_Key = tuple[int, int, bool]  # sequences, rows, whether the shape differed from the last one


class Stopwatch:
    """A model whose passes are timed."""

    def __init__(self, passes: Passes, clock: Clock = perf_counter) -> None:
        self._passes = passes
        self.context_size = passes.context_size
        self.n_vocab = passes.n_vocab
        self.sample = passes.sample
        self.steady = passes.steady
        self.free_rollback = passes.free_rollback
        self._clock = clock
        self._last: tuple[int, ...] = ()
        self._before: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self.samples: defaultdict[_Key, list[float]] = defaultdict(list)
        # The second pass of a shape: a GPU records then what it will repeat from the third one on.
        self.seconds: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        # Taking a rejected draft back, and reading again what held of it.
        self.rollbacks: list[float] = []

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        shape = tuple(len(span.tokens) for span in spans)
        started = self._clock()
        rows = self._passes.decode(spans)
        seconds = self._clock() - started
        if all(span.n_logits for span in spans):  # else a prompt was read
            self._note(shape, seconds)
        self._before = self._last
        self._last = shape
        return rows

    def forget(self) -> None:
        """Everything timed so far; what is timed next is believed on its own."""
        self.samples.clear()
        self.seconds.clear()
        self.rollbacks.clear()

    def _note(self, shape: tuple[int, ...], seconds: float) -> None:
        n, rows = len(shape), sum(shape)
        if not self.steady:
            self.samples[n, rows, False].append(seconds)
        elif shape not in self._seen:  # it also loads its kernels: no later one pays for that
            self._seen.add(shape)
        elif shape != self._last:
            self.samples[n, rows, True].append(seconds)
        elif shape != self._before:
            self.seconds[n, rows].append(seconds)
        else:
            self.samples[n, rows, False].append(seconds)

    def length(self, seq_id: int) -> int:
        return self._passes.length(seq_id)

    def truncate(self, seq_id: int, length: int) -> None:
        self._passes.truncate(seq_id, length)

    def reject(self, seq_id: int, length: int) -> None:
        """Take the end of a draft back; timed."""
        started = self._clock()
        self._passes.truncate(seq_id, length)
        self.rollbacks.append(self._clock() - started)

    def reusable(self, seq_id: int, length: int) -> int:
        return self._passes.reusable(seq_id, length)

    def mark(self, seq_id: int, *, lasting: bool = False) -> None:
        self._passes.mark(seq_id, lasting=lasting)

    def clear(self, seq_id: int) -> None:
        self._passes.clear(seq_id)


def measure(
    target: Stopwatch,
    drafter: Passes | None,
    *,
    max_window: int,
    n_sequences: int = 1,
    most_rows: int = 0,
    budget_s: float | None = None,
    progress: Progress = quietly,
    clock: Clock = perf_counter,
    origin: str = "measured at start-up",
) -> CostTable:
    """The cost table, from what the stopwatch holds already and passes that are still lacking.

    What the budget leaves no time for is interpolated. A busy machine shows in the spread of equal
    passes: the table then says that it is not stable.
    """
    if budget_s is None:
        budget_s = _BUDGET_CHANGES_S if target.steady and n_sequences > 1 else _BUDGET_S
    deadline = clock() + budget_s
    timed = Stopwatch(drafter, clock) if drafter is not None else None
    wanted = list(tasks(target, timed, max_window, n_sequences, most_rows))
    n_needed = 1 if timed is None else 2  # a pass of each: without it there is no table
    try:
        for i, (name, run) in enumerate(wanted):
            if i >= n_needed and clock() > deadline:
                break
            progress(i / len(wanted), name)
            run()
        progress(1.0, "done")
    finally:
        for seq_id in range(n_sequences):
            target.clear(seq_id)
    return table(target, timed, origin, clock)


def measure_drafter(drafter: Passes, clock: Clock = perf_counter) -> DrafterCost:
    """What a drafter costs that was loaded after the table was made."""
    timed = Stopwatch(drafter, clock)
    _time_drafter(timed)
    return _drafter_cost(timed, seconds_per_choice(timed.n_vocab, clock))


def measure_follower(drafter: Follower, clock: Clock = perf_counter) -> DrafterCost:
    """What a drafter costs that reads the target's states: reading them, and drafting."""

    def seconds(run: Callable[[int], None], n: int) -> float:
        taken = []
        for _ in range(_N_SAMPLES + 1):  # the first one of a shape is slow
            started = clock()
            run(n)
            taken.append(clock() - started)
        return median(taken[1:])

    reads = {n: seconds(drafter.rehearse_reading, n) for n in (1, *_CATCH_UPS)}
    if drafter.block_size is not None:
        widths = {2, drafter.block_size // 2 + 1, drafter.block_size}
        blocks = {n: seconds(drafter.rehearse_drafting, n - 1) for n in widths}
        block = Curve(blocks, {})
        return DrafterCost(Curve(reads, {}), False, block=block, longest=drafter.longest)
    step = seconds(drafter.rehearse_drafting, 2) / 2
    behind = {n + 1: spent + step for n, spent in reads.items()}
    return DrafterCost(Curve({1: step, **behind}, {}), False, longest=drafter.longest)


Task = tuple[str, Callable[[], None]]


def tasks(
    target: Stopwatch,
    drafter: Stopwatch | None,
    max_window: int,
    n_sequences: int,
    most_rows: int = 0,
) -> Iterable[Task]:
    """What there is to time, the most important first; `most_rows` that a single one may take."""
    yield "single tokens", partial(_time_shape, target, 1, _N_STEPS)
    if drafter is not None:
        yield "drafter", partial(_time_drafter, drafter)
    if max_window > target.free_rollback:
        yield "rejected drafts", partial(_time_rollback, target)
    widest = max_window + 1
    shapes = [b for b in (*range(2, _DENSE_ROWS + 1), *_SPARSE_ROWS) if b < widest]
    wide = [b for b in _WIDE_ROWS if widest < b <= most_rows] if target.steady else []
    first = [b for b in (2, 4, 8, 16) if b < widest]  # kernels switch beyond 8 and 16
    for b in (*first, widest, *wide, *(b for b in shapes if b not in first)):
        n_wide = _N_SAMPLES_WIDE if target.steady else 1
        n = _N_SAMPLES if b <= _SMALL_ROWS else n_wide
        yield f"{b} rows", partial(_time_shape, target, b, n)
    for n in numbers_up_to(n_sequences):
        yield f"{n} sequences", partial(_time_together, target, n)


def numbers_up_to(n_sequences: int) -> list[int]:
    """So many sequences, and halves of it: what lies between two of them is interpolated."""
    numbers = []
    while n_sequences > 1:
        numbers.append(n_sequences)
        n_sequences = -(-n_sequences // 2)
    return numbers


def _time_shape(passes: Stopwatch, rows: int, n_wanted: int) -> None:
    """Passes over so many rows after a short text, until there are enough of them."""
    have = len(passes.samples[1, rows, False])
    if have >= n_wanted or _N_PREFIX + rows > passes.context_size:
        return
    shapes = [rows] * (n_wanted - have)
    if passes.steady:  # twice until it is steady, and then to and fro for the price of a change
        shapes += [rows, rows, *(1, 1, rows, rows) * _N_CHANGES]
    for i, n in enumerate(shapes):
        _back_to_prefix(passes, n)
        # Each time another place of the text: a mixture's price depends on what it reads.
        passes.decode([Span(0, passes.length(0), real_tokens(passes, n, place=i + 1), n)])


def _back_to_prefix(passes: Stopwatch, n_rows: int) -> None:
    """A short text in the cache. What cannot be cut goes on instead, as long as there is room: to
    read the text again would take longer than what is measured."""
    prefix = real_tokens(passes, _N_PREFIX)
    if not passes.length(0):
        passes.decode([Span(0, 0, prefix, 0)])
    elif passes.free_rollback >= passes.context_size:
        rewind(passes, prefix)
    elif passes.length(0) + n_rows > min(passes.context_size, _LONGEST):
        passes.clear(0)
        passes.decode([Span(0, 0, prefix, 0)])


def _time_rollback(passes: Stopwatch) -> None:
    """Drafts that are not taken back for nothing, of which the first token holds."""
    rows = max(passes.free_rollback, _N_REJECTED) + 2
    if passes.rollbacks or 2 * (_N_PREFIX + rows) > passes.context_size:
        return
    tokens = real_tokens(passes, _N_PREFIX + rows)
    passes.clear(0)
    passes.decode([Span(0, 0, tokens[:_N_PREFIX], 0)])
    for _ in range(1 + _N_SAMPLES):
        at = passes.length(0)
        passes.decode([Span(0, at, tokens[_N_PREFIX:], rows)])
        passes.reject(0, at + 1)
    del passes.rollbacks[0]  # it also allocated what it copies to
    passes.clear(0)


def _time_together(passes: Stopwatch, n_sequences: int) -> None:
    """Passes over several sequences, with few rows of each; their texts are read once."""
    sequences, most = range(n_sequences), max(_ROWS_EACH)
    texts = [real_tokens(passes, _N_TOGETHER + most, place=s) for s in sequences]
    shapes = [*_ROWS_EACH]
    if passes.steady:  # until each is steady, and then to and fro for the price of a change
        shapes = [n for n in _ROWS_EACH for _ in range(1 + _N_SAMPLES)]
        shapes += [n for n in _ROWS_EACH for _ in range(2)] * _N_CHANGES
    for rows in shapes:
        for s in sequences:
            rewind(passes, texts[s][:_N_TOGETHER], s)
        end = _N_TOGETHER + rows
        passes.decode([Span(s, _N_TOGETHER, texts[s][_N_TOGETHER:end], rows) for s in sequences])


def _time_drafter(drafter: Stopwatch) -> None:
    """Single steps, as it drafts; then the passes with which it catches up, as far as a pass and
    the context hold them."""
    spans = [1] * (_N_WARM_UP + _N_STEPS) + [m for size in _CATCH_UPS for m in (size, 1)]
    if drafter.steady:  # again, now that the kernels are loaded: and one of them may be recorded
        spans += [m for size in _CATCH_UPS for m in (size, 1, 1)] * _N_SAMPLES
        spans += [_WHOLE_TEXT, 1, _WHOLE_TEXT, 1]
    tokens = real_tokens(drafter, sum(spans))
    at = 0
    try:
        for i, n in enumerate(spans):
            if n > drafter.context_size:
                return
            if at + n > drafter.context_size:
                drafter.clear(0)
                at = 0
            if i == _N_WARM_UP:  # the steps before found cold caches, as if the machine were busy
                drafter.forget()
            drafter.decode([Span(0, at, tokens[at : at + n], 1)])
            at += n
    except BadRequest as error:
        log.info("a drafter's longer passes were not timed: %s", error)
    finally:
        drafter.clear(0)


def seconds_per_choice(n_vocab: int, clock: Clock) -> float:
    """Choosing a token from one row of logits."""
    row = np.zeros(n_vocab, np.float32)
    started = clock()
    for _ in range(_N_STEPS):
        row.argmax()
    return (clock() - started) / _N_STEPS


def table(
    target: Stopwatch,
    drafter: Stopwatch | None = None,
    origin: str = "measured at start-up",
    clock: Clock = perf_counter,
) -> CostTable:
    """The prices as far as passes were timed; there must be at least one."""
    choice_s = seconds_per_choice(target.n_vocab, clock)
    together = sorted({n for n, _, _ in target.samples})
    curves = {(1, n): _curve(target, n, OVERHEAD_S, choice_s) for n in together}
    cost = None if drafter is None else _drafter_cost(drafter, choice_s)
    stable = _is_stable(target) and (drafter is None or _is_stable(drafter))
    undoing = _undoing(target, curves[1, together[0]].steady[1])
    return CostTable(curves, cost, undoing=undoing, name="measured", origin=origin, stable=stable)


def _undoing(target: Stopwatch, plain_s: float) -> Undoing:
    """What a rejection costs; where none was timed, about two passes: one that puts back, one that
    reads again."""
    if target.free_rollback >= target.context_size:
        return Undoing()
    seconds = median(target.rollbacks) if target.rollbacks else 2 * plain_s
    return Undoing(target.free_rollback, seconds)


def _drafter_cost(drafter: Stopwatch, choice_s: float) -> DrafterCost:
    return DrafterCost(_curve(drafter, 1, 0.0, choice_s), single_steps=drafter.steady)


def _curve(passes: Stopwatch, n_sequences: int, fixed_s: float, choice_s: float) -> Curve:
    def price(seconds: list[float], rows: int) -> float:
        return median(seconds) + fixed_s + rows * choice_s

    prices: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for (n, rows, changed), seconds in passes.samples.items():
        if n == n_sequences and seconds:
            prices[changed][rows] = price(seconds, rows)
    steady, changed_ = prices[False], prices[True]
    again = [
        price(seconds, rows) - steady[rows]
        for (n, rows), seconds in passes.seconds.items()
        if n == n_sequences and rows in steady
    ]
    settling_s = max(0.0, median(again)) if again else 0.0
    # A shape that was only ever seen as a changed one is at least known from above; so is one whose
    # steady passes were not: a longer text may change it, too.
    known = {rows: min(s, changed_.get(rows, s)) for rows, s in steady.items()}
    return Curve({**changed_, **known}, changed_, settling_s)


def _is_stable(passes: Stopwatch) -> bool:
    """Whether equal passes took equal time."""
    single = passes.samples[1, 1, False]
    if len(single) < _N_SAMPLES:
        return False
    low, middle, high = quantiles(single, n=4)
    return high - low <= LARGEST_SPREAD * middle


def time_plain(target: Passes, n_sequences: int, repeats: int = 3) -> float:
    """The time of a plain pass, on empty slots; they are empty again afterwards."""
    times = []
    try:
        for i in range(repeats + 1):
            spans = [Span(s, i, real_tokens(target, 1, place=s + i), 1) for s in range(n_sequences)]
            started = perf_counter()
            target.decode(spans)
            times.append(perf_counter() - started)
    finally:
        for s in range(n_sequences):
            target.clear(s)
    return median(times[1:])  # the first of a new shape is slower

"""How many threads make a pass on a CPU: one for each core that others leave, one at least.

Knows the system's counters and which numbers of threads keep the bits; nothing of models. Threads
that spin for a core that somebody else has burn the others' time until it comes back: two threads
make 8.7 tokens a second where others use both of two cores, one makes 20.5 (results at ba28c59).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil

from parlay.decoding.span import Span
from parlay.engine.exact.shapes import Inexact
from parlay.engine.exact.thread_bits import ThreadBits
from parlay.llama.threads import Threads

# Between looks at the counters, which move in hundredths of a second and take 0.16 ms to read.
_LOOK_EVERY_S = 0.25
# Others' use must be so far from a whole number of cores believed in, in two looks, to be another.
_ANOTHER, _N_LOOKS = 0.6, 2
_TASKS = Path("/proc/self/task")

Busy = Callable[[], float]  # cores that others wanted since the last call


class Cores:
    """Sets the threads of each pass; on the engine's thread."""

    def __init__(
        self,
        threads: Threads,
        rule: int,
        bits: ThreadBits,
        busy: Busy | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`rule`: threads where nobody else computes; `busy`: None: they are never fewer."""
        self._threads = threads
        self._rule = rule
        self._bits = bits
        self._busy = busy if rule > 1 else None
        self._clock = clock
        self._looked = clock()
        self._n_busy = 0  # cores that others are believed to want
        self._n_other = 0  # looks in a row that say otherwise

    def ready(self, spans: Sequence[Span], exact: bool) -> Inexact | None:
        """Before a pass; why its bits may not be those of the rule, if they may not."""
        self.look()
        left = self._rule - self._n_busy
        n = max(1, left)
        # As many threads as ever, but asleep at barriers: each gets its share then. Where no core
        # is left at all, nobody tries whether fewer have their bits: that takes passes.
        if exact and n < self._rule and (left < 1 or not self._bits.same(n, spans)):
            self._threads.use(self._rule, sleeps=True)
            return None
        self._threads.use(n, sleeps=False)
        return None if self._bits.known(n, spans) else Inexact.THREADS

    def look(self) -> None:
        """What others want now, if it is time to look again."""
        if self._busy is None or self._clock() - self._looked < _LOOK_EVERY_S:
            return
        self._looked = self._clock()
        busy = self._busy()
        if abs(busy - self._n_busy) < _ANOTHER:
            self._n_other = 0
            return
        self._n_other += 1
        if self._n_other >= _N_LOOKS:
            self._n_busy, self._n_other = round(busy), 0

    def by_rule(self) -> None:
        """Before passes that are measured."""
        self._threads.use(self._rule, sleeps=False)

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """For passes whose bits are compared, by as many threads as the rule has. Where others want
        cores they sleep: spinning, each pass might take seconds of somebody's answer."""
        if not self._n_busy:
            self.by_rule()
            yield
            return
        with self._threads.meanwhile(self._rule):
            yield

    def close(self) -> None:
        self._threads.close()


class _Counters(NamedTuple):
    """Seconds of cores."""

    busy: float
    idle: float
    own: float
    waited: dict[str, float]  # by thread of our own: ready to run, on no core


class Others:
    """Cores that other processes want, from one call to the next. Time that a hypervisor gave to
    another machine counts as theirs."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        usable = hasattr(self._own, "cpu_affinity")  # where a system does not tell, all of them
        self._cores = self._own.cpu_affinity() if usable else list(range(psutil.cpu_count() or 1))
        self._before = self._read()

    def __call__(self) -> float:
        before, now = self._before, self._read()
        self._before = now
        busy, idle, own = now.busy - before.busy, now.idle - before.idle, now.own - before.own
        if busy + idle <= 0:
            return 0.0
        used = max(0.0, busy - own) / (busy + idle) * len(self._cores)
        if own <= 0:
            return used
        # They had to wait for cores as long as we had: what they used is not all they want. Without
        # that, who shares two cores with two threads of ours seems to leave us one.
        waited = sum(s - before.waited.get(task, s) for task, s in now.waited.items())
        return min(used * (1 + waited / own), len(self._cores))

    def _read(self) -> _Counters:
        busy = idle = 0.0
        every = psutil.cpu_times(percpu=True)
        for core in (every[i] for i in self._cores if i < len(every)):
            waits = core.idle + getattr(core, "iowait", 0.0)
            guest = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
            busy, idle = busy + sum(core) - waits - guest, idle + waits
        own = self._own.cpu_times()
        return _Counters(busy, idle, own.user + own.system, _waited())


def _waited() -> dict[str, float]:
    """Linux alone tells; elsewhere nothing is known to have waited."""
    found = {}
    for task in os.listdir(_TASKS) if _TASKS.is_dir() else ():
        try:
            found[task] = int((_TASKS / task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, LookupError, ValueError):
            continue  # the thread has ended, or this kernel keeps no such counts
    return found

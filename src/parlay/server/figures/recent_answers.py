"""What was answered lately: rounds by route and model, and the last requests with their decisions.

Knows jobs and rounds, no HTTP and no text. Everything in it is bounded. Requests are taken in when
they end; while somebody watches, also once a tick.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from parlay.backend.answering import Making
from parlay.backend.plain_speed import PlainSpeed
from parlay.control.trace import Decision
from parlay.decoding.counts import Counts
from parlay.decoding.round import Round
from parlay.engine.sequence import Sequence as Answer

RECENT_ROUNDS = 256  # of each group
MAX_GROUPS = 32
MAX_REQUESTS = 100
MAX_KEPT_ROUNDS = 16_384  # over all requests: the oldest lose their traces first
ALL = "all"


@dataclass(frozen=True, slots=True)
class Key:
    """What figures can be filtered by."""

    route: str = ALL
    model: str = ALL


@dataclass(slots=True)
class AnswerGroup:
    """The rounds of one route and model."""

    key: Key
    rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    since: list[Round] = field(default_factory=list)  # the last look
    n_generated: int = 0
    n_requests: int = 0

    def add(self, rounds: Iterable[Round]) -> None:
        for found in rounds:
            self.rounds.append(found)
            self.since.append(found)
            self.n_generated += found.n_generated
        del self.since[:-RECENT_ROUNDS]

    def take_since(self) -> list[Round]:
        """The rounds since this was last called."""
        found, self.since = self.since, []
        return found


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that is over."""

    request_id: str
    key: Key
    record: dict[str, Any]  # as in the request log, without texts
    rounds: tuple[tuple[Round, ...], ...] | None  # of each answer; None: no longer kept

    @property
    def n_rounds(self) -> int:
        return sum(map(len, self.rounds or ()))


@dataclass(slots=True)
class _Open:
    key: Key
    n_taken: list[int]  # rounds of each sequence that were taken in already


class RecentAnswers:
    """One server's."""

    def __init__(self) -> None:
        self.total = AnswerGroup(Key())
        self.groups: OrderedDict[Key, AnswerGroup] = OrderedDict()
        self.n_answered = 0
        self._answered: OrderedDict[str, Answered] = OrderedDict()
        self._open: dict[Making, _Open] = {}
        self._n_kept = 0

    @property
    def answered(self) -> list[Answered]:
        """The last requests, the latest first."""
        return list(reversed(self._answered.values()))

    def find(self, request_id: str) -> Answered | None:
        return self._answered.get(request_id)

    def begin(self, job: Making, key: Key) -> None:
        self._open[job] = _Open(key, [0] * len(job.sequences))

    def take_in(self) -> None:
        """The new rounds of everything that is being answered."""
        for job in list(self._open):
            self._take(job)

    def finish(self, job: Making, request_id: str, record: dict[str, Any]) -> None:
        """A request is over: take in what is left of it, and keep it to be looked at."""
        self._take(job)
        opened = self._open.pop(job, None)
        if opened is None:
            return
        self.n_answered += 1
        for group in (self.total, self._group(opened.key)):
            group.n_requests += 1
        rounds = tuple(tuple(seq.rounds) for seq in job.sequences)
        self._keep(Answered(request_id, opened.key, record, rounds))

    def _take(self, job: Making) -> None:
        opened = self._open.get(job)
        if opened is None:
            return
        for i, seq in enumerate(job.sequences):
            found = _since(seq, opened.n_taken[i])
            opened.n_taken[i] += len(found)
            if found:
                self.total.add(found)
                self._group(opened.key).add(found)

    def _group(self, key: Key) -> AnswerGroup:
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = AnswerGroup(key)
            if len(self.groups) > MAX_GROUPS:
                self.groups.popitem(last=False)
        self.groups.move_to_end(key)
        return group

    def _keep(self, answered: Answered) -> None:
        self._answered[answered.request_id] = answered
        self._n_kept += answered.n_rounds
        while len(self._answered) > MAX_REQUESTS:
            _, old = self._answered.popitem(last=False)
            self._n_kept -= old.n_rounds
        for name, old in list(self._answered.items()):
            if self._n_kept <= MAX_KEPT_ROUNDS:
                return
            self._n_kept -= old.n_rounds
            self._answered[name] = Answered(old.request_id, old.key, old.record, None)


def _since(seq: Answer, n_taken: int) -> list[Round]:
    """Rounds beyond the first `n_taken`, as far as the sequence still has them."""
    rounds = seq.rounds.copy()  # one step: the worker goes on appending
    full = len(rounds) == rounds.maxlen
    n_all = max(len(rounds), seq.counts.n_rounds - 1) if full else len(rounds)  # less the prompt's
    return list(islice(rounds, max(0, len(rounds) - (n_all - n_taken)), None))


# -- figures -----------------------------------------------------------------------------------


def figures(rounds: Sequence[Round], baseline: PlainSpeed) -> dict[str, Any]:
    """Counts of some rounds, and their speed over plain decoding's where anything was drafted."""
    counts = Counts()
    plain_s = spent_s = 0.0
    for found in rounds:
        counts.observe(found)
        usual = baseline.of(found.n_sequences)
        if usual:
            plain_s += usual * found.n_generated / found.n_sequences
            spent_s += found.timing.total_s / found.n_sequences
    speedup = round(plain_s / spent_s, 4) if spent_s and counts.n_drafted else None
    return {**counts.as_dict(), "speedup": speedup}


def decisions(rounds: Sequence[Round], baseline: PlainSpeed) -> list[Decision]:
    """The decision trace of one answer."""
    found: list[Decision] = []
    seconds = 0.0
    for r in rounds:
        usual, spent = baseline.of(r.n_sequences), r.timing.total_s
        gain = usual * r.n_generated / spent if usual and spent else None
        found.append(Decision.of(r, seconds, gain))
        seconds += spent
    return found

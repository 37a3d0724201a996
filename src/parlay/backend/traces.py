"""What was answered lately: rounds by route and model, and the decisions of the last requests.

Knows sequences and rounds, no text. Everything in it is bounded. Requests are taken in when they
end; while somebody watches, also at each look.
"""

from __future__ import annotations

import time
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
Key = tuple[str, str]  # a route and a model's name
_ALL: Key = (ALL, ALL)


@dataclass(slots=True, eq=False)
class _Group:
    """The rounds of one route and model."""

    rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    since: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))  # the look
    n_generated: int = 0
    n_requests: int = 0
    figures: dict[str, Any] = field(default_factory=dict)  # of the last rounds
    figures_of: int = -1  # tokens generated when they were made
    figured: int = 0  # at which look that was

    def add(self, rounds: Iterable[Round]) -> None:
        for found in rounds:
            self.rounds.append(found)
            self.since.append(found)
            self.n_generated += found.n_generated


@dataclass(slots=True)
class _Open:
    making: Making
    key: Key
    n_taken: list[int]  # rounds of each sequence that were taken in already


class Traces:
    """Those of one engine; on its event loop."""

    def __init__(self, baseline: PlainSpeed) -> None:
        self._baseline = baseline
        self._groups: OrderedDict[Key, _Group] = OrderedDict({_ALL: _Group()})
        self._open: dict[int, _Open] = {}
        self._answered: OrderedDict[str, tuple[tuple[Round, ...], ...]] = OrderedDict()
        self._looked, self._n_looks = time.monotonic(), 0

    def begin(self, making: Making, model: str) -> None:
        self._open[id(making)] = _Open(making, (making.policy, model), [0] * len(making.sequences))

    def end(self, making: Making) -> None:
        """A request is over: take in what is left of it, and keep it to be looked at."""
        opened = self._open.pop(id(making), None)
        if opened is None:
            return
        self._take(opened)
        for key in (_ALL, opened.key):
            self._group(key).n_requests += 1
        self._answered[making.ask.id] = tuple(tuple(seq.rounds) for seq in making.sequences)
        n_kept = sum(len(rounds) for found in self._answered.values() for rounds in found)
        while len(self._answered) > MAX_REQUESTS or (n_kept > MAX_KEPT_ROUNDS and self._answered):
            _, gone = self._answered.popitem(last=False)
            n_kept -= sum(map(len, gone))

    def trace(self, answer_id: str) -> dict[str, Any] | None:
        """One request's decisions, answer by answer."""
        found = self._answered.get(answer_id)
        if found is None:
            return None
        answers = [[d.as_dict() for d in decisions(made, self._baseline)] for made in found]
        return {"answers": answers}

    def look(self) -> list[dict[str, Any]]:
        """Every group with what it did since the last look; all of them together first."""
        now = time.monotonic()
        elapsed, self._looked = max(1e-3, now - self._looked), now
        for opened in list(self._open.values()):
            self._take(opened)
        # The last rounds take longest to sum up: those of all, and of the groups that changed the
        # one that was longest not looked at.
        self._n_looks += 1
        changed = [g for g in self._groups.values() if g.figures_of != g.n_generated]
        whole = self._groups[_ALL]
        others = sorted((g for g in changed if g is not whole), key=lambda g: g.figured)
        for group in [*([whole] if whole in changed else []), *others[:1]]:
            group.figures = figures(tuple(group.rounds), self._baseline)
            group.figures_of, group.figured = group.n_generated, self._n_looks
        found = []
        for (route, model), group in self._groups.items():
            since = tuple(group.since)
            group.since.clear()
            found.append(
                {
                    "route": route,
                    "model": model,
                    "requests": group.n_requests,
                    "generated": group.n_generated,
                    "now": moment(since, elapsed, self._baseline),
                    "recent": group.figures or figures((), self._baseline),
                }
            )
        return found

    def _take(self, opened: _Open) -> None:
        for i, seq in enumerate(opened.making.sequences):
            found = _since(seq, opened.n_taken[i])
            opened.n_taken[i] += len(found)
            if found:
                self._groups[_ALL].add(found)
                self._group(opened.key).add(found)

    def _group(self, key: Key) -> _Group:
        if key not in self._groups:
            self._groups[key] = _Group()
            if len(self._groups) > MAX_GROUPS:
                del self._groups[next(k for k in self._groups if k != _ALL)]
        return self._groups[key]


def _since(seq: Answer, n_taken: int) -> list[Round]:
    """Rounds beyond the first `n_taken`, as far as the sequence still has them."""
    rounds = seq.rounds.copy()  # one step: the engine's thread goes on appending
    full = len(rounds) == rounds.maxlen
    n_all = max(len(rounds), seq.counts.n_rounds - 1) if full else len(rounds)  # less the prompt's
    return list(islice(rounds, max(0, len(rounds) - (n_all - n_taken)), None))


# -- figures ---------------------------------------------------------------------------------------


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


def moment(rounds: Sequence[Round], elapsed: float, baseline: PlainSpeed) -> dict[str, Any]:
    """The rounds since the last look in a few numbers; None where there is nothing to tell."""
    generated = drafted = accepted = 0
    plain_s = draft_s = verify_s = overhead_s = 0.0
    for r in rounds:
        n, timing = r.n_sequences, r.timing  # the sequences of a pass share its time
        generated += r.n_generated
        drafted += r.n_drafted
        accepted += r.n_accepted
        plain_s += (baseline.of(n) or 0.0) * r.n_generated / n
        draft_s += timing.draft_s / n
        verify_s += timing.verify_s / n
        overhead_s += timing.overhead_s / n
    n_rounds, spent_s = len(rounds), draft_s + verify_s + overhead_s
    return {
        "tokens_per_s": round(generated / elapsed, 2),
        "rounds": n_rounds,
        "speedup": round(plain_s / spent_s, 4) if drafted and plain_s and spent_s else None,
        "window": round(drafted / n_rounds, 3) if n_rounds else None,
        "token_acceptance": round(accepted / drafted, 4) if drafted else None,
        "acceptance_length": round(generated / n_rounds, 4) if n_rounds else None,
        "draft_ms": round(1e3 * draft_s, 3),
        "verify_ms": round(1e3 * verify_s, 3),
        "overhead_ms": round(1e3 * overhead_s, 3),
    }


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

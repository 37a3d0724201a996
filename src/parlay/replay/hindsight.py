"""What could have been made of a recording: every fixed window, and an oracle that knows outcomes.

Knows recordings and prices, no controller. A fixed window takes the same path whatever the prices
are, so that path is followed once and then only priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from parlay.control.prices.cost import CostTable
from parlay.replay.recording import RecordedOffer, Recording
from parlay.replay.replay import FREE, MAX_WINDOW

WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Path:
    """The rounds of one answer, counted by what they cost."""

    passes: tuple[tuple[int, bool, int], ...]  # rows, whether the shape changed, how often
    n_settling: int  # second passes of a new shape
    drafts: tuple[tuple[int, int, int], ...]  # drafted by a model, tokens it lacked, how often
    rejections: tuple[tuple[int, int, int], ...]  # drafted, accepted, how often

    def seconds(self, costs: CostTable, n_context: int) -> float:
        """What these rounds cost."""
        curve, drafter = costs.curve(n_context, 1), costs.drafter
        seconds = sum(n * curve.of(rows, changed) for rows, changed, n in self.passes)
        seconds += self.n_settling * curve.settling_s
        undone = sum(n for k, held, n in self.rejections if costs.undoing.is_paid(k, held))
        seconds += undone * costs.undoing.seconds
        if drafter is not None:
            seconds += sum(n * drafter.draft_s(k, missing) for k, missing, n in self.drafts)
        return seconds


def fixed_seconds(recording: Recording, costs: CostTable, proposer: str, window: int) -> float:
    """Seconds of one answer with one proposer and always the same window; 0: plain decoding."""
    return _path_of(_Key(recording), proposer, window).seconds(costs, recording.n_prompt)


def plain_seconds(recording: Recording, costs: CostTable) -> float:
    """Seconds of one answer without drafts; its first pass changes the shape of the prompt's."""
    curve, n = costs.curve(recording.n_prompt, 1), recording.n_tokens
    return curve.changed[1] + (n - 1) * curve.steady[1] + (curve.settling_s if n > 1 else 0.0)


class _Key:
    """A recording by identity, so that it can be a key."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __hash__(self) -> int:
        return id(self.recording)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.recording is self.recording


@cache
def _path_of(key: _Key, proposer: str, window: int) -> Path:
    recording = key.recording
    passes: Counter[tuple[int, bool]] = Counter()
    drafts: Counter[tuple[int, int]] = Counter()
    rejections: Counter[tuple[int, int]] = Counter()
    i, last, missing = 0, 0, recording.n_prompt + 1
    n_settling, settled = 0, False
    while i < recording.n_tokens:
        offer = recording.offers[proposer][i]
        k = min(window, len(offer.confidence), _room(recording, i))
        accepted = min(k, offer.n_accepted)
        generated = min(accepted + 1, recording.n_tokens - i)
        if proposer in FREE or k == 0:
            missing += generated
        else:
            drafts[k, missing] += 1
            missing = 2 if accepted == k else 1
        rejections[k, accepted] += accepted < k
        changed = k + 1 != last
        passes[k + 1, changed] += 1
        n_settling += not changed and not settled
        settled, last = not changed, k + 1
        i += generated
    return Path(
        tuple((rows, changed, n) for (rows, changed), n in passes.items()),
        n_settling,
        tuple((k, lacking, n) for (k, lacking), n in drafts.items()),
        tuple((k, held, n) for (k, held), n in rejections.items() if n),
    )


def _room(recording: Recording, position: int) -> int:
    if recording.finish_reason != "length":
        return MAX_WINDOW
    return min(MAX_WINDOW, recording.n_tokens - position - 1)


def best_fixed(
    recordings: Sequence[Recording], costs: CostTable, proposers: Sequence[str]
) -> tuple[str, int, float]:
    """The proposer and window that hindsight would fix for these answers, and their seconds."""
    plain = sum(plain_seconds(r, costs) for r in recordings)
    tried = [
        (proposer, k, sum(fixed_seconds(r, costs, proposer, k) for r in recordings))
        for proposer in proposers
        for k in WINDOWS
    ]
    return min([("none", 0, plain), *tried], key=lambda found: found[2])


def oracle_seconds(recording: Recording, costs: CostTable, proposers: Sequence[str]) -> float:
    """The least time for one answer if every outcome were known beforehand.

    It still pays for changed shapes, and may verify wrong tokens to keep one. Its shapes settle at
    once and its drafter never has to catch up: a little more than anyone can have.
    """
    curve, drafter = costs.curve(recording.n_prompt, 1), costs.drafter
    step = drafter.step_s() if drafter is not None else 0.0
    n = recording.n_tokens
    widest = MAX_WINDOW + 1
    # after[b]: least time from a position on, if the pass before it had b rows.
    table: list[list[float]] = [[0.0] * (widest + 1) for _ in range(n + widest + 1)]
    for i in reversed(range(n)):
        offers = [
            (o, 0.0 if s in FREE else step) for s in proposers for o in [recording.offers[s][i]]
        ]
        then = _least_after(table, i, offers, _room(recording, i))
        changed = min(curve.changed[b] + then[b] for b in then)
        table[i] = [
            min(changed, curve.steady[b] + then[b]) if b in then else changed
            for b in range(widest + 1)
        ]
    return table[0][0]  # after a prompt


def _least_after(
    table: list[list[float]], i: int, offers: Sequence[tuple[RecordedOffer, float]], room: int
) -> dict[int, float]:
    """For every number of rows: drafting, and the least time after the pass."""
    then = {1: table[i + 1][1]}
    for offer, step in offers:
        for k in range(1, min(len(offer.confidence), room) + 1):
            seconds = k * step + table[i + min(k, offer.n_accepted) + 1][k + 1]
            if seconds < then.get(k + 1, float("inf")):
                then[k + 1] = seconds
    return then

"""How likely draft tokens are to be accepted: by position, and by the proposer's own confidence.

Knows neither tokens nor time. A rejection says nothing about the positions after it, and a draft
accepted to its end nothing about the one beyond: only tokens that were tried are counted.

Two things are learned apart. Rates tell what a proposer is like: they change slowly, hold for every
text and are kept between runs. A difficulty tells how much harder or easier this text is than
that: it is followed within a few rounds and forgotten with the text. A rate learns only what the
difficulty does not explain, or one easy text would pass for a better proposer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_POSITIONS = 16
# Confidences are told apart by steps of about the same logit; beyond the last all are alike.
_EDGES = (0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.98, 0.992, 0.998)
_MIDDLES = tuple((a + b) / 2 for a, b in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
STEPS = 1000
# The cell of a confidence, by its thousandths.
CELL_OF = tuple(sum(i >= STEPS * edge for edge in _EDGES) for i in range(STEPS + 1))

# How often a draft model's token is taken to be right before it was ever seen.
_MODEL_RATE = 0.75
# The first tokens of a cell move it more than later ones, of which each counts the same.
_FLOOR, _N_RATES = 0.03, 108
_RATES = tuple(max(_FLOOR, 1.0 / (6.0 + (n + 1) / 4)) for n in range(_N_RATES))
_LEAST_ODDS, _MOST_ODDS = 0.002, 99.0
# The difficulty: rejections seen over those expected, both forgotten at this rate per round, and
# each with one more that nothing was seen of.
_KEPT, _CALM = 0.8, 1.0
# And what that leaves unexplained for long, as when a proposer is sure of itself and wrong.
_DRIFT_RATE, _DRIFT_KEPT, _MOST_DRIFT = 0.15, 0.93, 20.0


class Difficulty:
    """How much likelier rejections are in this text than the rates say: a factor on their odds."""

    __slots__ = ("_expected", "_seen", "drift", "factor")

    def __init__(self) -> None:
        self._seen = self._expected = _CALM
        self.drift = 1.0  # the slow part of the factor
        self.factor = 1.0

    def observe(self, seen: float, expected: float, excess: float) -> None:
        """Rejections in one round: those seen, expected given the drift, and seen beyond those
        that were expected given the whole difficulty."""
        self._seen = _CALM + _KEPT * (self._seen - _CALM) + seen
        self._expected = _CALM + _KEPT * (self._expected - _CALM) + expected
        drift = (self.drift * (1.0 + _DRIFT_RATE * max(-1.0, excess))) ** _DRIFT_KEPT
        self.drift = min(_MOST_DRIFT, max(1.0 / _MOST_DRIFT, drift))
        self.factor = self.drift * self._seen / self._expected


class Rates:
    """The odds of a rejection, by cells; a token is accepted with 1 / (1 + odds * difficulty)."""

    __slots__ = ("_ordered", "n_tried", "odds")

    def __init__(self, rates: Sequence[float], ordered: bool = False) -> None:
        """`ordered`: the cells are confidences, and to be more sure is never to be less likely;
        else they are positions."""
        # One more than there are cells, so that the last one has a neighbour too.
        self.odds = [1.0 / rate - 1.0 for rate in (*rates, 1.0)]
        self.n_tried = [0] * len(rates)
        self._ordered = ordered

    def observe(
        self, cells: Sequence[int], n_accepted: int, difficulty: Difficulty, *, even: bool = False
    ) -> None:
        """The cells of the tokens that were tried, of which the first so many were accepted.

        `even`: by the spread of each outcome; else a cell moves the less, the likelier its tokens.
        """
        factor, drift = difficulty.factor, difficulty.drift
        all_odds, n_tried, ordered = self.odds, self.n_tried, self._ordered
        expected, excess, seen, moved = 0.0, 0.0, 0.0, 1.0
        for cell in cells[:n_accepted]:
            odds, n = all_odds[cell], n_tried[cell]
            drifted, risk = odds * drift, odds * factor
            expected += drifted / (1.0 + drifted)
            likely = risk / (1.0 + risk)
            excess -= likely
            told = likely**0.5 if even else likely
            step = 1.0 - (_RATES[n] if n < _N_RATES else _FLOOR) * told
            odds *= step
            moved *= step
            all_odds[cell] = odds if odds > _LEAST_ODDS else _LEAST_ODDS
            n_tried[cell] = n + 1
            if ordered and odds < all_odds[cell + 1]:
                self._keep_order(cell, 1)
        if n_accepted < len(cells):
            drifted, held, step = self._reject(cells[n_accepted], factor, drift, even)
            expected, excess, seen = expected + drifted, excess + held, 1.0
            moved *= step
        if not self._ordered:
            self._move_all(moved)
        difficulty.observe(seen, expected, excess)

    def _move_all(self, by: float) -> None:
        """Positions are much alike: what is seen at one of them is learned of all, by as much.

        Where drafts mostly hold, few tokens are rejected at any one of them, and those that were
        never reached would be what they were taken for at first.
        """
        least, most = _LEAST_ODDS, _MOST_ODDS
        moved = [odds * by for odds in self.odds[:-1]]
        if min(moved) < least or max(moved) > most:
            moved = [min(most, max(least, odds)) for odds in moved]
        self.odds[:-1] = moved

    def _reject(
        self, cell: int, factor: float, drift: float, even: bool
    ) -> tuple[float, float, float]:
        """A token was rejected: how likely that was, the drift known; how likely it was not; and
        what that makes of its odds."""
        odds, n = self.odds[cell], self.n_tried[cell]
        held = 1.0 / (1.0 + odds * factor)
        told = held / (1.0 - held) ** 0.5 if even else held
        step = 1.0 + (_RATES[n] if n < _N_RATES else _FLOOR) * told
        self.odds[cell] = min(_MOST_ODDS, odds * step)
        self.n_tried[cell] = n + 1
        if self._ordered and cell and self.odds[cell] > self.odds[cell - 1]:
            self._keep_order(cell, -1)
        return odds * drift / (1.0 + odds * drift), held, step

    def _keep_order(self, cell: int, step: int) -> None:
        """A cell was moved past its neighbour: what both were seen to be is chance, so share it,
        and with the next ones as long as they are passed too."""
        odds, n_tried = self.odds, self.n_tried
        shared, weight, end = odds[cell], 1 + n_tried[cell], cell + step
        while 0 <= end < len(n_tried) and (odds[end] - shared) * step > 0:
            more = 1 + n_tried[end]
            shared = (weight * shared + more * odds[end]) / (weight + more)
            weight, end = weight + more, end + step
        for each in range(cell, end, step):
            odds[each] = shared

    @property
    def n_held(self) -> float:
        """Of the tokens tried, about so many were accepted."""
        return sum(n / (1.0 + x) for n, x in zip(self.n_tried, self.odds, strict=False))

    def to_dict(self) -> dict[str, Any]:
        return {"odds": [round(x, 6) for x in self.odds[:-1]], "tried": self.n_tried}

    def update(self, record: Mapping[str, Any]) -> None:
        """Take over what was kept; raises ValueError where it does not fit."""
        odds = [float(x) for x in record["odds"]]
        tried = [int(n) for n in record["tried"]]
        fits = len(odds) == len(self.n_tried) == len(tried)
        if not fits or not all(_LEAST_ODDS / 2 <= x <= _MOST_ODDS for x in odds):
            raise ValueError("the rates do not fit")
        self.odds, self.n_tried = [*odds, 0.0], tried


class Acceptance:
    """One proposer, in one mode: its rates by confidence and by position."""

    __slots__ = ("by_confidence", "by_position")

    def __init__(self) -> None:
        # At first a confidence is taken at its word.
        self.by_confidence = Rates(_MIDDLES, ordered=True)
        self.by_position = Rates([_MODEL_RATE] * MAX_POSITIONS)

    def observe_confidence(
        self,
        confidence: Sequence[float],
        n_accepted: int,
        difficulty: Difficulty,
        *,
        even: bool = False,
    ) -> None:
        """A draft with these confidences, and how many of its tokens were accepted; `even`: made by
        a model. It is seen only where it drafts, and has to be learned from fewer tokens."""
        tried = confidence[: n_accepted + 1]
        cells = [CELL_OF[int(sure * STEPS)] for sure in tried]
        self.by_confidence.observe(cells, min(n_accepted, len(cells)), difficulty, even=even)

    def observe_position(self, n_drafted: int, n_accepted: int, difficulty: Difficulty) -> None:
        """The same for a draft whose confidences are not looked at."""
        n_tried = min(n_accepted + 1, n_drafted, MAX_POSITIONS)
        self.by_position.observe(range(n_tried), min(n_accepted, n_tried), difficulty)

    def to_dict(self) -> dict[str, Any]:
        return {
            "by_confidence": self.by_confidence.to_dict(),
            "by_position": self.by_position.to_dict(),
        }

    def update(self, record: Mapping[str, Any]) -> None:
        self.by_confidence.update(record["by_confidence"])
        self.by_position.update(record["by_position"])


@dataclass(frozen=True, slots=True)
class Seen:
    """Draft tokens that were tried, and about how many of them held."""

    n_tried: int
    n_held: float


_Mode = tuple[str, bool, bool]  # proposer, greedy, thinking


class Survival:
    """What was learned of every proposer, greedy and sampling, thinking and answering apart."""

    def __init__(self) -> None:
        self._modes: dict[_Mode, Acceptance] = {}

    def of(self, proposer: str, greedy: bool, thinking: bool) -> Acceptance:
        """One proposer in one mode."""
        mode = (proposer, greedy, thinking)
        found = self._modes.get(mode)
        if found is None:
            found = self._modes[mode] = Acceptance()
        return found

    def seen(self, sources: Collection[str]) -> Seen:
        """Of these proposers, in all modes."""
        kept = [found for (source, _, _), found in self._modes.items() if source in sources]
        rates = [rates for found in kept for rates in (found.by_confidence, found.by_position)]
        return Seen(sum(sum(r.n_tried) for r in rates), sum(r.n_held for r in rates))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, kept per pair of models."""
        return {_name(*mode): found.to_dict() for mode, found in self._modes.items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Survival:
        """From the JSON form; what does not fit is left out, not an error."""
        made = cls()
        for name, kept in record.items():
            found = Acceptance()
            try:
                proposer, greedy, part = name.rsplit("/", 2)
                found.update(kept)
            except (LookupError, TypeError, ValueError):
                continue
            made._modes[proposer, greedy == "greedy", part == "thinking"] = found
        return made


def _name(proposer: str, greedy: bool, thinking: bool) -> str:
    mode = "greedy" if greedy else "sampling"
    return f"{proposer}/{mode}/{'thinking' if thinking else 'answering'}"

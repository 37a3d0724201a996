"""Trials: prices learned from answers, where a machine is never idle enough to be measured.

Knows rounds and their times, never text. Now and then one sequence drafts a window nobody knows the
price of, and its pass is compared with the plain ones around it. That is a bet like any other: the
text stays the same, and what it loses is bounded by a share of the time spent decoding.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from parlay.control.controller import View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.decoding.round import Round

_SHARE = 0.02  # of the time spent decoding
# Between these windows prices are interpolated; the narrow ones are tried first.
_WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16)
_N_SAMPLES = 3
_N_PLAIN = 8  # plain passes before anything is compared with them
_N_KEPT = 16


@dataclass(frozen=True, slots=True)
class Trial:
    """One round that is to be timed."""

    at: int  # which of the views
    proposer: str
    window: int


class _Prices:
    """What was seen of passes over one number of sequences, in plain passes of the same time.

    A ratio to its neighbours holds whatever else the machine does and however long the text is.
    """

    def __init__(self) -> None:
        few = partial(deque[float], maxlen=_N_SAMPLES)
        self.plain: deque[float] = deque(maxlen=_N_KEPT)  # seconds
        self.steady: defaultdict[int, deque[float]] = defaultdict(few)  # by rows
        self.changed: defaultdict[int, deque[float]] = defaultdict(few)
        self.settling: deque[float] = deque(maxlen=_N_KEPT)

    @property
    def plain_s(self) -> float | None:
        return median(self.plain) if len(self.plain) >= _N_PLAIN else None

    def n_samples(self, rows: int) -> int:
        return max(len(found[rows]) for found in (self.steady, self.changed))

    def curve(self, n_sequences: int, plain_s: float) -> Curve:
        changed = self._points(self.changed, plain_s)
        steady = {**changed, n_sequences: plain_s, **self._points(self.steady, plain_s)}
        settling_s = plain_s * median(self.settling) if self.settling else 0.0
        widest = n_sequences + _WINDOWS[-1]
        for points in filter(None, (steady, changed)):
            last = max(points)
            if last < widest:  # beyond what was seen each row costs a pass: nothing is bet there
                points[widest] = points[last] + (widest - last) * plain_s
        return Curve(steady, changed, settling_s)

    def _points(self, found: defaultdict[int, deque[float]], plain_s: float) -> dict[int, float]:
        return {b: plain_s * median(s) for b, s in found.items() if len(s) == _N_SAMPLES}


class Trials:
    """Which rounds to try, and what they told."""

    def __init__(self, changes_cost: bool) -> None:
        """`changes_cost`: a pass of another shape than the last one takes longer here."""
        self._changes_cost = changes_cost
        self._prices: defaultdict[int, _Prices] = defaultdict(_Prices)  # by sequences in the pass
        self._decoding_s = 0.0
        self._lost_s = 0.0  # by trials, less what they won
        self._trying = False
        self._last = self._before = (0, 0)  # shapes: sequences, rows
        self._seen: set[tuple[int, int]] = set()

    def next(self, views: Sequence[View]) -> Trial | None:
        """A round worth trying now; a row costs a pass at most, so that much must be to spare."""
        self._trying = False
        n, prices = len(views), self._prices[len(views)]
        plain_s = prices.plain_s
        if plain_s is None:
            return None
        affordable = int((_SHARE * self._decoding_s - self._lost_s) / plain_s)
        for at, view in enumerate(views):
            proposer, most = _widest(view)
            for window in _WINDOWS:
                if window <= min(most, affordable) and prices.n_samples(n + window) < _N_SAMPLES:
                    self._trying = True
                    return Trial(at, proposer, window)
        return None

    def observe(self, rounds: Sequence[Round]) -> bool:
        """A finished pass; whether another price is known now."""
        first, n = rounds[0], len(rounds)
        self._decoding_s += first.timing.total_s
        rows = first.n_pass_rows
        if sum(r.n_rows for r in rounds) != rows - first.n_padding:  # it also read a prompt
            self._follow((n, 0))
            return False
        prices = self._prices[n]
        plain_s = prices.plain_s
        if self._trying and plain_s is not None:
            self._lost_s += first.timing.total_s - plain_s * sum(r.n_generated for r in rounds) / n
        known = self._note(prices, (n, rows), first.timing.verify_s + first.timing.overhead_s)
        self._follow((n, rows))
        return known

    def table(self) -> CostTable:
        """The prices so far. Other work went on beside them: they are not called stable."""
        curves = {
            (1, n): prices.curve(n, plain_s)
            for n, prices in self._prices.items()
            if (plain_s := prices.plain_s) is not None
        }
        return CostTable(curves, name="tried", origin="learned from answers", stable=False)

    def _note(self, prices: _Prices, shape: tuple[int, int], seconds: float) -> bool:
        """Sort one pass in; whether that made a price known."""
        n, rows = shape
        plain_s = prices.plain_s
        first, changed = shape not in self._seen, shape != self._last
        settling = not changed and shape != self._before
        self._seen.add(shape)
        if not self._changes_cost:
            changed = settling = False
        elif first:  # it also loads its kernels: no later one pays for that
            return False
        if rows == n and not changed and not settling:
            prices.plain.append(seconds)
            return plain_s is None and prices.plain_s is not None
        if plain_s is None:
            return False
        if not settling:
            return _add((prices.changed if changed else prices.steady)[rows], seconds / plain_s)
        if rows == n:  # the second pass of a shape: a GPU records what it will repeat
            prices.settling.append(max(0.0, seconds / plain_s - 1.0))
        return False

    def _follow(self, shape: tuple[int, int]) -> None:
        self._before, self._last = self._last, shape


def _add(samples: deque[float], ratio: float) -> bool:
    """Whether there are enough of them now, and were not before."""
    had = len(samples)
    samples.append(ratio)
    return had < _N_SAMPLES == len(samples)


def _widest(view: View) -> tuple[str, int]:
    """Who could draft and how far. A draft model is only tried where nobody drafts for nothing."""
    if view.window is not None or view.fallback is not None or not view.proposers:
        return "none", 0
    if not view.offers:
        return view.proposers[0], view.max_window
    proposer = max(view.offers, key=lambda name: len(view.offers[name].tokens))
    return proposer, min(len(view.offers[proposer].tokens), view.max_window)

"""A curve: seconds of a pass by its rows, for one context and number of sequences, as learned.

Kernels switch with the batch, so this is a table with steps, not a line. On a GPU a pass whose
shape differs from the last one costs more, and the second one of a new shape once more: it holds
both prices. Knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

MAX_ROWS = 512
# What leaving a shape costs is the host's work, and differs from one moment to the next by half. A
# start measures all of it in one moment: that counts for one observation, and later ones for this.
_CHANGE_RATE = 0.1
# A pass wider than what was measured has an average of so many passes as its price.
_N_YOUNG = 4
# What wider passes were seen to take beyond what was measured is forgotten while nobody bets, by
# this part after so many plain passes: it may have been a busy moment, and no pass would tell.
_FORGOTTEN, _N_PLAIN = 0.12, 64
# What one observation may claim at most: other jobs on the machine make passes of any length.
_LARGEST_SURPRISE = 1.5


class Curve:
    """Seconds of a round by the rows of its pass, drafting apart; index 0 is never used."""

    __slots__ = (
        "_measured",
        "_n_plain",
        "changed",
        "known",
        "n_changes",
        "n_settled",
        "prices_change",
        "settling_s",
        "steady",
        "young",
    )

    def __init__(
        self, steady: Mapping[int, float], changed: Mapping[int, float], settling_s: float = 0.0
    ) -> None:
        self.prices_change = bool(changed)  # whether a change of shape costs anything here
        self.steady = _fill(steady)  # the same shape as the last pass
        # One list where there is one price: what is learned of one is learned of both.
        self.changed = _fill(changed) if changed else self.steady
        self.known = {*steady, *changed}  # measured or observed, not interpolated
        # What the second pass of a new shape takes more: a GPU records then what it will repeat.
        self.settling_s = settling_s
        self.young: dict[int, int] = {}  # rows wider than what was measured: how often seen
        self.n_changes = self.n_settled = 1  # moments in which either was seen: a start is one
        self._measured = list(self.steady)
        self._n_plain = 0  # passes without a draft since something was forgotten

    def of(self, rows: int, changed: bool) -> float:
        """Seconds of one pass."""
        return (self.changed if changed else self.steady)[rows]

    @property
    def last_known(self) -> int:
        """The most rows that were measured or observed."""
        return max(self.known, default=MAX_ROWS)

    def learn(self, rows: int, changed: bool, seconds: float) -> None:
        """A pass wider than any that was measured: an average of its first ones is its price.

        Prices up to it lie between. Where changes cost, the very first one also loads its kernels.
        """
        n = self.young.get(rows, -1 if self.prices_change else 0) + 1
        self.young[rows] = n
        if n == 0:
            return
        if n == _N_YOUNG:
            del self.young[rows]
        last = max(b for b in self.known if b < rows)
        change_s = self.changed[last] - self.steady[last]
        # What taking a draft back took may have been rated too high: no pass is that fast.
        steady_s = max(seconds - change_s if changed else seconds, self.steady[1])
        if rows in self.known:
            steady_s = self.steady[rows] + (steady_s - self.steady[rows]) / n
        self._extend(self.steady, last, rows, steady_s)
        self._extend(self._measured, last, rows, steady_s)
        if self.prices_change:
            self._extend(self.changed, last, rows, steady_s + change_s)
        self.known.add(rows)

    def calm_down(self, rows: int) -> None:
        """A pass without a draft, of so many rows."""
        self._n_plain += 1
        if self._n_plain < _N_PLAIN:
            return
        self._n_plain, measured = 0, self._measured
        pace = self.steady[rows] / measured[rows]
        beyond = [
            max(0.0, _FORGOTTEN * (seconds - pace * once))
            for seconds, once in zip(self.steady, measured, strict=True)
        ]
        if any(beyond):
            self.steady[:] = [s - more for s, more in zip(self.steady, beyond, strict=True)]
            if self.prices_change:
                self.changed[:] = [s - more for s, more in zip(self.changed, beyond, strict=True)]

    def learn_change(self, rows: int, seconds: float) -> None:
        """A pass of another shape than the last one took so long: what it took beyond a steady one
        tells of all shapes what a change costs."""
        believed = self.changed[rows] - self.steady[rows]
        if not self.prices_change or believed <= 0.0:
            return
        self.n_changes += 1
        seen = min(max(0.0, seconds - self.steady[rows]), _LARGEST_SURPRISE * believed)
        self.scale_changes(1.0 + _moment_rate(self.n_changes) * (seen / believed - 1.0))

    def scale_changes(self, factor: float) -> None:
        """What changes cost, times so much."""
        self.changed = [
            steady + factor * (changed - steady) if changed > steady else changed
            for steady, changed in zip(self.steady, self.changed, strict=True)
        ]

    def learn_settling(self, rows: int, seconds: float, *, alone: bool) -> None:
        """The second pass of a new shape took so long. `alone`: of one sequence; a pass of several
        may have another shape though it has as many rows, and one of them tells little."""
        self.n_settled += 1
        most = _LARGEST_SURPRISE * max(self.settling_s, self.steady[rows])
        seen = min(max(0.0, seconds - self.steady[rows]), most)
        rate = _moment_rate(self.n_settled) if alone else _CHANGE_RATE
        self.settling_s += rate * (seen - self.settling_s)

    def _extend(self, cells: list[float], last: int, rows: int, seconds: float) -> None:
        step = (seconds - cells[last]) / (rows - last)
        cells[last + 1 : rows + 1] = [cells[last] + step * i for i in range(1, rows - last + 1)]
        if rows >= self.last_known:
            slope = max(0.0, seconds - cells[1]) / (rows - 1)
            cells[rows + 1 :] = [seconds + slope * i for i in range(1, MAX_ROWS - rows + 1)]

    def copy(self) -> Curve:
        made = Curve({1: 0.0}, {})
        made.prices_change = self.prices_change
        made.steady = list(self.steady)
        made.changed = list(self.changed) if self.prices_change else made.steady
        made.known = set(self.known)
        made._measured = list(self._measured)
        made.settling_s = self.settling_s
        made.n_changes, made.n_settled = self.n_changes, self.n_settled
        return made


def _moment_rate(n: int) -> float:
    """What the latest of so many moments counts for."""
    return max(_CHANGE_RATE, 1.0 / n)


def _fill(points: Mapping[int, float]) -> list[float]:
    """A price for every number of rows: lines between the measured ones, which keeps their order.

    Beyond the last point the line from the first to the last goes on.
    """
    rows = sorted(points)
    filled = [points[rows[0]]] * (rows[0] + 1)
    for low, high in pairwise(rows):
        step = (points[high] - points[low]) / (high - low)
        filled += [points[low] + step * i for i in range(1, high - low + 1)]
    first, last = rows[0], rows[-1]
    slope = (points[last] - points[first]) / (last - first) if last > first else points[first]
    filled += [filled[-1] + max(0.0, slope) * i for i in range(1, MAX_ROWS - last + 1)]
    return filled


def between(low: tuple[int, Curve], high: tuple[int, Curve], n: int) -> Curve:
    """Prices for `n` sequences between two numbers of them, at as many rows for each."""
    (few, cheap), (many, costly) = low, high
    share = (n - few) / (many - few)
    each = {1.0, *(b / few for b in cheap.known), *(b / many for b in costly.known)}
    points = {round(n * r): r for r in sorted(each) if r >= 1 and n * r <= MAX_ROWS}

    def mixed(changed: bool) -> dict[int, float]:
        return {
            rows: (1 - share) * cheap.of(min(round(few * r), MAX_ROWS), changed)
            + share * costly.of(min(round(many * r), MAX_ROWS), changed)
            for rows, r in points.items()
        }

    prices_change = cheap.prices_change or costly.prices_change
    settling_s = (1 - share) * cheap.settling_s + share * costly.settling_s
    made = Curve(mixed(False), mixed(True) if prices_change else {}, settling_s)
    made.known.clear()
    return made


def dear(n_sequences: int, plain_s: float, row_s: float) -> Curve:
    """Prices at which nothing is bet: each row beyond a plain pass as much as a pass."""
    widest = min(2 * n_sequences, MAX_ROWS)
    made = Curve({n_sequences: plain_s, widest: plain_s + (widest - n_sequences) * row_s}, {})
    made.known.clear()
    return made


def surprise(seconds: float, expected_s: float) -> float:
    """How much longer than expected, as far as one observation is believed."""
    ratio = seconds / expected_s if expected_s > 0 else 1.0
    return min(_LARGEST_SURPRISE, max(1.0 / _LARGEST_SURPRISE, ratio))

"""Which shape the last pass had, which are in use, and so what the next one costs.

Knows rows and prices only. On a GPU a pass of another shape than the last one costs more, and the
second one of the new shape even more: there it records what it repeats from then on. Whoever
leaves a shape that has settled will pay for settling once, here or elsewhere, so that is charged on
leaving. A shape that is used often is worth being in: the next pass will likely have it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.control.cost import Curve

_KEPT = 0.9  # of a shape's share of the passes, per pass
_WORTH = 0.9  # part of the change that a shape in constant use is expected to save
_RARE = 0.01


class Shapes:
    """The last shape, and the share that each shape had of the latest passes."""

    def __init__(self) -> None:
        self.last = 1
        self.settled = True  # whether the last shape had at least two passes in a row
        self._share: dict[int, float] = {1: 1.0}

    def prices(self, curve: Curve, most_rows: int) -> tuple[Sequence[float], Sequence[float]]:
        """Seconds of the coming pass by its rows; and less what its shape is worth afterwards."""
        if not curve.prices_change:
            return curve.steady, curve.steady
        steady, changed = curve.steady, curve.changed
        settling_s = curve.settling_s if self.settled else 0.0
        full = [seconds + settling_s for seconds in changed[: most_rows + 1]]
        if self.last <= most_rows:
            full[self.last] = steady[self.last]
        prices = full.copy()
        for rows, share in self._share.items():
            if rows <= most_rows:
                prices[rows] -= _WORTH * share * (changed[rows] - steady[rows])
        return full, prices

    def leave(self) -> None:
        """Something else was computed since: whatever comes next is another shape."""
        self.last, self.settled = 0, False

    def observe(self, rows: int) -> None:
        """A pass was made."""
        self.settled = rows == self.last
        self.last = rows
        kept = {b: _KEPT * share for b, share in self._share.items() if share > _RARE}
        kept[rows] = kept.get(rows, 0.0) + 1.0 - _KEPT
        self._share = kept

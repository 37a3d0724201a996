"""Which shape the last pass had, which are in use, and so what the next one costs.

Knows rows and prices only. On a GPU a pass of another shape than the last one costs more, and the
second one of the new shape even more: there it records what it repeats from then on. Whoever
leaves a shape that has settled will pay for settling once, here or elsewhere, so that is charged on
leaving. A shape that is used often is worth being in: the next pass will likely have it too.

So a pass may be cheaper with rows that nobody reads: in the last shape, or in one whose kernels are
faster. A plain pass stays in the shape of drafts where the next draft is near.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.control.prices.curve import Curve

_KEPT = 0.9  # of a shape's share of the passes, per pass
_WORTH = 0.9  # part of the change that a shape in constant use is expected to save
_RARE = 0.01
# Padding must save so much of a pass; a draft is waited for if one comes in so many passes.
_SAVES, _SELDOM = 0.02, 20.0


class Shapes:
    """The last shape, and the share that each shape had of the latest passes."""

    def __init__(self) -> None:
        self.last = 1
        self.settled = True  # whether the last shape had at least two passes in a row
        self.begins = False  # whether a text's first pass is to come,
        self._settles = False  # and whether none of its passes has settled yet
        self._astray = False  # the first one that did was no plain pass
        self._share: dict[int, float] = {1: 1.0}
        self._drafting = 0.0  # the share of the latest passes that had a draft
        self._drafts: dict[int, float] = {}  # and of those, the share of each shape

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

    def widths(self, curve: Curve, full: Sequence[float]) -> list[int]:
        """By rows, how many a draft's pass over one sequence is cheapest with; `full`: prices."""
        found, best, full = list(range(len(full))), len(full) - 1, [*full]
        if self.last < len(full):
            full[self.last] += self._settling_s(curve)
        for rows in range(len(full) - 1, 1, -1):
            if full[rows] <= full[best] * (1.0 + _SAVES):
                best = rows
            if best == self.last or curve.steady[best] < curve.steady[rows]:
                found[rows] = best
        return found

    def waits(self, curve: Curve) -> bool:
        """Whether a plain pass is made in the shape of the last draft: to stay there until the next
        one comes costs less than to leave it and to come back."""
        if not 1 < self.last < len(curve.steady):  # one that read a prompt may have no price
            return False
        steady, changed = curve.steady, curve.changed
        n_plain = 1.0 / max(self._drafting, 1.0 / _SELDOM)
        there_s = changed[1] - steady[1] + (1.0 - 1.0 / n_plain) * curve.settling_s
        back_s = self._drafts.get(self.last, 0.0) * (changed[self.last] - steady[self.last])
        stay_s = n_plain * (steady[self.last] - steady[1]) + self._settling_s(curve)
        return stay_s < there_s + back_s

    def _settling_s(self, curve: Curve) -> float:
        """What staying in the last shape takes more now, as far as that is not paid sooner or later
        for a shape that drafts come back to."""
        if self.settled or self.last == 1:
            return 0.0
        return (1.0 - self._drafts.get(self.last, 0.0)) * curve.settling_s

    def begin(self) -> None:
        """A prompt was read: the text's first pass changes the shape whatever it is, and the second
        one settles."""
        self.leave()
        self.begins = self._settles = True
        self._astray = False

    def back_s(self, curve: Curve, rows: int) -> float:
        """What it costs to come back to a plain pass of so many rows, sooner or later: it changes
        the shape, and settles once more where a text has settled in another one, or will now."""
        elsewhere = self.last != rows and not self.begins
        again = self._astray or (elsewhere and self._settles)
        return curve.changed[rows] - curve.steady[rows] + again * curve.settling_s

    def owed_s(self, curve: Curve, rows: int, settling_s: float = 0.0) -> float:
        """What the coming pass takes longer that plain decoding would have paid in this text, too:
        the first change of shape, and the first settling; `rows`: of a plain pass."""
        if self.begins:
            return curve.changed[rows] - curve.steady[rows]
        return settling_s if self._settles else 0.0

    def leave(self) -> None:
        """Something else was computed since: whatever comes next is another shape."""
        self.last, self.settled = 0, False

    def observe(self, rows: int, *, drafted: bool = False) -> None:
        """A pass was made."""
        self._drafting = _KEPT * self._drafting + (1.0 - _KEPT) * drafted
        self.settled = rows == self.last
        self.last = rows
        self.begins = False
        if self.settled:
            self._astray, self._settles = rows > 1 and (self._settles or self._astray), False
        self._share = _moved(self._share, rows)
        if drafted:
            self._drafts = _moved(self._drafts, rows)


def faster_widths(steady: Sequence[float], most_rows: int) -> list[int]:
    """By rows, those of the pass that is fastest among all with as many or more; a plain one stays
    as it is. Empty: every pass is fastest as it is."""
    found, best, wider = [*range(most_rows + 1)], most_rows, False
    for rows in range(most_rows, 1, -1):
        if steady[rows] <= steady[best] * (1.0 + _SAVES):
            best = rows
        else:
            found[rows], wider = best, True
    return found if wider else []


def _moved(shares: dict[int, float], rows: int) -> dict[int, float]:
    """After one more pass of this shape."""
    kept = {b: _KEPT * share for b, share in shares.items() if share > _RARE}
    kept[rows] = kept.get(rows, 0.0) + 1.0 - _KEPT
    return kept

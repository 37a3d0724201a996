"""The coming pass and its prices, by how many tokens are drafted for it.

Knows rows and seconds; nothing of what proposers offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter

from parlay.control.betting.followed_request import FollowedRequest
from parlay.control.betting.stake import Bound
from parlay.control.prices.undoing import FOR_NOTHING, Undoing

# What one bet may lose at most, in plain passes, however unlikely that is; and beside them what it
# costs to leave the shape of a plain pass and to take a draft back. Where to leave it is dear, as
# much again, up to another pass: a mixture's pass over 16 rows takes 3.2 plain ones, and with two
# no draft that is worth its change of shape was ever allowed.
_LARGEST_LOSS = 2.0


@dataclass(slots=True)
class Market:
    """The coming pass and its prices."""

    requests: list[FollowedRequest]  # those that may bet
    n_sequences: int  # all of them
    rows: int  # if nobody bets, padding included
    undrafted: int  # the same without padding
    steady: Sequence[float]  # seconds by rows, the shape being what it was
    full: Sequence[float]  # with the change of shape this very pass would make
    prices: Sequence[float]  # less what its shape will be worth afterwards
    return_s: float  # what coming back to a plain pass costs
    rate: float  # tokens per second, of late
    plain_s: float
    # Rows that the longest draft's next token takes: one, or one of every sequence where a pass is
    # padded lest llama.cpp cut it in parts.
    step: int = 1
    floor: int = 0  # rows that a pass has at least, drafted or padded
    level: bool = False  # nothing is padded, and only drafts of equal length are not cut in parts
    undoing: Undoing = FOR_NOTHING
    crowded: bool = False  # others wait for a slot
    widths: Sequence[int] = ()  # by rows, what a pass is padded to: these are its prices
    owed_s: float = 0.0  # what a plain pass, too, takes longer now: a text begins
    room_s: float = 0.0  # what a token that one sequence is ahead saves each of the others
    least_rate: float = 0.0  # tokens per second that are valued, whatever can be made

    def copy(self) -> Market:
        """The same, to be changed: every round has one, and `replace` takes five times as long."""
        return Market(*_ALL(self))

    def padded(self, widths: Sequence[int]) -> Market:
        """The same, where a pass is padded to these rows."""
        made, of = self.copy(), itemgetter(*widths)
        made.steady, made.full, made.prices = of(self.steady), of(self.full), of(self.prices)
        made.widths = widths
        return made

    def width(self, rows: int) -> int:
        """The rows of a pass that needs so many."""
        return self.widths[rows] if self.widths else rows

    def at(self, window: int) -> int:
        """Rows of the pass if one sequence drafts so many tokens."""
        return max(self.floor, self.undrafted + window * self.step)

    def rows_at(self, most: int, *, least: int = 1) -> Sequence[int]:
        """The same for every window from the least to the widest one."""
        first = self.undrafted + least * self.step
        if self.floor <= first:
            return range(first, first + (most + 1 - least) * self.step, self.step)
        return [self.at(window) for window in range(least, most + 1)]

    def share_s(self, gained: Sequence[float]) -> list[float]:
        """Seconds that one sequence carries of a pass with so many tokens drafted, from none on,
        and of taking them back; `gained`: tokens expected to hold."""
        steady, plain_s, n_sequences = self.steady, self.plain_s, self.n_sequences
        rows_at = self.rows_at(len(gained) - 1, least=0)
        if self.step > 1:  # all have as many rows
            passes = [steady[rows] / n_sequences for rows in rows_at]
        else:
            others_s = plain_s - plain_s / n_sequences
            passes = [steady[rows] - others_s for rows in rows_at]
        if not self.undoing.seconds:
            return passes
        return [s + self.undoing.expected_s(gained, k) for k, s in enumerate(passes)]

    @property
    def to_and_fro_s(self) -> float:
        """What it costs to leave the shape of a plain pass and to come back to it."""
        rows = min(self.at(1), len(self.full) - 1)
        return self.full[rows] - self.steady[rows] + self.return_s

    @property
    def largest_s(self) -> float:
        """What one bet may lose, however unlikely that is."""
        change_s = self.to_and_fro_s
        more_s = min(self.plain_s, change_s)
        return _LARGEST_LOSS * self.plain_s + more_s + change_s + self.step * self.undoing.seconds

    @property
    def plainly(self) -> bool:
        """Whether the last pass had the shape of a plain one."""
        return self.full[self.rows] == self.steady[self.rows]

    def widest(self, bound: Bound, n_certain: int = 0) -> int:
        """The widest window whose loss is allowed; the first tokens may be certain to be right."""
        most = min(bound.n_tokens, self.most_window)
        for window, rows in zip(range(most, 0, -1), reversed(self.rows_at(most)), strict=True):
            loss_s = self.loss(rows) - min(n_certain, window) * self.plain_s
            if bound.allows(loss_s, window):
                return window
        return 0

    @property
    def most_window(self) -> int:
        """The widest window that has a price."""
        return (len(self.full) - 1 - self.undrafted) // self.step

    def loss(self, rows: int) -> float:
        """What a pass of so many rows loses if all of its drafts are wrong."""
        window = (rows - self.undrafted) // self.step
        return self.pass_loss(rows) + self.step * self.undoing.worst_s(window)

    def pass_loss(self, rows: int) -> float:
        """The same, but for taking the drafts back: nothing for rows that would be padding."""
        if rows == self.rows:
            return 0.0
        return self.full[rows] - self.plain_s - self.owed_s + self.return_s


_ALL = attrgetter(*[each.name for each in fields(Market)])

"""The account: what speculation has won or lost so far, and how much it may still put at stake.

Knows seconds and proposers' names only. It is the promise never to lose, kept by arithmetic: a
round is bet only if its whole cost, should every token be rejected, is within the allowance.
Per request that is 2 % of the plain time of its tokens, or a fixed stake if that is more, plus all
that was won in it. A proposer without a record gets half a plain pass for a stake; one that has won
in earlier requests up to two. So no answer loses more than 2 %, or two passes if it is short.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHARE = 0.02  # of the plain time of the tokens generated in the request
_STAKE = 0.5  # plain passes, for a proposer nothing is known of
_LARGEST_BONUS = 1.5  # plain passes more, for one that has won
# The bonus is this part of what a proposer has won of late; each request it is bet in forgets a
# fifth of that.
_BONUS_SHARE, _KEPT = 0.25, 0.8


class Account:
    """Seconds won, by request (a slot) and by proposer."""

    def __init__(self, record: Mapping[str, float] | None = None) -> None:
        """`record`: seconds that proposers won in earlier runs."""
        self._balance: dict[int, float] = {}
        self._booked: dict[int, set[str]] = {}  # the proposers bet on in each request
        self._record = {source: float(won) for source, won in (record or {}).items()}

    def open(self, seq_id: int) -> None:
        """A new request in a slot."""
        self._balance[seq_id] = 0.0
        self._booked[seq_id] = set()

    def book(self, seq_id: int, source: str, seconds: float) -> None:
        """A round won so many seconds over plain decoding, or lost them."""
        self._balance[seq_id] += seconds
        kept = 1.0 if source in self._booked[seq_id] else _KEPT
        self._booked[seq_id].add(source)
        self._record[source] = kept * self._record.get(source, 0.0) + seconds

    def allowance(self, seq_id: int, source: str, n_generated: int, plain_s: float) -> float:
        """Seconds the coming round may lose, where a plain one takes `plain_s`."""
        bonus = min(_LARGEST_BONUS * plain_s, _BONUS_SHARE * self._record.get(source, 0.0))
        stake = _STAKE * plain_s + max(0.0, bonus)
        return self._balance[seq_id] + max(stake, _SHARE * plain_s * n_generated)

    def to_dict(self) -> dict[str, float]:
        """The proposers' records."""
        return {source: round(won, 6) for source, won in self._record.items()}

"""The account: what speculation has won or lost so far, and how much it may still put at stake.

Knows seconds and proposers' names only. It is the promise never to lose, kept by arithmetic: a
round is bet only if its whole cost, should every token be rejected, is within the allowance.
Per request that is 2 % of the plain time of its tokens, or a stake if that is more, plus all that
was won in it. The stake is half a plain pass, and for a proposer with a record a part (0.15) of
what it has won of late, up to a limit. A draft model may also take what earlier requests left of
their 2 %: its first bet is dear, for it has to read the text, and on a GPU the shape changes there
and back. So over many answers no more than 2 % is lost, unless six times as much was won before.

What was spent without a bet counts as lost, too: searching for drafts, indexing a prompt.

Where the text itself has shown how unlikely a loss is (`evidence.py`), it is the average loss that
has to stay within the stake: a draft that was right sixteen times of sixteen is not a gamble.

A proposer that drafts from what came with one request has no record beyond it: that others sent
good texts says nothing of this one. Its stake is 2 % of half of what the request may still
generate, until the text itself has shown something.

A pass is shared, and whoever is in it waits for its end: what each of them won or lost in its own
time is booked, too. A text without drafts loses by every bet of its neighbours, and that must stay
within the same bound.

A first bet that is lost must not keep a text out that repeats itself from there on: drafts that are
refused and turn out right make up for part of a loss, where the proposer has a record to lose.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHARE = 0.02  # of the plain time of the tokens generated in the request
_STAKE = 0.5  # plain passes, for a proposer nothing is known of
_CERTAIN = 0.5  # of a bound that is spent where the loss is no risk, but certain
_LIKELY = 0.5  # of what a request may generate, it does
# Plain passes that a text which has shown something may lose on average; up to twice as many where
# it costs a pass to leave its shape: that is paid once, however long the text goes on.
_RISK = 1.0
# What a draft model may lose in a text that nothing was lost in yet: at most so many plain passes.
# What it lost in earlier texts counts for half: one that began badly is no bad drafter.
_FIRST, _BORNE = 2.0, 0.5
# What refused drafts may make up for: so many plain passes, and never more than the bonus; where
# the text has shown something, what its whole length allows, up to so many.
_REGAINED, _MOST_REGAINED = 1.5, 4.0
# The bonus is this part of what a proposer has won of late; each request it is bet in forgets
# three tenths of that.
_BONUS_SHARE, _KEPT = 0.15, 0.7
# And each request forgives a tenth of what a proposer has lost.
_FORGIVEN = 0.9


class Account:
    """Seconds won, by request (a slot) and by proposer."""

    def __init__(self, record: Mapping[str, float] | None = None) -> None:
        """`record`: seconds that proposers won in earlier runs."""
        self._balance: dict[int, float] = {}
        self._booked: dict[int, set[str]] = {}  # the proposers bet on in each request
        self._spent: dict[int, float] = {}  # on searching and indexing, bet or not
        self._waited: dict[int, float] = {}  # in its own time: lost, if negative
        self._regained: dict[int, float] = {}  # by refused drafts that were right
        self._shown: dict[int, float] = {}  # by drafts that were only looked at
        self._share: dict[int, float] = {}  # seconds that each request may lose by its length
        self._left = 0.0  # what requests that have ended left of theirs
        self._before: dict[int, dict[str, float]] = {}  # the record when each request began
        self._record = {proposer: float(won) for proposer, won in (record or {}).items()}

    def open(self, seq_id: int) -> None:
        """A new request in a slot; the one before it leaves what it did not lose."""
        lost = min(0.0, self._balance.get(seq_id, 0.0) - self._spent.get(seq_id, 0.0))
        self._left = max(0.0, self._left + self._share.pop(seq_id, 0.0) + lost)
        self._balance[seq_id] = self._spent[seq_id] = self._regained[seq_id] = 0.0
        self._booked[seq_id], self._waited[seq_id], self._shown[seq_id] = set(), 0.0, 0.0
        for proposer, won in self._record.items():  # one that lost gets another chance, one day
            if won < 0:
                self._record[proposer] = _FORGIVEN * won
        self._before[seq_id] = dict(self._record)

    def book(self, seq_id: int, proposer: str, seconds: float) -> None:
        """A round won so many seconds over plain decoding, or lost them."""
        self._balance[seq_id] += seconds
        kept = 1.0 if proposer in self._booked[seq_id] else _KEPT
        self._booked[seq_id].add(proposer)
        self._record[proposer] = kept * self._record.get(proposer, 0.0) + seconds

    def wait(self, seq_id: int, seconds: float) -> None:
        """A pass with bets, whosever, saved this request so many seconds, or took them."""
        self._waited[seq_id] += seconds

    def spend(self, seq_id: int, seconds: float) -> None:
        """So much was spent that plain decoding would not have spent, and no bet was made of it."""
        self._spent[seq_id] += seconds

    def regain(self, seq_id: int, seconds: float) -> None:
        """A refused draft would have won so much, or lost it."""
        self._regained[seq_id] = max(0.0, self._regained[seq_id] + seconds)

    def show(self, seq_id: int, seconds: float) -> None:
        """A draft that was only looked at would have won so much, or lost it."""
        self._shown[seq_id] = max(0.0, self._shown[seq_id] + seconds)

    def allowance(
        self, seq_id: int, proposer: str, n_generated: int, plain_s: float, limit_s: float
    ) -> float:
        """Seconds the coming round may lose, where a plain one takes `plain_s` and a proposer that
        has won may stake `limit_s` more than one that has not."""
        bonus = max(0.0, min(limit_s, _BONUS_SHARE * self._record.get(proposer, 0.0)))
        return self._allowance(seq_id, n_generated, plain_s, bonus)

    def own_allowance(
        self, seq_id: int, n_generated: int, plain_s: float, n_remaining: int
    ) -> float:
        """The same for a proposer that drafts from what came with this request alone."""
        first_s = _SHARE * _LIKELY * (n_generated + n_remaining) * plain_s
        return self._allowance(seq_id, n_generated, plain_s, max(0.0, first_s - _STAKE * plain_s))

    def _allowance(self, seq_id: int, n_generated: int, plain_s: float, bonus: float) -> float:
        self._share[seq_id] = _SHARE * plain_s * n_generated
        balance = self._balance[seq_id] - self._spent[seq_id]
        if balance < 0:
            balance = min(0.0, balance + min(bonus, _REGAINED * plain_s, self._regained[seq_id]))
        return balance + max(_STAKE * plain_s + bonus, self._share[seq_id])

    def patience(self, seq_id: int, n_generated: int, plain_s: float, *, sure: bool) -> float:
        """Seconds that the coming pass may make this request wait for the bets of all in it;
        `sure`: it has none of its own, and loses them whatever comes."""
        part = _CERTAIN if sure else 1.0
        return self._waited[seq_id] + part * max(_STAKE, _SHARE * n_generated) * plain_s

    def at_risk(
        self,
        seq_id: int,
        n_generated: int,
        plain_s: float,
        n_remaining: int,
        change_s: float = 0.0,
    ) -> float:
        """Seconds the coming round may lose on average, whatever the proposer's record is.

        A text that has shown something may risk early what its whole length allows: one that
        repeats itself mostly goes on to its end. What searching took is not held against what it
        found, and a loss is made up for by drafts that were refused and right. `change_s`: what it
        costs to leave the shape of a plain pass and to come back.
        """
        whole = _SHARE * (n_generated + n_remaining)
        dear = min(1.0, change_s / plain_s)
        balance = self._balance[seq_id]
        if balance < 0:
            most_s = max(_REGAINED, min(_MOST_REGAINED, _LIKELY * whole)) * plain_s
            balance = min(0.0, balance + min(most_s, self._regained[seq_id]))
        likely = _LIKELY + (1.0 - _LIKELY) * dear
        stake = max(_STAKE, min(_RISK * (1.0 + dear), likely * whole)) * plain_s
        return balance + max(stake, self._share[seq_id])

    def left(self, seq_id: int) -> float:
        """Seconds that were won in this request, with those that it may lose by its length."""
        return self._balance[seq_id] + self._share.get(seq_id, 0.0)

    def vouch(self, proposer: str, seconds: float) -> None:
        """It was seen to be right without a bet: losses of earlier bets weigh so much less."""
        lost = self._record.get(proposer, 0.0)
        if lost < 0:
            self._record[proposer] = min(0.0, lost + seconds)

    def vouched(self, seq_id: int, proposer: str, limit_s: float) -> float:
        """Seconds that one may stake which this text has shown to be right, less what it lost; and
        what was lost in the text, as far as drafts that were only looked at make up for it."""
        lost = -min(0.0, self._balance[seq_id] - self._spent[seq_id])
        staked = max(0.0, limit_s + min(0.0, self._record.get(proposer, 0.0)))
        return staked + min(lost, self._shown[seq_id])

    def first_stake(
        self, seq_id: int, proposer: str, n_generated: int, plain_s: float, n_remaining: int
    ) -> float:
        """Seconds beyond the usual allowance that a draft model may lose, as long as its text has
        not earned them by its length, less what it has lost in earlier ones."""
        most = min(_FIRST, _SHARE * (n_generated + n_remaining))
        most -= max(_STAKE, _SHARE * n_generated)
        lost = min(0.0, self._before[seq_id].get(proposer, 0.0))
        return max(0.0, most * plain_s + _BORNE * lost)

    def savings(self, proposer: str, limit_s: float) -> float:
        """Seconds that earlier requests left, less what this proposer has lost of them."""
        self._left = min(self._left, limit_s)
        return max(0.0, self._left + min(0.0, self._record.get(proposer, 0.0)))

    def to_dict(self) -> dict[str, float]:
        """The proposers' records."""
        return {proposer: round(won, 6) for proposer, won in self._record.items()}

"""Leaves hidden states inside where no drafter wants them: reading them out costs passes.

Takes a drafter that does not pay off the table and puts it back; while it is there, passes of
requests that may not draft with it go without states. Knows nothing of prices: whether it paid is
read from what the controller chose.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import numpy as np

from parlay.decoding.round import Fallback, Round
from parlay.decoding.span import Span
from parlay.engine.drafts import Drafts
from parlay.engine.sequence import Sequence as Answering
from parlay.llama.context import Context
from parlay.proposers.follower import Follower
from parlay.timing.probe_text import real_tokens

log = logging.getLogger("parlay.engine")

# Out of so many rounds in which it could have been chosen, fewer than the share below is too few.
_N_ROUNDS, _SHARE = 256, 1 / 32
_N_NEVER = 128  # not once in so many is enough
# To switch takes llama.cpp about as long as states cost in so many passes: only after these.
_N_UNNEEDED = 8
# After so many answers it is tried again, then after twice as many; work changes between answers.
_MIN_ANSWERS, _MAX_ANSWERS = 4, 64
# Rounds that say nothing of what a drafter is worth: somebody else decided.
_DECIDED = frozenset(
    {Fallback.REQUEST, Fallback.POLICY, Fallback.GRAMMAR, Fallback.REASONING, Fallback.PROMPT_HEAVY}
)
_TRIALS = ("probe", "trial")  # drafts that were made to learn, not to gain
_N_PREFIX = 24


class DrafterPause:
    """One drafter that follows the target, at work or paused."""

    def __init__(self, drafts: Drafts, target: Context, drafter: Follower) -> None:
        self._drafts = drafts
        self._target = target
        self._drafter = drafter
        self._chosen: deque[bool] = deque(maxlen=_N_ROUNDS)
        self._wait = _MIN_ANSWERS
        self._n_answers = 0
        self.paused = False
        self._n_unneeded = 0  # passes in a row that nobody wanted the states of
        self._unseen: set[int] = set()  # sequences whose passes the drafter was not told of

    def before_pass(self, sequences: Sequence[Answering]) -> None:
        """A pass is about to be made: its states are read out if one of these may draft by them."""
        if self.paused:
            return
        if any(self._may_want(seq) for seq in sequences):
            self._n_unneeded = 0
            if self._unseen:
                self._look_again()
            return
        self._n_unneeded += 1
        if self._n_unneeded > _N_UNNEEDED:
            self._target.pause_capture(True)
            self._unseen.update(seq.seq_id for seq in sequences)

    def _may_want(self, seq: Answering) -> bool:
        request = seq.request
        allowed = request.proposers is None or self._drafter.name in request.proposers
        return allowed and not request.plain

    def _look_again(self) -> None:
        for seq_id in self._unseen:
            self._drafter.leave(seq_id)
        self._unseen.clear()
        self._target.pause_capture(False)

    def observe(self, rounds: Sequence[Round]) -> None:
        """The rounds of one pass, on the worker's thread."""
        if self.paused:
            self._n_answers += sum(r.position == 0 for r in rounds)
            if self._n_answers >= self._wait:
                self._resume()
            return
        for r in rounds:
            if r.fallback not in _DECIDED:
                drafted = r.proposer == self._drafter.name and r.n_drafted > 0
                self._chosen.append(drafted and r.reason not in _TRIALS)
        n_chosen = sum(self._chosen)
        if n_chosen >= _SHARE * _N_ROUNDS:
            self._wait = _MIN_ANSWERS
        elif len(self._chosen) >= (_N_ROUNDS if n_chosen else _N_NEVER):
            self._pause(n_chosen)

    def _pause(self, n_chosen: int) -> None:
        name = self._drafter.name
        if self._drafts.proposers.pop(name, None) is None:
            return
        self._drafts.absent[name] = Fallback.UNPROFITABLE
        self._target.pause_capture(True)
        self.paused, self._n_answers = True, 0
        n_rounds = len(self._chosen)
        self._chosen.clear()
        self._unseen.clear()
        log.info(
            "the drafter %s is paused: %d of the last %d rounds paid; it comes back after %d"
            " answers", name, n_chosen, n_rounds, self._wait,
        )  # fmt: skip

    def _resume(self) -> None:
        name = self._drafter.name
        self.paused = False
        self._wait = min(2 * self._wait, _MAX_ANSWERS)
        self._drafter.start_over()
        self._target.pause_capture(False)
        self._drafts.absent.pop(name, None)
        self._drafts.proposers[name] = self._drafter


def bits_stay(target: Context) -> bool:
    """Whether a pass gives the same logits, bit for bit, with and without states read out.

    Takes the first sequence, which must be free.
    """
    tokens = real_tokens(target, _N_PREFIX + 8)
    found: list[list[bytes]] = []
    try:
        for paused in (False, True):
            target.pause_capture(paused)
            found.append([_logits(target, tokens, rows) for rows in (1, 2, 5, 8)])
    finally:
        target.pause_capture(False)
        target.clear(0)
    return found[0] == found[1]


def _logits(target: Context, tokens: Sequence[int], rows: int) -> bytes:
    target.clear(0)
    target.decode([Span(0, 0, tokens[:_N_PREFIX], 0)])
    (read,) = target.decode([Span(0, _N_PREFIX, tokens[_N_PREFIX : _N_PREFIX + rows], rows)])
    return np.ascontiguousarray(read).tobytes()

"""Check a draft against the target's logits: one row per draft token and one more.

Knows neither models nor sequences. p is the target, q the draft, here and everywhere.

`coupled` draws the target's token at every row, exactly as plain decoding would, and goes on while
the draft guessed it: the text is plain decoding's by construction. `rejection` is the classic
alternative (accept with probability min(1, p/q), else draw from the rest): the distribution is the
target's, but the text depends on the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.draft import Distribution, Draft
from parlay.decoding.masked import Masked
from parlay.decoding.noise import gumbel, uniform
from parlay.decoding.sampling import Sampling, distribution, draw, likeliest
from parlay.decoding.verdict import Verdict
from parlay.errors import NothingFollows


class Rows(Protocol):
    """The target's logits, row by row: an array, or what a grammar leaves of it."""

    def __getitem__(self, j: int, /) -> NDArray[np.float32]: ...


Verify = Callable[[Draft, Rows, Sampling, Sequence[int], int, Container[int]], Verdict]

# Rejection sampling draws three independent numbers at one position; coupled drawing uses stream 0.
_ACCEPT, _RESIDUAL, DRAFT_STREAM = 1, 2, 3


# What stands at row j: the guess where it is accepted, else the target's own token.
_Judge = Callable[[Draft, int, Rows, Sampling, Sequence[int], int], int]


def _verification(judge: _Judge) -> Verify:
    """Go on while the draft's tokens stand; one more token where all of them do."""

    def verify(
        draft: Draft,
        p: Rows,
        sampling: Sampling,
        history: Sequence[int],
        position: int,
        ends: Container[int],
    ) -> Verdict:
        tokens: list[int] = []
        certain = sampling.untouched and not isinstance(p, Masked)
        try:
            for j, guess in enumerate(draft.tokens):
                token = likeliest(p[j]) if certain else _known(p, j)
                if token is None:
                    before = _after(history, tokens, sampling)
                    token = judge(draft, j, p, sampling, before, position + j)
                tokens.append(token)
                if token != guess:
                    return Verdict(tuple(tokens), len(draft.tokens), j)
                if guess in ends:
                    return Verdict(tuple(tokens), j + 1, j + 1)
            k = len(tokens)
            token = likeliest(p[k]) if certain else _known(p, k)
            if token is None:
                before = _after(history, tokens, sampling)
                token = _drawn(draft, k, p, sampling, before, position + k)
            tokens.append(token)
            return Verdict(tuple(tokens), k, k)
        except NothingFollows:
            if not tokens:
                raise
            return _so_far(tokens)

    return verify


def _known(p: Rows, j: int) -> int | None:
    """What stands at row j however it is judged, where a grammar tells."""
    return p.known(j) if isinstance(p, Masked) else None


def _drawn(
    _draft: Draft, j: int, p: Rows, sampling: Sampling, before: Sequence[int], position: int
) -> int:
    """The target's own draw, whatever was guessed."""
    if isinstance(p, Masked):
        return p.drawn(j, before, position)
    return draw(p[j], sampling, before, position)


def _tried(
    draft: Draft,
    j: int,
    p: Rows,
    sampling: Sampling,
    before: Sequence[int],
    position: int,
) -> int:
    """The guess with probability min(1, p/q), else a draw from p - q, which is never the guess."""
    guess, target = draft.tokens[j], distribution(p[j], sampling, before)
    q = draft.q[j] if draft.q is not None else _certain(guess)
    if uniform(sampling.seed, position, _ACCEPT) * q.of(guess) < target.of(guess):
        return guess
    return draw_from(residual(target, q), sampling.seed, position, _RESIDUAL)


def _so_far(accepted: list[int]) -> Verdict:
    """Nothing may follow: what was accepted stands, as plain decoding would have said it too."""
    return Verdict(tuple(accepted), len(accepted), len(accepted))


def residual(p: Distribution, q: Distribution) -> Distribution:
    """What is left of p where q proposed too little."""
    q_of = dict(zip(q.ids.tolist(), q.probs.tolist(), strict=True))
    q_at = np.array([q_of.get(token, 0.0) for token in p.ids.tolist()])
    left = np.maximum(p.probs - q_at, 0.0)
    total = left.sum()
    # Rounding can leave nothing where p and q agree; p itself is then the right answer.
    return Distribution(p.ids, left / total) if total > 0 else p


def draw_from(given: Distribution, seed: int, position: int, stream: int) -> int:
    """One token of a distribution, by noise of its own stream."""
    live = given.probs > 0
    ids = given.ids[live]
    scores = np.log(given.probs[live]) + gumbel(seed, position, ids, stream)
    return int(ids[int(scores.argmax())])


def _certain(token: int) -> Distribution:
    return Distribution(np.array([token]), np.ones(1))


def _after(history: Sequence[int], tokens: Sequence[int], sampling: Sampling) -> Sequence[int]:
    """The text before the next row; built only when the penalties will read it."""
    if not sampling.penalised:
        return ()
    return (*history[-sampling.penalty_last_n :], *tokens)


coupled = _verification(_drawn)
rejection = _verification(_tried)
VERIFICATIONS: dict[str, Verify] = {"coupled": coupled, "rejection": rejection}

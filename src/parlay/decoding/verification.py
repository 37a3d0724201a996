"""Check a draft against the target's logits: one row per draft token and one more.

Knows neither models nor sequences. p is the target, here and everywhere.

The target's token is drawn at every row, exactly as plain decoding would draw it, and the answer
goes on while the draft guessed it: the text is plain decoding's by construction, whatever was
drafted (coupled verification).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.draft import Draft
from parlay.decoding.masks import Masked
from parlay.decoding.sampling import Sampling, draw, likeliest
from parlay.decoding.verdict import Verdict
from parlay.errors import NothingFollows


class Rows(Protocol):
    """The target's logits, row by row: an array, or what a grammar leaves of it."""

    def __getitem__(self, j: int, /) -> NDArray[np.float32]: ...


def verify(
    draft: Draft,
    p: Rows,
    sampling: Sampling,
    history: Sequence[int],
    position: int,
    ends: Container[int],
) -> Verdict:
    """Go on while the draft's tokens are what the target draws; one more token where all are."""
    tokens: list[int] = []
    certain = sampling.untouched and not isinstance(p, Masked)
    try:
        for j, guess in enumerate((*draft.tokens, None)):
            if certain:
                token = likeliest(p[j])
            else:
                token = _drawn(p, j, sampling, _after(history, tokens, sampling), position + j)
            tokens.append(token)
            if token != guess:  # after the whole draft there is no guess
                return Verdict(tuple(tokens), len(draft.tokens), j)
            if guess in ends:
                return Verdict(tuple(tokens), j + 1, j + 1)
    except NothingFollows:
        if not tokens:
            raise
        # What was accepted stands, as plain decoding would have said it too.
    return Verdict(tuple(tokens), len(tokens), len(tokens))


def _drawn(p: Rows, j: int, sampling: Sampling, before: Sequence[int], position: int) -> int:
    """The target's own draw at one row."""
    if isinstance(p, Masked):
        return p.drawn(j, before, position)
    return draw(p[j], sampling, before, position)


def _after(history: Sequence[int], tokens: Sequence[int], sampling: Sampling) -> Sequence[int]:
    """The text before the next row; built only when the penalties will read it."""
    if not sampling.penalised:
        return ()
    return (*history[-sampling.penalty_last_n :], *tokens)

"""Rows under a constraint: masked where that could change the draw, and left alone elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.constraint import Mask
from parlay.decoding.draft import Draft
from parlay.decoding.masks import Masked, everything, masked, only, prepare
from parlay.decoding.sampling import Sampling
from parlay.decoding.verification import verify
from parlay.errors import BadRequest
from tests.scripted import LaxConstraint

N = 16
DRAWN = Sampling(temperature=0.9, top_p=0.8, seed=3)


class Even(LaxConstraint):
    """Even tokens after a draft of even length, odd ones after the others."""

    def __init__(self) -> None:
        self.n_masks = 0

    def permits(self, draft: Sequence[int], token: int) -> bool:
        return token % 2 == len(draft) % 2

    def allowed(self, draft: Sequence[int]) -> Mask:
        self.n_masks += 1
        return np.packbits(np.arange(N) % 2 == len(draft) % 2, bitorder="little")


def rows(seed: int, n: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n, N)).astype(np.float32)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repeat_penalty=1.3), DRAWN])
@pytest.mark.parametrize("seed", range(8))
def test_the_verdict_is_that_of_rows_that_are_all_masked(sampling: Sampling, seed: int) -> None:
    p, constraint = rows(seed), Even()
    whole = np.stack([masked(p[j], constraint.allowed([0] * j)) for j in range(len(p))])
    draft = Draft(tuple(int(whole[j].argmax()) for j in range(3)), "ngram")
    lazily = Masked(p, constraint, draft.tokens, sampling)
    asked = (sampling, [1, 2], 5, frozenset({N}))
    assert verify(draft, lazily, *asked) == verify(draft, whole, *asked)


def test_a_row_whose_likeliest_token_may_come_needs_no_mask() -> None:
    p, constraint = np.zeros((2, N), np.float32), Even()
    p[0, 4], p[1, 4] = 1, 1
    held = Masked(p, constraint, [4], Sampling())
    assert held.drawn(0, (), 0) == 4 and constraint.n_masks == 0
    assert held.drawn(1, (), 0) % 2 == 1 and constraint.n_masks == 1
    assert p[1, 4] == 1  # the target's own row stays as it is


def test_a_row_is_drawn_from_without_a_mask_where_few_questions_tell() -> None:
    p, constraint = np.zeros((1, N), np.float32), Even()
    p[0, 4], p[0, 5] = 9, 10
    held = Masked(p, constraint, [], DRAWN)
    assert held.drawn(0, (), 7) == 4 and constraint.n_masks == 0
    p[0] = 0  # what the filter leaves hangs on all of them
    assert held.drawn(0, (), 7) % 2 == 0 and constraint.n_masks == 1


def test_where_one_token_must_come_no_row_is_read_and_no_mask_made() -> None:
    class Forces(Even):
        def must(self, draft: Sequence[int]) -> int | None:
            return 4 + len(draft)

    constraint = Forces()
    for sampling in (Sampling(), DRAWN):
        held = Masked(np.full((3, N), np.nan, np.float32), constraint, [4, 5], sampling)
        found = verify(Draft((4, 5), "skeleton"), held, sampling, [1], 0, frozenset())
        assert found.tokens == (4, 5, 6) and constraint.n_masks == 0


@pytest.mark.parametrize("n_may", [3, 3000])
def test_columns_beyond_the_mask_may_never_come(n_may: int) -> None:
    found = masked(np.ones(5008, np.float32), only(5000, *range(n_may)))
    assert np.isfinite(found).sum() == n_may and np.isinf(found[5000:]).all()


def test_a_row_that_is_allowed_whole_is_not_copied() -> None:
    row = np.ones(13, np.float32)
    assert masked(row, everything(13)) is row is not masked(row, everything(12))


def test_masks_are_made_ready_only_where_every_row_will_ask_for_one() -> None:
    constraint = Even()
    prepare(constraint, [0, 1, 0], Sampling())
    assert constraint.n_masks == 0
    prepare(constraint, [0, 1, 0], DRAWN)
    assert constraint.n_masks == 4


def test_a_grammar_that_gives_up_ends_nothing_before_its_row_is_read() -> None:
    class GivesUp(Even):
        def allowed(self, draft: Sequence[int]) -> Mask:
            raise BadRequest("too complex")

    prepare(GivesUp(), [0], DRAWN)

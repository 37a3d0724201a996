"""What a grammar forces is drafted, by itself and behind a model's draft, and needs no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parlay.decoding.constraint import Forced
from parlay.decoding.draft import NO_DRAFT
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.proposer import Ask
from parlay.proposers.skeleton import SkeletonProposer
from tests.scripted import LaxConstraint


class Counts(LaxConstraint):
    """After a draft of n tokens it forces n, n + 1 and n + 2; the last of them may be longer."""

    complete = False

    def forced(self, draft: Sequence[int] = ()) -> Forced:
        n = len(draft)
        return Forced((n, n + 1, n + 2), (1.0, 1.0, 0.8))


def test_what_must_come_is_drafted_as_far_as_the_window_goes() -> None:
    asks = [Ask(i, [7, 7], window, constraint=Counts()) for i, window in enumerate((8, 2, 0))]
    drafts = SkeletonProposer().draft([*asks, Ask(3, [7], 8)])
    assert [d.tokens for d in drafts] == [(0, 1, 2), (0, 1), (), ()]
    assert [d.confidence for d in drafts] == [(1.0, 1.0, 0.8), (1.0, 1.0), (), ()]
    assert drafts[-1] is NO_DRAFT  # no grammar holds


def test_behind_anothers_draft_it_is_what_must_follow_that() -> None:
    (draft,) = SkeletonProposer().draft([Ask(0, [7, 7, 1, 2], 8, n_ahead=2, constraint=Counts())])
    assert draft.tokens == (2, 3, 4)


def test_a_models_draft_is_followed_by_what_is_forced_behind_it_within_the_window() -> None:
    for window, wanted in ((8, (5, 1, 2, 3)), (3, (5, 1, 2)), (1, (5,))):
        ask = Ask(0, [7], window, constraint=Counts())
        made = Drafting(ask, DraftLimits(frozenset(), 8, 8), rated=True)
        made.add(np.eye(8, dtype=np.float32)[5])
        draft = made.draft("model")
        assert (draft.tokens, draft.proposer) == (wanted, "model")
        assert draft.confidence[1:] == (1.0, 1.0, 0.8)[: len(wanted) - 1]

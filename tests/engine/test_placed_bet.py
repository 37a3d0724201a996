"""What is left of a draft where it is cut: never by chance that was drawn already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.control.controller import Choice, FixedWindow, View
from parlay.decoding.sampling import Sampling
from parlay.engine.request import Request
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Proposer
from tests.engine.rig import N_VOCAB, Rig, exact_class
from tests.scripted import ScriptedModel

SIZE, RARE = 512, 0.25
ANY = exact_class(*range(1, 17), prompts=True)


def two_tokens(_history: Sequence[int]) -> NDArray[np.float32]:
    """One of them comes seldom, whatever was said."""
    row = np.full(N_VOCAB, -np.inf, np.float32)
    row[1], row[2] = np.log(1 - RARE), np.log(RARE)
    return row


class Sure(FixedWindow):
    """Wants no token verified that its drafter was not sure of."""

    def _choose(self, view: View) -> Choice:
        def verify(sure: Sequence[float]) -> int:
            return next((n for n, each in enumerate(sure) if each < 0.5), len(sure))

        return replace(super()._choose(view), keep_going=lambda _sure: True, verify=verify)


def cut_by_confidence(drafters: dict[str, Proposer]) -> Rig:
    target = ScriptedModel(two_tokens, N_VOCAB, SIZE)
    controller = Sure(4)
    return Rig(
        target=target, proposers=drafters, controller=controller, mode="faithful", context_size=SIZE
    )


def cut_to_stay_in_a_class(drafters: dict[str, Proposer]) -> Rig:
    target = ScriptedModel(two_tokens, N_VOCAB, SIZE)
    return Rig(target=target, proposers=drafters, window=8, exact=ANY, wide=ANY, context_size=SIZE)


@pytest.mark.parametrize("rig_of", [cut_by_confidence, cut_to_stay_in_a_class])
def test_tokens_come_as_often_as_the_target_says_them_where_drafts_are_cut(
    rig_of: Callable[[dict[str, Proposer]], Rig],
) -> None:
    n, n_rare, limits = 0, 0, DraftLimits(frozenset(), N_VOCAB, 64)
    for seed in range(30):
        drafter = DraftModel(ScriptedModel(two_tokens, N_VOCAB, SIZE), limits)
        rig = rig_of({"model": drafter})
        sampling = Sampling(temperature=1.0, seed=seed)
        (seq,) = rig.run(Request((5, 6, 7), 400, sampling))
        assert seq.counts.n_drafted > 100
        n, n_rare = n + seq.n_generated, n_rare + seq.tokens[3:].count(2)
    assert abs(n_rare / n - RARE) < 4 * (RARE * (1 - RARE) / n) ** 0.5

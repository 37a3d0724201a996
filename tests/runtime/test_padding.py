"""Padded passes: the text stays, the cache of idle sequences too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parlay.control.controller import Choice, FixedWindow, View
from parlay.runtime.request import Request
from tests.runtime.rig import Rig, plain


class Alternating(FixedWindow):
    """A window for every second sequence: ragged passes."""

    def choose(self, views: Sequence[View]) -> list[Choice]:
        chosen = super().choose(views)
        refused = FixedWindow(0).choose(views)
        return [chosen[i] if view.seq_id % 2 else refused[i] for i, view in enumerate(views)]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_ragged_drafts_are_padded_to_one_pass_and_say_what_each_says_alone(n: int) -> None:
    rig = Rig(slots=n, mode="faithful", controller=Alternating(3))
    requests = [Request((i + 1, 2), max_tokens=12) for i in range(n)]
    answers = rig.run(*requests)
    assert [rig.text(seq) for seq in answers] == [plain(request) for request in requests]
    drafted = [shape for shape in rig.target.shapes if max(shape) == 4]
    assert drafted
    assert all(len(set(shape)) == 1 for shape in drafted if len(shape) == n)


def test_a_gap_that_an_ended_answer_left_is_filled_and_its_cache_is_kept() -> None:
    rig = Rig(slots=3, mode="faithful", window=0)
    long_a = rig.add(Request((1, 2), max_tokens=20))
    short = rig.add(Request((3, 4), max_tokens=3))
    long_b = rig.add(Request((5, 6), max_tokens=20))
    while not short.done:
        rig.scheduler.step()
    kept = list(rig.target.cache[short.seq_id])
    rig.target.shapes.clear()
    rig.finish()
    assert rig.target.shapes[0] == (1, 1, 1)
    assert rig.target.cache[short.seq_id] == kept
    assert long_a.n_generated == long_b.n_generated == 20
    assert long_a.rounds[-1].n_padding == 1
    assert rig.text(long_b) == plain(Request((5, 6), max_tokens=20))


def test_a_failed_pass_leaves_idle_sequences_as_they_were() -> None:
    rig = Rig(slots=3, mode="faithful", window=0)
    rig.add(Request((1, 2), max_tokens=9))
    short = rig.add(Request((3, 4), max_tokens=2))
    rig.add(Request((5, 6), max_tokens=9))
    while not short.done:
        rig.scheduler.step()
    kept = list(rig.target.cache[short.seq_id])
    rig.target.fail_next = 1
    rig.finish()
    assert rig.target.cache[short.seq_id] == kept

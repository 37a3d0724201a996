"""Padded passes: the text stays, the cache of idle sequences too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from parlay.control.choice import Choices, FixedWindow, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting
from parlay.engine.request import Request
from tests.engine.rig import Rig, plain


class Alternating(FixedWindow):
    """A window for every second sequence: ragged passes."""

    def choose(self, views: Sequence[View]) -> Choices:
        chosen = super().choose(views).each
        refused = FixedWindow(0).choose(views).each
        return Choices([chosen[i] if v.seq_id % 2 else refused[i] for i, v in enumerate(views)])


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
        rig.loop.step()
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
        rig.loop.step()
    kept = list(rig.target.cache[short.seq_id])
    rig.target.fail_next = 1
    rig.finish()
    assert rig.target.cache[short.seq_id] == kept


def planned(lengths: Sequence[int], costs: CostTable, cutting: Cutting, size: int) -> list[int]:
    """The rows of one pass over prompts so long, where their reading has these prices."""
    rig = Rig(
        slots=len(lengths),
        mode="faithful",
        cutting=cutting,
        context_size=size,
        prices=costs,
        n_batch=2048,
    )
    rig.run(*[Request(tuple([i + 1] * n), max_tokens=1) for i, n in enumerate(lengths)])
    return list(rig.target.shapes[0])


@pytest.mark.parametrize(("row_s", "n_rows"), [(1e-5, 18), (1.0, 15)])
def test_prompts_are_padded_where_the_reading_of_rows_is_cheaper_than_another_pass(
    row_s: float, n_rows: int
) -> None:
    prompt = Curve({1: 1e-3, 512: 1e-3 + 511 * row_s}, {})
    costs = CostTable({(256, 1): Curve({1: 1e-3, 2: 2e-3}, {})}, prompt=prompt)
    assert sum(planned((4, 6, 5), costs, Cutting(), 128)) == n_rows


def test_prompts_that_fill_more_rows_than_were_measured_are_not_padded_for_nothing() -> None:
    prompt = Curve({1: 5e-3, 512: 5e-2}, {})
    costs = CostTable({(256, 1): Curve({1: 1e-3, 2: 2e-3}, {})}, prompt=prompt)
    lengths = (100, 100, 100, 500)
    assert planned(lengths, costs, Cutting(n_most=2048), 1024) == list(lengths)


class Wide(FixedWindow):
    """Wants eight rows for what needs fewer."""

    def choose(self, views: Sequence[View]) -> Choices:
        return replace(super().choose(views), width=lambda rows: 8)


@pytest.mark.parametrize("window", [0, 3])
def test_one_sequence_is_padded_as_the_controller_wants_and_says_the_same(window: int) -> None:
    rig = Rig(mode="faithful", controller=Wide(window), script=[True, False] * 20)
    request = Request((1, 2), max_tokens=24)
    (answer,) = rig.run(request)
    assert rig.text(answer) == plain(request)
    assert set(rig.target.shapes[1:]) == {(8,)}
    assert {r.n_pass_rows for r in answer.rounds} == {8}
    assert all(r.n_rows + r.n_padding == 8 for r in answer.rounds)


def test_in_exact_mode_the_class_decides_and_no_price() -> None:
    rig = Rig(mode="exact", controller=Wide(3))
    (answer,) = rig.run(Request((1, 2), max_tokens=12))
    assert {r.n_padding for r in answer.rounds} == {0}

"""Padded passes: the text stays, the cache of idle sequences too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from parlay.control.controller import Choice, FixedWindow, View
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting
from parlay.decoding.span import Span
from parlay.engine.padding import Padding
from parlay.engine.request import Request
from parlay.engine.slots import Slots
from tests.engine.rig import LOGITS, N_VOCAB, Rig, plain
from tests.scripted import ScriptedModel


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


@pytest.mark.parametrize(("row_s", "n_rows"), [(1e-5, 18), (1.0, 15)])
def test_prompts_are_padded_where_the_reading_of_rows_is_cheaper_than_another_pass(
    row_s: float, n_rows: int
) -> None:
    prompt = Curve({1: 1e-3, 512: 1e-3 + 511 * row_s}, {})
    costs = CostTable({(256, 1): Curve({1: 1e-3, 2: 2e-3}, {})}, prompt=prompt)
    target = ScriptedModel(LOGITS, N_VOCAB, 128)
    padding = Padding(target, Slots(target, 3), Cutting(), lambda: costs)
    spans = padding.pad([Span(i, 0, [1] * n, 1) for i, n in enumerate((4, 6, 5))])
    assert sum(len(span.tokens) for span in spans) == n_rows


def test_prompts_that_fill_more_rows_than_were_measured_are_not_padded_for_nothing() -> None:
    costs = CostTable(
        {(256, 1): Curve({1: 1e-3, 2: 2e-3}, {})}, prompt=Curve({1: 5e-3, 512: 5e-2}, {})
    )
    target = ScriptedModel(LOGITS, N_VOCAB, 1024)
    padding = Padding(target, Slots(target, 4), Cutting(n_most=2048), lambda: costs)
    spans = padding.pad([Span(i, 0, [1] * n, 1) for i, n in enumerate((100, 100, 100, 500))])
    assert [len(span.tokens) for span in spans] == [100, 100, 100, 500]


class Wide(FixedWindow):
    """Wants eight rows for what needs fewer."""

    def choose(self, views: Sequence[View]) -> list[Choice]:
        widths = (0, *[8] * 8)
        return [replace(choice, widths=widths) for choice in super().choose(views)]


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

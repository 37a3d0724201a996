"""The probe of exact shapes, on models whose rounding depends on the shape of the pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.runtime.exactness import NOTHING_EXACT, ExactShapes, probe
from parlay.testing import ScriptedModel, hashed_logits

LOGITS = hashed_logits(16)
MAX_ROWS = 17
# Given the rows of a pass, the tokens before it and its sequences: does it round differently?
Differs = Callable[[int, int, int], bool]


class Rounding(ScriptedModel):
    """Logits are off by a little where the script says so, as with another kernel."""

    def __init__(self, differs: Differs, context_size: int = 512) -> None:
        super().__init__(LOGITS, 16, context_size)
        self._differs = differs

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = super().decode(spans)
        n = sum(len(span.tokens) for span in spans)
        off = [self._differs(n, span.start, len(spans)) for span in spans]
        return [r + np.float32(1e-5) * o for r, o in zip(rows, off, strict=True)]


def exact_rows(differs: Differs, max_rows: int = MAX_ROWS, context_size: int = 512) -> list[int]:
    probed = probe(Rounding(differs, context_size), max_rows, 1)
    assert probed.complete
    return sorted(probed.shapes.rows)


EVERY = list(range(1, MAX_ROWS + 1))


def test_a_model_that_rounds_alike_in_every_shape_is_exact_in_all_of_them() -> None:
    assert exact_rows(lambda n, start, seqs: False) == EVERY


def test_a_model_that_never_rounds_alike_is_exact_in_single_passes_only() -> None:
    assert exact_rows(lambda n, start, seqs: n > 1) == [1]


def test_a_kernel_that_switches_at_four_rows_leaves_three() -> None:
    probed = probe(Rounding(lambda n, start, seqs: n > 3), MAX_ROWS, 1)
    assert probed.shapes == ExactShapes(frozenset({1, 2, 3}), concurrent=False)
    assert not probed.shapes.useful


@settings(deadline=None, max_examples=40)
@given(bad=st.frozensets(st.integers(2, MAX_ROWS)), max_rows=st.integers(1, MAX_ROWS))
def test_whichever_shapes_differ_the_others_are_found(bad: frozenset[int], max_rows: int) -> None:
    found = exact_rows(lambda n, start, seqs: n in bad, max_rows)
    assert found == [n for n in range(1, max_rows + 1) if n not in bad]


@settings(deadline=None, max_examples=40)
@given(
    limit=st.integers(1, MAX_ROWS - 1),
    lucky=st.integers(2, MAX_ROWS),
    where=st.sampled_from([24, 9, 264]),
)
def test_agreement_by_chance_in_one_context_is_caught_in_another(
    limit: int, lucky: int, where: int
) -> None:
    """Beyond the limit nothing is exact, but one shape happens to agree in one context."""

    def differs(n: int, start: int, seqs: int) -> bool:
        return n > limit and not (n == lucky and start == where)

    assert exact_rows(differs) == list(range(1, limit + 1))


@pytest.mark.parametrize("limit", range(1, MAX_ROWS))
def test_a_kernel_that_switches_in_long_contexts_only_is_found_wherever_it_switches(
    limit: int,
) -> None:
    found = exact_rows(lambda n, start, seqs: n > limit and start > 256)
    assert found == list(range(1, limit + 1))


def test_a_kernel_for_single_tokens_in_long_contexts_leaves_nothing_exact() -> None:
    assert exact_rows(lambda n, start, seqs: n == 1 and start >= 256) == [1]


def test_a_context_too_short_for_a_probe_is_probed_as_far_as_it_goes() -> None:
    assert exact_rows(lambda n, start, seqs: n > 5, context_size=100) == [1, 2, 3, 4, 5]
    assert exact_rows(lambda n, start, seqs: False, context_size=20) == [1]


# -- time --------------------------------------------------------------------------------------


def test_without_time_nothing_is_called_exact_and_the_probe_says_it_is_not_complete() -> None:
    probed = probe(Rounding(lambda n, start, seqs: False), MAX_ROWS, 1, budget_s=0.0)
    assert not probed.complete
    assert probed.shapes.rows == {1}


class Clock:
    """A single pass takes a second by this clock."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("lucky", [24, 9, 264])
@pytest.mark.parametrize("budget_s", [20, 40, 60, 10_000])
def test_a_probe_that_runs_out_of_time_calls_nothing_exact_that_is_not(
    budget_s: float, lucky: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever contexts there was time for, agreement in one of them is not enough."""
    monkeypatch.setattr("parlay.runtime.exactness.perf_counter", Clock())
    model = Rounding(lambda n, start, seqs: n > 5 and start != lucky)
    probed = probe(model, MAX_ROWS, 1, budget_s=budget_s)
    assert probed.complete == (budget_s == 10_000)
    assert probed.shapes.rows <= {1, 2, 3, 4, 5}


# -- what it leaves behind ---------------------------------------------------------------------


def test_the_probe_leaves_every_cache_empty() -> None:
    model = Rounding(lambda n, start, seqs: n > 6)
    probe(model, MAX_ROWS, 3)
    assert not any(model.cache.values())


@pytest.mark.parametrize("n_good", [0, 1, 20, 60])
def test_a_failing_pass_ends_the_probe_with_its_error_and_empty_caches(n_good: int) -> None:
    class Failing(ScriptedModel):
        n_left = n_good

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = super().decode(spans)
            self.n_left -= 1
            if self.n_left < 0:
                raise DecodeError("scripted failure", code=-3)
            return rows

    model = Failing(LOGITS, 16, 512)
    with pytest.raises(DecodeError):
        probe(model, MAX_ROWS, 2)
    assert not any(model.cache.values())


def test_no_pass_of_the_probe_is_larger_than_the_smallest_batch_or_the_largest_draft() -> None:
    model = ScriptedModel(LOGITS, 16, 512)
    probe(model, 9, 4)
    assert max(sum(shape) for shape in model.shapes) <= 16


def test_a_cache_that_cannot_be_cut_is_read_again() -> None:
    class Recurrent(Rounding):
        def reusable(self, seq_id: int, length: int) -> int:
            return length if length >= self.length(seq_id) else 0

        def truncate(self, seq_id: int, length: int) -> None:
            assert length == self.length(seq_id), "a recurrent cache cannot be cut"

    probed = probe(Recurrent(lambda n, start, seqs: n > 4), MAX_ROWS, 1)
    assert sorted(probed.shapes.rows) == [1, 2, 3, 4]


# -- several sequences -------------------------------------------------------------------------


def test_passes_over_several_sequences_are_probed_apart() -> None:
    alike = probe(Rounding(lambda n, start, seqs: n > 12), MAX_ROWS, 4)
    assert alike.shapes == ExactShapes(frozenset(range(1, 13)), concurrent=True)
    apart = probe(Rounding(lambda n, start, seqs: seqs > 1), MAX_ROWS, 4)
    assert apart.shapes == ExactShapes(frozenset(EVERY), concurrent=False)


def test_one_sequence_needs_no_probe_of_several() -> None:
    model = ScriptedModel(LOGITS, 16, 512)
    assert not probe(model, MAX_ROWS, 1).shapes.concurrent
    assert all(len(shape) == 1 for shape in model.shapes)


# -- what the shapes allow ---------------------------------------------------------------------

SHAPES = st.frozensets(st.integers(2, 40)).map(lambda rows: ExactShapes(rows | {1}, True))


@given(shapes=SHAPES, wanted=st.integers(0, 40), n_sequences=st.integers(1, 8))
def test_the_window_is_the_largest_whose_pass_is_exact(
    shapes: ExactShapes, wanted: int, n_sequences: int
) -> None:
    window = shapes.window(wanted, n_sequences)
    assert 0 <= window <= wanted
    if window:
        assert shapes.holds((window + 1) * n_sequences, n_sequences)
    for larger in range(window + 1, wanted + 1):
        assert not shapes.holds((larger + 1) * n_sequences, n_sequences)


def test_a_hole_limits_passes_that_llama_cpp_may_split_and_no_others() -> None:
    shapes = ExactShapes(frozenset({1, 2, 3, 4, 6, 7, 8}), concurrent=True)
    assert shapes.limit == 4
    assert shapes.window(7, 1) == 7
    assert shapes.window(4, 1) == 3
    assert shapes.window(7, 2) == 1
    assert not shapes.holds(6, 2)
    assert shapes.holds(4, 2)
    assert not ExactShapes(shapes.rows, concurrent=False).holds(4, 2)


def test_a_window_of_three_is_useful_and_two_is_not() -> None:
    assert ExactShapes(frozenset({1, 2, 3, 4}), concurrent=False).useful
    assert not ExactShapes(frozenset({1, 2, 3}), concurrent=False).useful
    assert not NOTHING_EXACT.useful
    assert NOTHING_EXACT.holds(1, 1)
    assert not NOTHING_EXACT.holds(2, 2)

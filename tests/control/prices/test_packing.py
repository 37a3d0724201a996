"""Padding that pays: gaps and ragged drafts beside their measured prices."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting, PassPart, seconds
from parlay.control.prices.packing import is_whole, padded, unmeasured

APART = Cutting()
ALL = range(16)


def on_a_gpu(parts: Sequence[PassPart]) -> float:
    """The 8B stand-in on an H200, caches apart."""
    one = Curve({1: 3.33e-3, 2: 3.53e-3, 3: 4.1e-3}, {})
    eight = Curve({8: 6.43e-3, 24: 9e-3}, {})
    many = Curve({16: 8.56e-3, 48: 11.03e-3}, {})
    table = CostTable({(256, 1): one, (256, 8): eight, (256, 16): many})
    return seconds(parts, table, 256)


def test_a_gap_is_filled_by_an_idle_sequence() -> None:
    rows = {s: 1 for s in ALL if s != 7}
    assert padded(rows, (), {7}, APART, on_a_gpu) == dict.fromkeys(ALL, 1)


def test_a_gap_that_nobody_can_fill_stays() -> None:
    rows = {s: 1 for s in ALL if s != 7}
    assert padded(rows, (), (), APART, on_a_gpu) == rows


def test_one_longer_draft_makes_the_others_as_long_where_that_is_cheaper() -> None:
    rows = {s: 3 if s == 5 else 1 for s in ALL}
    assert padded(rows, (), (), APART, on_a_gpu) == dict.fromkeys(ALL, 3)


def test_what_costs_more_with_padding_is_left_alone() -> None:
    rows = {s: 3 if s == 5 else 1 for s in ALL}
    assert padded(rows, (), (), APART, lambda parts: sum(p.n_rows for p in parts)) == rows


def test_a_prompt_keeps_its_rows() -> None:
    rows = {0: 1, 1: 3, 2: 200}
    assert padded(rows, {2}, (), APART, unmeasured)[2] == 200


def test_a_unified_cache_needs_no_padding() -> None:
    rows = {0: 1, 5: 3}
    assert padded(rows, (), {1, 2, 3, 4}, Cutting(unified=True), on_a_gpu) == rows


@given(
    rows=st.dictionaries(st.integers(0, 12), st.integers(1, 6), min_size=1),
    spare=st.sets(st.integers(0, 12)),
    fixed=st.sets(st.integers(0, 12)),
    most=st.integers(8, 80),
)
def test_padding_only_adds_and_never_costs(
    rows: dict[int, int], spare: set[int], fixed: set[int], most: int
) -> None:
    given_rows, cutting = dict(sorted(rows.items())), Cutting(n_most=most)
    found = padded(given_rows, fixed, spare - set(rows), cutting)
    assert all(found[seq_id] >= n for seq_id, n in rows.items())
    assert all(found[seq_id] == rows[seq_id] for seq_id in fixed & set(rows))
    assert set(found) - set(rows) <= spare
    assert unmeasured(cutting.parts(found)) <= unmeasured(cutting.parts(given_rows))
    assert list(found) == sorted(found)
    assert found == given_rows or sum(found.values()) <= most
    assert not is_whole(given_rows) or found == given_rows

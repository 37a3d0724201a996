"""A batch holds what its spans say, whatever the pass before it was."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.span import Span
from parlay.errors import BadRequest
from parlay.llama.batch import Batch

CAPACITY = 12


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for seq_id in draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)):
        n = draw(st.integers(1, 4))
        tokens = draw(st.lists(st.integers(0, 99), min_size=n, max_size=n))
        n_padding = draw(st.integers(0, n - 1))
        n_logits = draw(st.integers(0, n - n_padding))
        found.append(Span(seq_id, draw(st.integers(0, 9)), tokens, n_logits, n_padding))
    return found


def held(batch: Batch) -> dict[str, list[int]]:
    """What llama.cpp would read."""
    struct = batch.struct
    n = struct.n_tokens

    def array(name: str, kind: type[Any]) -> list[int]:
        return list((kind * n).from_address(getattr(struct, name)))

    owners = array("seq_id", ctypes.c_size_t)
    return {
        "token": array("token", ctypes.c_int32),
        "pos": array("pos", ctypes.c_int32),
        "n_seq_id": array("n_seq_id", ctypes.c_int32),
        "seq_id": [ctypes.c_int32.from_address(owner).value for owner in owners],
        "logits": array("logits", ctypes.c_int8),
    }


def said(given: list[Span]) -> dict[str, list[int]]:
    wanted = []
    for span in given:
        row = np.zeros(len(span.tokens), int)
        row[span.read] = 1
        wanted += row.tolist()
    return {
        "token": [token for span in given for token in span.tokens],
        "pos": [span.start + i for span in given for i in range(len(span.tokens))],
        "n_seq_id": [1 for span in given for _ in span.tokens],
        "seq_id": [span.seq_id for span in given for _ in span.tokens],
        "logits": wanted,
    }


@given(st.lists(spans(), min_size=1, max_size=8))
def test_each_pass_is_what_its_spans_say(passes: list[list[Span]]) -> None:
    batch = Batch(CAPACITY)
    for each in passes:
        assert batch.fill(each) == sum(span.n_logits for span in each)
        assert held(batch) == said(each)


def test_a_pass_of_the_last_ones_shape_has_its_own_tokens_and_places() -> None:
    batch = Batch(CAPACITY)
    for start in (0, 4, 9):
        each = [Span(1, start, [start, start + 1, 7], 3)]
        batch.fill(each)
        assert held(batch) == said(each)


@pytest.mark.parametrize("n", [(13,), (6, 7)])
def test_more_rows_than_it_holds_are_refused(n: tuple[int, ...]) -> None:
    batch = Batch(CAPACITY)
    with pytest.raises(BadRequest, match="holds 12 rows"):
        batch.fill([Span(i, 0, [1] * rows, 1) for i, rows in enumerate(n)])
    each = [Span(0, 0, [1, 2], 2)]
    batch.fill(each)
    assert held(batch) == said(each)

"""What a class of passes allows, and how it is named and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.exactness import (
    PAGE,
    SINGLE,
    ExactClass,
    band,
    n_pages,
    pinned,
)
from parlay.errors import BadRequest
from tests.engine.rig import exact_class, whole_class

WIDTHS = st.frozensets(st.integers(1, 40), min_size=1)


@pytest.mark.parametrize(
    ("widths", "name"),
    [({1}, "1"), ({3, 4}, "3-4"), ({8, 12, 16}, "8,12,16"), ({1, 2, 5}, "1-2,5")],
)
def test_a_class_is_named_after_its_widths(widths: set[int], name: str) -> None:
    assert ExactClass(frozenset(widths)).name == name


@given(widths=WIDTHS)
def test_every_class_is_found_by_its_name_and_by_each_of_its_widths(widths: frozenset[int]) -> None:
    found = ExactClass(widths)
    other = ExactClass(frozenset({99}))
    assert pinned([other, found], found.name) is found
    assert all(pinned([other, found], str(width)) is found for width in widths)


def test_a_class_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(BadRequest, match=r"no exact class '5-8' here; there are: 1, 3-4$"):
        pinned([exact_class(1), exact_class(3, 4)], "5-8")


@given(widths=WIDTHS)
def test_the_floor_alone_holds_at_any_length_since_all_others_are_compared_with_it(
    widths: frozenset[int],
) -> None:
    found = ExactClass(widths)
    assert list(found.fitting([10**6])) == [found.floor]


def test_other_widths_hold_only_where_they_were_probed() -> None:
    found = ExactClass(frozenset({1, 2, 3}), bands=frozenset({0, 2}))
    assert list(found.fitting([100])) == [1, 2, 3]
    assert list(found.fitting([300])) == [1]
    assert list(found.fitting([600])) == [1, 2, 3]


def test_sequences_share_a_pass_only_with_as_many_rows_each_as_were_probed() -> None:
    found = exact_class(2, together=[(2, 1), (2, 2), (4, 1)])
    assert list(found.fitting([40, 50])) == [1, 2]
    assert list(found.fitting([40] * 3)) == []
    assert found.holds([1, 1], [40, 40])
    assert not found.holds([2, 1], [40, 40])  # the second part would be a row alone
    assert whole_class(4).holds([3, 1], [40, 40])
    assert not SINGLE.holds([1, 1], [40, 40])


def test_where_pages_matter_no_row_reads_other_pages_than_a_plain_pass_at_its_place() -> None:
    found = ExactClass(frozenset({3, 4}), paged=True, bands=frozenset({0, 1}))
    for length in range(PAGE - 12, PAGE + 3):
        pages = n_pages(length + found.floor)
        for width in found.fitting([length]):
            assert n_pages(length + width) == pages
        for place in range(length, length + min(found.real_rows([length]), 4)):
            assert n_pages(place + found.floor) == pages


def test_where_pages_matter_neighbours_must_read_as_many() -> None:
    shapes, company = frozenset({(2, 1)}), frozenset({(2, 0), (2, 1)})
    found = ExactClass(frozenset({1}), shapes, paged=True, company=company)
    assert list(found.fitting([40, 200])) == [1]
    assert list(found.fitting([40, 300])) == []


def test_neighbours_with_texts_of_other_pages_are_left_apart_until_that_was_tried() -> None:
    shapes, company = frozenset({(2, 1)}), frozenset({(2, 0), (2, 1)})
    found = ExactClass(frozenset({1}), shapes, company=company)
    assert found.is_tried(2, [40, 200]) and found.fitting([40, 200]) == (1,)
    assert not found.is_tried(2, [40, 300]) and not found.fitting([40, 300])
    whole = replace(whole_class(8), uneven=frozenset())
    assert whole.holds([2, 1], [40, 200]) and not whole.holds([2, 1], [40, 300])
    assert not replace(whole, paged=True).holds([2, 1], [40, 200])
    found = replace(found, uneven=frozenset({2}))
    assert found.is_tried(2, [40, 300]) and found.fitting([40, 300]) == (1,)


def test_lengths_are_told_apart_by_powers_of_two_from_a_page_on() -> None:
    assert [band(n) for n in (0, 255, 256, 511, 512, 1024, 4096)] == [0, 0, 1, 1, 2, 3, 5]


@given(widths=WIDTHS, most=st.integers(1, 12), paged=st.booleans())
def test_a_class_survives_being_kept(widths: frozenset[int], most: int, paged: bool) -> None:
    shapes = whole_class(most).together
    bands, company, uneven = frozenset({0, 3}), frozenset({(2, 1)}), frozenset({2})
    found = ExactClass(widths, shapes, paged, True, bands, company, uneven, "ab")
    assert ExactClass.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    "damage",
    [{"widths": []}, {"widths": [0]}, {"widths": None}, {"together": [[1]]}, {"bands": ["x"]}],
)
def test_a_damaged_record_is_told_apart(damage: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="not a class"):
        ExactClass.from_dict({**exact_class(1, 2).to_dict(), **damage})

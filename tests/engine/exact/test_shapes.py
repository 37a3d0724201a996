"""Who shares an exact pass, and how many rows each has, so that all stay in one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.shapes import PAGE, SINGLE, Composition, ExactClass, band, n_pages
from parlay.errors import BadRequest

SIZE = 4096
WHOLE = ExactClass(1, 17, prompts=True, places=frozenset(range(16)))
FOUR = ExactClass(4, 4, by_page=True, places=frozenset(range(1, 17)))
CLASSES = st.sampled_from([WHOLE, FOUR, replace(FOUR, by_page=False), SINGLE])


@dataclass
class Place:
    seq_id: int
    n_cached: int = 40


def ids(groups: Sequence[Sequence[Place]]) -> list[list[int]]:
    return [[one.seq_id for one in group] for group in groups]


def places(*seq_ids: int) -> list[Place]:
    return [Place(seq_id) for seq_id in seq_ids]


def composed(found: ExactClass, size: int = SIZE) -> Composition:
    """Whatever is looked for is found to hold."""
    return Composition(found, size, lambda own, placed: own.with_places([n for _, n in placed]))


def test_all_share_a_pass_where_every_shape_agrees_and_take_turns_elsewhere() -> None:
    assert ids(composed(WHOLE).groups(places(0, 1, 2, 3))) == [[0, 1, 2, 3]]
    assert ids(composed(FOUR).groups(places(0, 1))) == [[0], [1]]
    assert ids(composed(WHOLE).groups(places(*range(40)))) == [[*range(32)], [*range(32, 40)]]


def test_only_neighbours_share_a_pass_since_llama_cpp_joins_no_others() -> None:
    assert ids(composed(WHOLE).groups(places(7, 0, 3, 2))) == [[0], [2, 3], [7]]


def test_what_was_looked_for_in_vain_is_not_looked_for_again() -> None:
    asked: list[object] = []

    def scout(found: ExactClass, placed: Sequence[tuple[int, int]]) -> ExactClass:
        asked.append(placed)
        return found

    made = Composition(WHOLE, SIZE, scout)
    for _ in range(3):
        assert ids(made.groups(places(0, 1))) == [[0], [1]]
    assert len(asked) == 1


def test_passes_are_padded_to_the_fewest_rows_that_are_in_the_class() -> None:
    assert [list(composed(FOUR).widths([n], [40])) for n in (1, 3, 4)] == [[4]] * 3
    made = composed(WHOLE)
    made.groups(places(0, 1))
    assert list(made.widths([2, 1], [40, 40])) == [2, 2]


def test_an_answer_ends_where_a_padded_pass_would_not_fit_and_no_draft_leads_beyond() -> None:
    made = composed(FOUR, 100)
    assert [made.is_full(n) for n in (96, 97)] == [False, True]
    assert [made.frame([Place(0, n)]).window for n in (92, 94, 95, 96)] == [3, 2, 1, 0]


def test_of_one_width_no_draft_leads_onto_another_page() -> None:
    """A padded plain pass at the last place before a page reads that page already."""
    real = [FOUR.real_rows([length]) for length in (PAGE - 6, PAGE - 5, PAGE - 4, PAGE - 3)]
    assert real == [3, 2, 1, 256]
    made = composed(FOUR)
    assert [made.frame([Place(0, PAGE - n)]).window for n in (7, 6, 4, 3)] == [3, 2, 0, 3]


def test_where_nothing_was_tried_passes_are_padded_plain_ones() -> None:
    made = Composition(replace(FOUR, places=frozenset()), SIZE)
    assert (made.frame([Place(0)]).window, made.frame([Place(0)]).floor) == (0, 4)
    assert list(made.widths([1], [40])) == [4]
    unknown = Composition(replace(WHOLE, places=frozenset()), SIZE)
    assert unknown.frame([Place(0)]).window == 0 and list(unknown.widths([1], [40])) == [1]


@given(
    found=CLASSES, lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=6), data=st.data()
)
def test_whatever_is_composed_is_in_the_class_and_real_rows_read_the_pages_of_plain_ones(
    found: ExactClass, lengths: list[int], data: st.DataObject
) -> None:
    made = composed(found)
    for group in made.groups([Place(i, n) for i, n in enumerate(lengths)]):
        frame, own = made.frame(group), [one.n_cached for one in group]
        assert frame.window is not None
        rows = [1 + data.draw(st.integers(0, frame.window)) for _ in group]
        padded = list(made.widths(rows, own))
        assert made.found.holds(padded, own)
        if not found.whole:
            (length,), (n_real,) = own, rows
            plain = {n_pages(length + i + found.floor) for i in range(n_real)}
            assert plain == {n_pages(length + found.floor)}


@given(length=st.integers(0, 100_000))
def test_bands_are_powers_of_two_from_a_page_on(length: int) -> None:
    assert band(length) == (0 if length < PAGE else (length // PAGE).bit_length())


@pytest.mark.parametrize("found", [WHOLE.with_places([24, 300]), FOUR, SINGLE])
def test_a_class_survives_being_kept(found: ExactClass) -> None:
    assert ExactClass.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    "wrong", [{}, {"floor": 3, "limit": 2}, {**SINGLE.to_dict(), "places": 5}, {"floor": "x"}]
)
def test_a_record_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="not a class"):
        ExactClass.from_dict(wrong)

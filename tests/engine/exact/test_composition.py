"""Who shares a pass, and how many rows each has, so that all stay in one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.composition import Composition
from parlay.engine.exact.exactness import SINGLE, ExactClass, band
from tests.engine.rig import exact_class, whole_class

SIZE = 4096
GPU = exact_class(2, together=[(2, 1), (2, 2), (3, 1), (4, 1)])


@dataclass
class Place:
    seq_id: int
    n_cached: int = 40
    repeating: bool = False


def ids(groups: Sequence[Sequence[Place]]) -> list[list[int]]:
    return [[one.seq_id for one in group] for group in groups]


def places(*seq_ids: int) -> list[Place]:
    return [Place(seq_id) for seq_id in seq_ids]


def test_as_many_share_a_pass_as_the_class_has_a_shape_for() -> None:
    made = Composition(GPU, SIZE)
    assert ids(made.groups(places(0, 1, 2, 3))) == [[0, 1, 2, 3]]
    assert ids(made.groups(places(0, 1, 2, 3, 4, 5))) == [[0, 1, 2, 3], [4, 5]]
    assert ids(Composition(exact_class(3, 4), SIZE).groups(places(0, 1))) == [[0], [1]]


def test_only_neighbours_share_a_pass_since_llama_cpp_joins_no_others() -> None:
    assert ids(Composition(GPU, SIZE).groups(places(0, 2, 3, 7))) == [[0], [2, 3], [7]]


def test_the_fastest_company_is_chosen() -> None:
    pairs = Composition(GPU, SIZE, rate=lambda n: 9.0 if n == 2 else float(n))
    assert ids(pairs.groups(places(0, 1, 2, 3))) == [[0, 1], [2, 3]]


def test_passes_are_padded_to_the_fewest_rows_that_are_in_the_class() -> None:
    alone = Composition(exact_class(3, 4), SIZE)
    assert [list(alone.widths([n], [40])) for n in (1, 3, 4)] == [[3], [3], [4]]
    assert alone.frame([Place(0)]).window == 3
    assert alone.frame([Place(0)]).floor == 3
    together = Composition(GPU, SIZE)
    assert list(together.widths([1, 1], [40, 40])) == [1, 1]
    assert list(together.widths([2, 1], [40, 40])) == [2, 2]


def test_passes_whose_parts_are_in_the_class_are_left_as_they_are() -> None:
    assert list(Composition(whole_class(8), SIZE).widths([5, 1], [40, 40])) == [5, 1]


def test_an_answer_ends_where_a_padded_pass_would_not_fit() -> None:
    made = Composition(exact_class(3, 4), 100)
    assert [made.is_full(n) for n in (96, 97, 98)] == [False, False, True]


def test_no_draft_leads_beyond_where_a_padded_plain_pass_fits() -> None:
    made = Composition(exact_class(3, 4), 100)
    assert [made.frame([Place(0, n)]).window for n in (94, 95, 96, 97)] == [3, 2, 1, 0]


@given(
    lengths=st.lists(st.integers(1, 900), min_size=1, max_size=6),
    paged=st.booleans(),
    rows=st.integers(1, 4),
)
def test_whatever_is_composed_is_in_the_class(lengths: list[int], paged: bool, rows: int) -> None:
    for found in (GPU, exact_class(3, 4), whole_class(8)):
        made = Composition(replace(found, paged=paged), SIZE)
        for group in made.groups([Place(i, n) for i, n in enumerate(lengths)]):
            most = made.frame(group).window
            assert most is not None
            drafted, starts = [min(rows, most + 1)] * len(group), [one.n_cached for one in group]
            assert made.found.holds(made.widths(drafted, starts), starts)


def test_a_length_nobody_tried_is_tried_once() -> None:
    asked: list[list[tuple[int, int]]] = []

    def scout(found: ExactClass, placed: Sequence[tuple[int, int]]) -> ExactClass:
        asked.append(list(placed))
        return replace(found, bands=found.bands | {band(placed[0][1])})

    made = Composition(ExactClass(frozenset({1, 2, 3}), bands=frozenset({0})), SIZE, scout=scout)
    assert made.frame([Place(0, 700)]).window == 0
    made.groups([Place(0, 100)])
    assert not asked
    made.groups([Place(0, 700)])
    made.groups([Place(1, 800)])
    assert asked == [[(0, 700)]]
    assert made.frame([Place(0, 700)]).window == 2


def test_of_single_rows_of_one_sequence_nothing_is_tried_since_there_is_nothing_to_find() -> None:
    def scout(_found: ExactClass, _placed: Sequence[tuple[int, int]]) -> ExactClass:
        raise AssertionError("passes were made for nothing")

    made = Composition(SINGLE, SIZE, scout=scout)
    for length in (40, 300, 3000):
        assert ids(made.groups([Place(0, length), Place(1, length)])) == [[0], [1]]
        assert made.frame([Place(0, length)]).window == 0


def test_where_a_longer_text_rounds_otherwise_all_but_one_row_are_padding() -> None:
    made = Composition(replace(exact_class(3, 4), bands=frozenset({0})), SIZE)
    assert made.frame([Place(0, 100)]).window == 3
    made.groups([Place(0, 700)])  # tried, and not found to hold
    assert made.frame([Place(0, 700)]).window == 0
    assert list(made.widths([1], [700])) == [3]


@given(lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=6), paged=st.booleans())
def test_what_fits_is_what_holds_whether_it_was_asked_before_or_not(
    lengths: list[int], paged: bool
) -> None:
    n = len(lengths)
    for known in (range(16), (0, 1, 3)):
        bands, company = frozenset(known), frozenset((m, b) for m in range(2, 7) for b in known)
        for found in (GPU, exact_class(3, 4), whole_class(8)):
            made = replace(found, paged=paged, bands=bands, company=company)
            holding = [r for r in made.rows_for(n) if made.holds([r] * n, lengths)]
            assert list(made.fitting(lengths)) == holding


@given(
    lengths=st.lists(st.integers(0, 1200), min_size=1, max_size=6),
    paged=st.booleans(),
    uneven=st.frozensets(st.integers(2, 6)),
)
def test_the_short_way_to_what_fits_leads_where_the_parts_of_every_pass_do(
    lengths: list[int], paged: bool, uneven: frozenset[int]
) -> None:
    n = len(lengths)
    for found in (GPU, exact_class(3, 4), whole_class(8)):
        made = replace(found, paged=paged, uneven=uneven, company=frozenset(found.company))
        slowly = [r for r in made.rows_for(n) if made._holds_in_parts([r] * n, lengths)]
        assert list(made.fitting(lengths)) == slowly
        assert all(made.holds([r] * n, lengths) == (r in slowly) for r in range(1, 12))

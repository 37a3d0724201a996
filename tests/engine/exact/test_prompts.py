"""Where exact prompts are cut: whoever reads a text makes the same passes over what is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.prompts import Boundaries, TurnMarks

OPENS, ANSWER, END = 1, 2, 3
MARKS = TurnMarks(openings=((OPENS,),), answer=(ANSWER,), ends=(END,))
LAYOUTS = st.builds(
    lambda step, n, marks, kernels: Boundaries(step, n * step, marks, kernels),
    st.sampled_from([1, 16, 64, 128]),
    st.sampled_from([0, 1, 8]),
    st.sampled_from([None, MARKS]),
    st.booleans(),
)


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Chats and other texts: messages of many lengths, some of them answers."""
    said = [OPENS] if draw(st.booleans()) else [9]
    for length in draw(st.lists(st.integers(1, 300), min_size=1, max_size=6)):
        said += [draw(st.sampled_from([ANSWER, 8])), *[7] * length, END]
    return said


def passes(cut: Boundaries, tokens: list[int], start: int = 0) -> list[tuple[int, int, bool]]:
    """Start, tokens and whether apart, of each pass over a prompt."""
    found = []
    while start < len(tokens):
        n, apart = cut.next_pass(tokens, start)
        assert n > 0
        found.append((start, n, apart))
        start += n
    return found


@given(cut=LAYOUTS, text=texts(), more=texts())
def test_what_a_next_turn_reads_apart_a_cold_one_reads_in_the_very_same_passes(
    cut: Boundaries, text: list[int], more: list[int]
) -> None:
    kept = cut.last(text, len(text))
    assert kept <= len(text)
    whole = [*text, *more]
    cold, warm = passes(cut, whole), passes(cut, whole, kept)
    assert [p for p in warm if p[2]] == [p for p in cold if p[2] and p[0] >= kept]
    # What is kept was read apart in a cold one's passes, or agrees with whatever reads it.
    assert all(start + n <= kept for start, n, apart in cold if apart and start < kept)


@given(cut=LAYOUTS, text=texts())
def test_no_pass_crosses_a_boundary_and_a_part_of_its_own_has_the_rows_for_it(
    cut: Boundaries, text: list[int]
) -> None:
    for start, n, apart in passes(cut, text):
        assert start // cut.step == (start + n - 1) // cut.step
        assert not apart or (cut.kernels and n >= 64)
        if n == cut.step:
            assert cut.is_usual(text, start, n, apart=apart)
            assert not cut.is_usual(text, start, n, apart=not apart)


@given(cut=LAYOUTS, text=texts(), most=st.integers(0, 512))
def test_chunks_that_share_a_pass_are_those_that_are_read_apart_in_turn(
    cut: Boundaries, text: list[int], most: int
) -> None:
    for start, _, _ in passes(cut, text):
        n = cut.joined(text, start, most)
        assert n == 0 or (n <= most and n % cut.step == 0 and n > cut.step)
        ways = [cut.next_pass(text, start + at) for at in range(0, n, cut.step)]
        assert ways == [(cut.step, True)] * len(ways)


def test_deep_in_a_text_only_whole_chunks_are_kept() -> None:
    cut, text = Boundaries(128, 1024, kernels=True), [7] * 2000
    kept = [cut.last(text, n) for n in (5, 1000, 1024, 1100, 1152, 2000)]
    assert kept == [5, 1000, 1024, 1024, 1152, 1920]
    assert Boundaries(128).last(text, 200) == 128

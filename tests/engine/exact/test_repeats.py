"""Whether a text repeats itself depends on its tokens alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.repeats import Repeats

ROUND = list(range(100, 130))
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def _at(tokens: list[int], n_prompt: int) -> bool:
    return Repeats().now(tokens, n_prompt)


def test_a_text_repeats_itself_from_the_eighth_token_that_came_before() -> None:
    text = [*ROUND, 1, *ROUND]
    assert [_at(text[: 31 + n], 31) for n in (0, 7, 8, 20)] == [False, False, True, True]


def test_what_comes_only_once_is_no_repetition() -> None:
    assert not _at(list(range(400)), 200)


@given(text=TEXTS, draft=TEXTS, cut=st.integers(0, 60))
def test_the_way_to_a_text_does_not_matter(text: list[int], draft: list[int], cut: int) -> None:
    """Read token by token with drafts between that did not come true, or all of it at once."""
    n_prompt = min(cut, len(text))
    slowly = Repeats()
    for n in range(n_prompt, len(text) + 1):
        slowly.n_alike(text[:n], n_prompt, draft)
        assert slowly.now(text[:n], n_prompt) == _at(text[:n], n_prompt)


@given(text=TEXTS, draft=TEXTS, cut=st.integers(0, 60))
def test_a_draft_is_cut_where_the_text_would_begin_or_cease_to_repeat_itself(
    text: list[int], draft: list[int], cut: int
) -> None:
    n_prompt = min(cut, len(text))
    n = Repeats().n_alike(text, n_prompt, draft)
    states = [_at([*text, *draft[:k]], n_prompt) for k in range(len(draft) + 1)]
    assert states[: n + 1] == [states[0]] * (n + 1)
    assert n == len(draft) or states[n + 1] != states[0]


def test_repetitions_that_always_end_at_once_are_not_taken_for_such() -> None:
    """Eight tokens again and again, each time followed by something else."""
    text = [t for n in range(12) for t in (*range(8), 1000 + n)]
    found = [_at(text[:n], 9) for n in range(9, len(text) + 1)]
    assert any(found)
    assert not any(found[-30:])


def test_a_text_of_which_part_was_dropped_is_begun_anew() -> None:
    found = Repeats()
    found.now([*ROUND, *ROUND], 30)
    assert found.now(ROUND, 20) == _at(ROUND, 20)


def test_so_is_one_that_is_shorter_than_its_prompt_then_and_it_goes_on_from_there() -> None:
    found, slid = Repeats(), [*ROUND, 1]
    found.now(list(range(200, 300)), 90)
    assert not found.now(slid, 90)
    assert found.now([*slid, *ROUND[:8]], 90)

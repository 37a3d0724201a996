"""What follows a draft is looked for while it is verified: the next one needs no search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.draft import Draft
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.occurrences import Occurrences
from parlay.proposers.proposer import Ask
from parlay.proposers.suffix import SuffixProposer

LooksIntoTexts = SuffixProposer | NgramProposer
BOTH = pytest.mark.parametrize("make", [SuffixProposer, NgramProposer])
tokens = st.lists(st.integers(0, 2), max_size=20)


def drafted(proposer: LooksIntoTexts, text: Sequence[int], window: int) -> Draft:
    return proposer.draft([Ask(0, list(text), window)])[0]


def anew(make: Callable[[], LooksIntoTexts], text: Sequence[int], window: int) -> Draft:
    """By one that has seen nothing of it."""
    return drafted(make(), text, window)


def foreseen(proposer: LooksIntoTexts, text: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The target's own token as it is foreseen, if it is."""
    proposer.meanwhile(Ask(0, list(text), 8), draft)
    return list(proposer._foreseen[0].found.tokens[:1])


@given(tokens, st.integers(1, 3), tokens, st.integers(0, 8), st.integers(0, 2))
def test_whatever_comes_the_same_is_drafted_as_without_looking_ahead(
    base: list[int], n_times: int, rest: list[int], window: int, other: int
) -> None:
    text = base * n_times + rest
    draft = list(anew(SuffixProposer, text, 8).tokens)
    own = foreseen(SuffixProposer(), text, draft)
    for came in ([*draft, *own], [*draft, other], [*draft[:1], other], [other]):
        proposer, now = SuffixProposer(), text + came
        foreseen(proposer, text, draft)
        assert drafted(proposer, now, window) == anew(SuffixProposer, now, window)


@given(tokens, st.integers(0, 8))
def test_an_n_gram_may_be_found_at_a_place_that_shares_one_token_more(
    base: list[int], window: int
) -> None:
    text = base * 3
    proposer = NgramProposer()
    draft = list(drafted(proposer, text, 8).tokens)
    own = foreseen(proposer, text, draft)
    now = text + draft + own
    found, fresh = drafted(proposer, now, window), anew(NgramProposer, now, window)
    assert (len(found.tokens), found.confidence) == (len(fresh.tokens), fresh.confidence)


TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]


@BOTH
def test_a_text_that_went_as_foreseen_is_not_searched(
    make: Callable[[], LooksIntoTexts], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = make()
    assert foreseen(proposer, TEXT, [4, 5]) == [6]
    monkeypatch.setattr(Occurrences, "match", None)
    monkeypatch.setattr(Occurrences, "latest", None)
    monkeypatch.setattr(Occurrences, "feed", None)
    assert drafted(proposer, [*TEXT, 4, 5, 6], 3).tokens == (7, 8, 9)


@BOTH
@pytest.mark.parametrize("came", [[4, 5, 1], [4, 6], [5], [4], [4, 5, 6, 7]])
def test_a_text_that_went_another_way_is_looked_into_anew(
    make: Callable[[], LooksIntoTexts], came: list[int]
) -> None:
    proposer = make()
    foreseen(proposer, TEXT, [4, 5])
    now = [*TEXT, *came]
    assert drafted(proposer, now, 3) == anew(make, now, 3)


ENDS: dict[str, Callable[[LooksIntoTexts], None]] = {
    "finish": lambda p: p.finish(0, TEXT),
    "shift": lambda p: p.cut(0, 1, 1),
    "begin": lambda p: p.open(0, TEXT, 0),
    "close": lambda p: p.close(),
    "nobody will search": lambda p: p.meanwhile(Ask(0, TEXT, 0), [4, 5]),
}


@BOTH
@pytest.mark.parametrize("end", ENDS)
def test_what_was_foreseen_ends_with_its_text(make: Callable[[], LooksIntoTexts], end: str) -> None:
    proposer = make()
    foreseen(proposer, TEXT, [4, 5])
    ENDS[end](proposer)
    assert not proposer._foreseen

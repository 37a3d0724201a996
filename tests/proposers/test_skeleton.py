"""The skeleton proposer: reads the answer's white space, and asks the grammar."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.decoding.spacing import Spacing
from parlay.proposers.proposer import Ask
from parlay.proposers.skeleton import SkeletonProposer

TEXT = '{\n  "a": 1,'


class Forces:
    """A grammar that forces a colon's and a comma's white space, by habit."""

    complete = False

    def forced(self, spacing: Spacing) -> list[int]:
        return [*(spacing.guess(ord('"')) or b""), ord('"')]

    def permits(self, draft: Sequence[int], token: int) -> bool:
        return True

    def accept(self, tokens: Sequence[int]) -> None: ...

    def allowed(self, draft: Sequence[int]) -> None: ...

    def n_obeying(self, draft: Sequence[int]) -> int:
        return len(draft)


def ask(text: str, window: int = 8) -> Ask:
    return Ask(0, [7, 7, *text.encode()], window, n_prompt=2, constraint=Forces())


def proposer() -> SkeletonProposer:
    return SkeletonProposer(lambda token: bytes([token]))


def test_the_draft_has_the_white_space_of_the_answer_so_far() -> None:
    (draft,) = proposer().propose([ask(TEXT)])
    assert bytes(draft.tokens) == b'\n  "'
    assert len(draft.confidence) == 4


def test_the_answer_is_read_as_it_grows_and_forgotten_when_another_begins() -> None:
    made = proposer()
    for n in range(1, len(TEXT) + 1):
        (draft,) = made.propose([ask(TEXT[:n])])
    assert bytes(draft.tokens) == b'\n  "'
    made.forget(0)
    (draft,) = made.propose([ask('{"a":1,')])
    assert bytes(draft.tokens) == b'"'  # compact, as after the colon


def test_a_window_cuts_it_and_without_a_grammar_there_is_none() -> None:
    assert len(proposer().propose([ask(TEXT, window=2)])[0].tokens) == 2
    assert proposer().propose([Ask(0, [1, 2], 4)])[0].tokens == ()

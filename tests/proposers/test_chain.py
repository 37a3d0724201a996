"""A chain of scripted proposers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.chain import ChainProposer
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.proposer import Ask, Proposer
from parlay.proposers.suffix import SuffixProposer


class Scripted:
    """Drafts the given tokens for the given sequences, and writes down what it is told."""

    def __init__(self, name: str, drafts: dict[int, tuple[int, ...]]) -> None:
        self.name = name
        self._drafts = drafts
        self.told: list[object] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.told.append([ask.seq_id for ask in asks])
        return [Draft(self._drafts.get(ask.seq_id, ()), self.name) for ask in asks]

    def forget(self, seq_id: int) -> None:
        self.told.append(("forget", seq_id))

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.told.append(("finish", seq_id, tokens))

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        self.told.append(("shift", seq_id, keep, discard))

    def close(self) -> None:
        self.told.append("close")


class Unclosable(Scripted):
    def close(self) -> None:
        raise OSError("cannot close")


def asks(*seq_ids: int) -> list[Ask]:
    return [Ask(seq_id, [1, 2], 4) for seq_id in seq_ids]


def test_first_proposer_with_a_draft_wins_for_each_sequence_and_is_named() -> None:
    first = Scripted("first", {1: (11,)})
    second = Scripted("second", {1: (99,), 2: (22,)})
    drafts = ChainProposer([first, second]).propose(asks(0, 1, 2))
    assert [(d.tokens, d.source) for d in drafts][1:] == [((11,), "first"), ((22,), "second")]
    assert drafts[0].tokens == ()


def test_later_proposers_are_asked_only_for_what_is_still_empty() -> None:
    proposers = [Scripted("a", {2: (1,)}), Scripted("b", {0: (1,), 1: (1,)}), Scripted("c", {})]
    ChainProposer(proposers).propose(asks(0, 1, 2))
    assert [p.told for p in proposers] == [[[0, 1, 2]], [[0, 1]], []]


def test_chain_without_proposers_or_asks_has_no_drafts() -> None:
    assert ChainProposer([]).propose(asks(0)) == [NO_DRAFT]
    assert ChainProposer([Scripted("a", {})]).propose([]) == []


def test_proposer_that_answers_too_few_asks_is_an_error() -> None:
    class Short(Scripted):
        def propose(self, asks: Sequence[Ask]) -> list[Draft]:
            return super().propose(asks)[1:]

    with pytest.raises(ValueError, match="zip"):
        ChainProposer([Short("short", {})]).propose(asks(0, 1))


def test_every_proposer_hears_of_every_event() -> None:
    proposers = [Scripted("a", {}), Scripted("b", {})]
    chain = ChainProposer(proposers)
    chain.forget(3)
    chain.finish(4, (1, 2))
    chain.shift(5, 6, 7)
    chain.close()
    heard: list[object] = [("forget", 3), ("finish", 4, (1, 2)), ("shift", 5, 6, 7), "close"]
    assert [p.told for p in proposers] == [heard, heard]


def test_all_are_closed_also_when_one_cannot_be() -> None:
    proposers = [Scripted("a", {}), Unclosable("b", {}), Scripted("c", {})]
    with pytest.raises(OSError, match="cannot close"):
        ChainProposer(proposers).close()
    assert [p.told for p in proposers] == [["close"], [], ["close"]]


def test_model_free_proposers_and_the_chain_itself_are_links() -> None:
    links: list[Proposer] = [NgramProposer(4, 4), ChainProposer([SuffixProposer()])]
    [draft] = ChainProposer(links).propose([Ask(0, [1, 2, 3, 4, 1, 2], 8)])
    assert (draft.tokens, draft.source) == ((3, 4), "suffix")

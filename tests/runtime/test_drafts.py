"""Drafts: proposers are asked for what was chosen, and one that fails costs its draft alone."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from parlay.control.controller import Choice, View
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.proposer import Ask, Proposer
from parlay.proposers.suffix import SuffixProposer
from parlay.runtime.drafts import Drafts
from parlay.runtime.faults import Faults
from parlay.runtime.placed_bet import FAILED
from parlay.runtime.request import Request
from parlay.runtime.sequence import Sequence
from tests.runtime.rig import Letters

FREE = frozenset({"suffix", "broken"})


class Scripted:
    """Drafts what it was made with, and keeps what it was asked."""

    def __init__(self, name: str, *tokens: int) -> None:
        self.name = name
        self._tokens = tokens
        self.asked: list[Ask] = []

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        self.asked += asks
        return [Draft(self._tokens[: ask.window], self.name) for ask in asks]

    def forget(self, seq_id: int) -> None: ...

    def finish(self, seq_id: int, tokens: Seq[int]) -> None: ...

    def shift(self, seq_id: int, keep: int, discard: int) -> None: ...

    def close(self) -> None: ...


class Broken(Scripted):
    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        raise RuntimeError("no draft today")


def text(*tokens: int, seq_id: int = 0) -> Sequence:
    made = Sequence(Request(tokens, 16), Letters(), frozenset(), lambda _seq, _pieces: None)
    made.seq_id = seq_id
    return made


def view(seq: Sequence, **offers: Draft) -> View:
    return View(
        seq_id=seq.seq_id,
        n_context=0,
        n_prompt=len(seq.tokens),
        n_generated=0,
        max_window=16,
        proposers=("suffix", "model"),
        offers=offers,
    )


def drafts(*proposers: Proposer) -> Drafts:
    return Drafts({each.name: each for each in proposers}, FREE, Faults())


def test_a_proposer_that_fails_costs_its_own_offer_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = drafts(Broken("broken"), Scripted("suffix", 7, 8))
    offers = asked.offers(["broken", "suffix"], text(1, 2), 4)
    assert offers["broken"] is FAILED
    assert offers["suffix"].tokens == (7, 8)
    assert "the proposer broken failed, decoding plainly" in caplog.text


def test_only_sequences_for_which_a_draft_model_was_chosen_are_drafted_for() -> None:
    model, sequences = Scripted("model", 5, 6, 7), [text(1, seq_id=i) for i in range(3)]
    offer = Draft((9, 9, 9), "suffix")
    views = [view(sequences[0], suffix=offer), view(sequences[1]), view(sequences[2])]
    choices = [Choice("suffix", 2), Choice("model", 2), Choice("none", 0)]
    found = drafts(model, Scripted("suffix")).chosen(sequences, views, choices)
    assert [draft.tokens for draft in found] == [(9, 9), (5, 6), ()]
    assert [ask.seq_id for ask in model.asked] == [1]


def test_a_proposer_that_came_later_is_asked_and_one_that_went_is_not() -> None:
    proposers: dict[str, Proposer] = {}
    asked = Drafts(proposers, FREE, Faults())
    assert asked.glanced(text(1, 2, 1, 2)) == []
    proposers["suffix"] = Scripted("suffix", 3)
    assert [draft.tokens for draft in asked.glanced(text(1, 2))] == [(3,)]
    del proposers["suffix"]
    assert asked.glanced(text(1, 2)) == []


def test_a_glance_sees_what_the_real_suffix_search_would_draft() -> None:
    suffix, seq = SuffixProposer(), text(*range(10, 20), *range(10, 15))
    suffix.begin(0, seq.tokens, 0)
    (seen,) = drafts(suffix).glanced(seq)
    assert seen.tokens[:3] == (15, 16, 17)


def test_what_was_not_asked_for_is_no_draft() -> None:
    sequences = [text(1)]
    found = drafts(Scripted("model", 5)).chosen(
        sequences, [view(sequences[0])], [Choice("model", 0)]
    )
    assert found == [NO_DRAFT]

"""Texts of earlier answers: apart by owner, bounded, forgotten, kept in a file."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

from parlay.proposers.lookup import Lookup
from parlay.proposers.memory import MAX_OWNERS, Memory
from parlay.proposers.proposer import Ask

SIZES = (2, 4, 8)
TEXT = list(range(10, 30))


def tail(*tokens: int) -> array[int]:
    return array("i", tokens)


def memory(max_tokens: int = 1000) -> Memory:
    return Memory(max_tokens, SIZES)


def test_what_one_owner_said_is_found_for_that_owner_only() -> None:
    found = memory()
    found.add("anna", TEXT)
    match = found.match("anna", tail(12, 13, 14))
    assert match is not None and match.follow(3)[0] == (15, 16, 17)
    assert found.match("bert", tail(12, 13, 14)) is None


def test_the_oldest_owners_go_when_there_are_too_many_tokens() -> None:
    found = memory(100)
    for owner in ("a", "b", "c"):
        found.add(owner, range(40))
    assert found.told.n_tokens <= 100
    assert found.match("a", tail(3, 4)) is None
    assert found.match("c", tail(3, 4)) is not None


def test_owners_are_bounded_too() -> None:
    found = memory(1_000_000)
    for i in range(MAX_OWNERS + 5):
        found.add(str(i), TEXT)
    assert found.told.n_owners == MAX_OWNERS


def test_an_owner_is_forgotten_with_its_named_conversations() -> None:
    found = memory()
    for name in ("anna", "anna/letters", "annabel"):
        found.add(name, TEXT)
    found.forget("anna")
    assert found.told.n_owners == 1
    found.forget()
    assert found.told.n_tokens == 0


def test_a_file_brings_everything_back(tmp_path: Path) -> None:
    first, second = memory(), memory()
    first.add("anna", TEXT)
    first.add("anna", [1, 2, 3])
    first.save(tmp_path / "memory.json")
    second.load(json.loads((tmp_path / "memory.json").read_text()))
    assert second.told == first.told
    assert second.match("anna", tail(12, 13, 14)) is not None


def test_what_is_no_memory_is_left_out() -> None:
    found = memory()
    for record in ({}, {"parlay_memory": 1, "owners": {"a": [["x"], 3]}}, {"parlay_memory": 9}):
        found.load(record)
    assert found.told.n_tokens == 0


def test_two_owners_who_ask_the_same_are_drafted_as_if_each_were_alone() -> None:
    proposer = Lookup(remember_tokens=1000)
    proposer.open(0, TEXT, 0, "anna")
    proposer.finish(0, TEXT)

    def drafted(owner: str) -> tuple[int, ...]:
        proposer.open(1, TEXT[:6], 0, owner)
        return proposer.draft([Ask(1, TEXT[:6], 4, owner=owner)])[0].tokens

    assert drafted("bert") == ()
    assert drafted("anna") == tuple(TEXT[6:10])

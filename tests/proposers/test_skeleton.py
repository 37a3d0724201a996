"""The skeleton proposer: reads the answer's white space, and asks the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from parlay.decoding.constraint import Forced
from parlay.decoding.spacing import Spacing
from parlay.proposers.proposer import Ask
from parlay.proposers.skeleton import SkeletonProposer
from tests.scripted import LaxConstraint

TEXT = '{\n  "a": 1,'


class Forces(LaxConstraint):
    """A grammar that forces a colon's and a comma's white space, by habit."""

    complete = False
    n_prepared = 0

    def prepare(self, spacing: Spacing) -> None:
        self.n_prepared += 1

    def forced(self, spacing: Spacing, draft: Sequence[int] = ()) -> Forced:
        space = spacing.guess(ord('"'))
        text = (b"" if space is None else space.text) + b'"k'
        sure = 0.95 if space is None else space.sure
        return Forced(tuple(text), (*(sure,) * (len(text) - 1), 1.0))


def ask(text: str, window: int = 8, owner: str = "") -> Ask:
    return Ask(0, [7, 7, *text.encode()], window, n_prompt=2, constraint=Forces(), owner=owner)


def proposer() -> SkeletonProposer:
    return SkeletonProposer(lambda token: bytes([token]))


def test_the_draft_has_the_white_space_of_the_answer_so_far() -> None:
    (draft,) = proposer().draft([ask(TEXT)])
    assert bytes(draft.tokens) == b'\n  "k'
    assert len(draft.confidence) == 5
    assert draft.confidence[-1] == 1 > draft.confidence[-2]  # the name had to come


def test_the_answer_is_read_as_it_grows_and_forgotten_when_another_begins() -> None:
    made = proposer()
    for n in range(1, len(TEXT) + 1):
        (draft,) = made.draft([ask(TEXT[:n])])
    assert bytes(draft.tokens) == b'\n  "k'
    made.open(0, (), 0)
    (draft,) = made.draft([ask('{"a":1,')])
    assert bytes(draft.tokens) == b'"k'  # compact, as after the colon


def test_an_answer_begins_as_the_last_one_of_its_owner_and_of_nobody_else() -> None:
    made = proposer()
    made.draft([ask(TEXT)])
    made.finish(0, [])
    (same,) = made.draft([ask("{")])
    assert bytes(same.tokens) == b'\n  "k' and same.confidence[0] < 0.8
    made.open(0, (), 0)
    (another,) = made.draft([ask("{", owner="another")])
    assert bytes(another.tokens) == b'"k'
    made.finish(0, [])  # nothing was known of it, so nothing is kept
    (again,) = made.draft([ask("{")])
    assert again == same


def test_an_owner_is_forgotten_with_its_named_conversations() -> None:
    made = proposer()
    for owner in ("anna", "anna/letters", "annabel"):
        made.draft([ask(TEXT, owner=owner)])
        made.finish(0, [])
    made.forget_owner("anna")
    known = {}
    for owner in ("anna", "anna/letters", "annabel"):
        known[owner] = len(made.draft([ask("{", owner=owner)])[0].tokens) > 2
        made.open(0, (), 0)
    assert known == {"anna": False, "anna/letters": False, "annabel": True}
    made.forget_owner()
    assert len(made.draft([ask("{", owner="annabel")])[0].tokens) == 2


def test_owners_that_are_remembered_are_bounded() -> None:
    made = proposer()
    for n in range(1000):
        made.draft([ask(TEXT, owner=str(n))])
        made.finish(0, [])
    assert bytes(made.draft([ask("{", owner="999")])[0].tokens) == b'\n  "k'
    made.open(0, (), 0)
    assert bytes(made.draft([ask("{", owner="0")])[0].tokens) == b'"k'


def test_what_was_found_in_answers_is_kept_for_their_owner_and_for_few_owners() -> None:
    class Finds(Forces):
        seen: ClassVar[list[dict[object, object]]] = []

        def forced(self, spacing: Spacing, draft: Sequence[int] = ()) -> Forced:
            self.seen.append(dict(spacing.found))
            spacing.found["place"] = "skeleton"
            return super().forced(spacing)

    made, names = proposer(), ["first", *map(str, range(100)), "99", "first"]
    for owner in names:
        made.draft([replace(ask(TEXT, owner=owner), constraint=Finds())])
        made.finish(0, [])
    assert [bool(found) for found in Finds.seen] == [False] * 101 + [True, False]


def test_behind_anothers_draft_the_white_space_is_as_if_it_had_come_and_nothing_is_kept() -> None:
    made, text = proposer(), '{\n    "a": '
    ahead = ask(text + "1,")
    (draft,) = made.draft([replace(ahead, n_ahead=2)])
    assert bytes(draft.tokens) == b'\n    "k'
    (other,) = made.draft([ask(text + '{"b":')])
    assert bytes(other.tokens) == b' "k'


def test_a_window_cuts_it_and_without_a_grammar_there_is_none() -> None:
    assert len(proposer().draft([ask(TEXT, window=2)])[0].tokens) == 2
    assert proposer().draft([Ask(0, [1, 2], 4)])[0].tokens == ()


def test_behind_strings_and_numbers_is_looked_while_a_device_computes() -> None:
    made, grammar, found = proposer(), Forces(), list[bool]()
    for text in ('{"a"', '{"a": "x', '{"a": "xy"', '{"a": "xy", "b": 4', '{"a": "xy", "b": 4 '):
        n_before, tokens = grammar.n_prepared, [7, 7, *text.encode()]
        made.meanwhile(Ask(0, tokens, 0, n_prompt=2, constraint=grammar), ())
        found.append(grammar.n_prepared > n_before)
    assert found == [False, True, False, True, False]


def test_outside_of_values_strings_something_may_be_forced() -> None:
    made = proposer()
    found = [made.at_mark(ask(text)) for text in ('{"a": "x', '{"a": "xy"', '{"a": "xy", "b')]
    assert found == [False, True, True]


def test_what_an_owner_s_answers_found_is_forgotten_by_the_one_under_way_too() -> None:
    made = proposer()
    made.draft([ask(TEXT, owner="anna")])
    made._spacings[0][0].found["place"] = Forced()
    made.finish(0, [])
    made.draft([ask('{"a"', owner="anna")])
    under_way = made._spacings[0][0].found
    assert under_way
    made.forget_owner("anna")
    assert not under_way

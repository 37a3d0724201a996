"""What a grammar forces and lets come, with llguidance over an alphabet of our own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from parlay.decoding.alphabet import Alphabet
from parlay.decoding.constraint import Forced
from parlay.decoding.grammar_constraint import GrammarConstraint
from parlay.decoding.mask import members
from parlay.decoding.spacing import Spacing
from parlay.errors import BadRequest

# Every byte of ASCII, some words and marks that models write as one token, and an end.
WORDS = [b'":', b'",', b"\n ", b' "', b"name", b"_", b"person", b"org", b"  "]
PIECES = [bytes([b]) for b in range(128)] + WORDS
END = len(PIECES)
SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string"},
        "kind": {"enum": ["person", "organisation"]},
        "age": {"type": "integer"},
    },
    "required": ["first_name", "kind", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": r"(\n {0,8}| ?)"},
}


def tokenize(text: str) -> list[int]:
    """The longest piece first, as a person would."""
    raw, found = text.encode(), list[int]()
    while raw:
        best = max(
            (t for t, p in enumerate(PIECES) if raw.startswith(p)), key=lambda t: len(PIECES[t])
        )
        found.append(best)
        raw = raw[len(PIECES[best]) :]
    return found


class Tokens:
    """As llguidance wants to see it."""

    is_tokenizer_wrapper = True
    tokens = (*PIECES, b"<end>")
    special_token_ids = (END,)
    eos_token_id = END
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return tokenize(text)


class Counted:
    """A matcher that counts how often a mask is computed, and it is copied."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.counts = [0, 0]  # masks and copies, shared with its copies

    @property
    def n_masks(self) -> int:
        return self.counts[0]

    @property
    def n_copies(self) -> int:
        return self.counts[1]

    def compute_bitmask(self) -> bytes:
        self.counts[0] += 1
        found: bytes = self._matcher.compute_bitmask()
        return found

    def deep_copy(self) -> Counted:
        self.counts[1] += 1
        copied = Counted(self._matcher.deep_copy())
        copied.counts = self.counts
        return copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return LLTokenizer(Tokens(), n_vocab=END + 1)


def made(tokenizer: Any) -> tuple[GrammarConstraint, Any]:
    grammar = grammar_from("json_schema", json.dumps(SCHEMA))
    matcher = Counted(LLMatcher(tokenizer, grammar, log_level=0))
    alphabet = Alphabet([*PIECES, b""], tokenize, frozenset({END}))
    return GrammarConstraint(matcher, alphabet), matcher


def after(tokenizer: Any, text: str) -> tuple[GrammarConstraint, Spacing, Any]:
    constraint, matcher = made(tokenizer)
    constraint.accept(tokenize(text))
    spacing = Spacing()
    spacing.read(text.encode())
    return constraint, spacing, matcher


def forced(tokenizer: Any, text: str) -> str:
    constraint, spacing, _ = after(tokenizer, text)
    return b"".join(PIECES[t] for t in constraint.forced(spacing).tokens).decode()


def test_the_skeleton_goes_up_to_the_next_choice_with_the_white_space_used_so_far(
    tokenizer: Any,
) -> None:
    assert forced(tokenizer, '{\n  "first_name": "Ann",') == '\n  "kind": "'
    assert forced(tokenizer, '{"first_name":"Ann",') == '"kind":"'


def test_an_enum_value_is_forced_as_soon_as_it_is_decided(tokenizer: Any) -> None:
    assert forced(tokenizer, '{"first_name":"Ann","kind":"o') == 'rganisation","age":'


def test_a_choice_between_values_is_left_to_the_model_whatever_they_begin_with(
    tokenizer: Any,
) -> None:
    """`email` begins with a letter that is tried for, the others do not."""
    schema = {**SCHEMA, "properties": {"by": {"enum": ["paper", "email"]}}, "required": ["by"]}
    grammar = grammar_from("json_schema", json.dumps(schema))
    alphabet = Alphabet([*PIECES, b""], tokenize, frozenset({END}))
    constraint = GrammarConstraint(LLMatcher(tokenizer, grammar, log_level=0), alphabet)
    constraint.accept(tokenize('{"by":"'))
    spacing = Spacing()
    spacing.read(b'{"by":"')
    assert constraint.forced(spacing) == Forced()
    constraint.accept(tokenize("e"))
    assert constraint.forced(spacing).tokens == tuple(tokenize('mail"}'))


def test_where_the_model_has_a_choice_nothing_is_forced(tokenizer: Any) -> None:
    assert forced(tokenizer, '{"first_name":"An') == ""
    assert forced(tokenizer, "{") == ""  # white space: no habit is known yet
    assert forced(tokenizer, '{"first_name":"An","kind":"person","age":4') == ""  # or 42


def test_looking_for_the_skeleton_moves_nothing(tokenizer: Any) -> None:
    constraint, spacing, _ = after(tokenizer, '{\n  "first_name": "Ann",')
    first = constraint.forced(spacing)
    assert constraint.forced(spacing) == first
    constraint.accept(first.tokens)
    assert constraint.forced(spacing) == Forced()


@pytest.mark.parametrize(
    ("text", "end", "then"),
    [
        ('{\n  "first_name": "Ann', '",', '\n  "kind": "'),
        ('{\n  "first_name": "Ann', '",\n', '  "kind": "'),
        ('{"first_name":"Ann","kind":"person","age":4', "}", ""),
    ],
)
def test_what_follows_a_string_or_a_number_is_found_before_it_ends(
    tokenizer: Any, text: str, end: str, then: str
) -> None:
    constraint, spacing, matcher = after(tokenizer, text)
    constraint.prepare(spacing)
    assert constraint.forced(spacing) == Forced()  # nothing has moved
    constraint.accept(tokenize(end))
    spacing.read(end.encode())
    before = matcher.n_copies
    assert b"".join(PIECES[t] for t in constraint.forced(spacing).tokens) == then.encode()
    assert matcher.n_copies == before or not then


def test_behind_one_string_is_looked_once(tokenizer: Any) -> None:
    constraint, spacing, matcher = after(tokenizer, '{\n  "first_name": "Ann')
    constraint.prepare(spacing)
    before = matcher.n_copies
    constraint.accept(tokenize(" B"))
    spacing.read(b" B")
    constraint.prepare(spacing)
    assert matcher.n_copies == before


def test_what_was_forced_at_a_like_place_is_looked_for_again_where_the_grammar_forbids_it(
    tokenizer: Any,
) -> None:
    constraint, spacing, _ = after(tokenizer, '{"first_name":"Ann",')
    wrong = Forced(tuple(tokenize('"age":')), (1.0,) * 6)
    spacing.found[constraint._place(spacing)] = wrong
    found = constraint.forced(spacing)
    assert b"".join(PIECES[t] for t in found.tokens) == b'"kind":"'


def test_what_follows_a_draft_is_told_and_nothing_behind_its_end_or_one_that_disobeys(
    tokenizer: Any,
) -> None:
    constraint, spacing, _ = after(tokenizer, '{"first_name":"Ann')
    behind = spacing.ahead()
    behind.read(b'",')
    found = constraint.forced(behind, tokenize('",')).tokens
    assert b"".join(PIECES[t] for t in found) == b'"kind":"'
    assert constraint.forced(spacing) == Forced()  # nothing has moved
    assert constraint.forced(behind, tokenize('"}')) == Forced()
    constraint.accept(tokenize('","kind":"person","age":4'))
    assert constraint.forced(behind, [*tokenize("}"), END]) == Forced()
    assert constraint.n_obeying([*tokenize("}"), END]) == 2  # and the matcher is whole


def test_what_is_forced_in_one_answer_is_known_in_the_next_but_not_under_another_grammar(
    tokenizer: Any,
) -> None:
    parts = ('{\n  "first_name": "', 'Ann",', '\n  "kind": "', 'person",', '\n  "age": ')

    def n_found(last: Spacing | None, grammar: str) -> tuple[int, Spacing]:
        """Skeletons that were looked for in an answer, and how it was spaced."""
        _, matcher = made(tokenizer)
        alphabet = Alphabet([*PIECES, b""], tokenize, frozenset({END}))
        constraint = GrammarConstraint(matcher, alphabet, grammar=grammar)
        before, spacing = matcher.n_copies, Spacing(last)
        for part in parts:
            constraint.accept(tokenize(part))
            spacing.read(part.encode())
            constraint.forced(spacing)
        return matcher.n_copies - before, spacing.kept()

    n_first, spacing = n_found(None, "people")
    n_later, spacing = n_found(spacing, "people")
    assert n_first > 0 == n_later
    assert n_found(spacing, "places")[0] == n_first


def test_what_had_to_come_is_told_from_white_space_by_habit(tokenizer: Any) -> None:
    constraint, spacing, _ = after(tokenizer, '{\n  "first_name": "Ann",')
    found = constraint.forced(spacing)
    pieces = [PIECES[t] for t in found.tokens]
    assert pieces == [b"\n ", b' "', b"k", b"i", b"n", b"d", b'":', b' "']
    assert found.sure[2:5] == (1.0,) * 3  # a name; where it ends, a longer token might come
    assert max(*found.sure[:2], found.sure[-1]) < 1.0


def test_a_draft_is_followed_as_far_as_it_obeys(tokenizer: Any) -> None:
    constraint, _, _ = after(tokenizer, '{"first_name":"Ann",')
    assert constraint.n_obeying(tokenize('"kind":"person"')) == len(tokenize('"kind":"person"'))
    assert constraint.n_obeying(tokenize('"kin') + tokenize("x")) == len(tokenize('"kin'))
    assert constraint.n_obeying([]) == 0


def test_what_may_follow_a_draft_is_told_and_nothing_follows_a_forbidden_one(
    tokenizer: Any,
) -> None:
    constraint, _, _ = after(tokenizer, '{"first_name":"Ann","kind":"')
    may = constraint.allowed(tokenize("person"))
    assert may is not None and ord('"') in members(may) and ord("x") not in members(may)
    assert constraint.allowed(tokenize("x")) is None


def test_no_state_is_computed_twice_for_one_row(tokenizer: Any) -> None:
    constraint, spacing, matcher = after(tokenizer, '{\n  "first_name": "Ann",')
    draft = constraint.forced(spacing).tokens
    for _ in range(2):
        for j in range(len(draft) + 1):  # as a draft model asks, and a draw
            constraint.allowed(draft[:j])
        assert matcher.n_masks <= len(draft) + 1
    before = matcher.n_masks
    constraint.allowed(draft)
    assert matcher.n_masks == before


@pytest.mark.parametrize(
    "text", ['{"first_name":"An', "{", '{\n  "first_name": "Ann"', '{"first_name":"Ann","kind":"']
)
def test_looking_for_the_skeleton_of_json_needs_no_mask(tokenizer: Any, text: str) -> None:
    constraint, spacing, matcher = after(tokenizer, text)
    constraint.forced(spacing)
    assert matcher.n_masks == 0


def test_tokens_that_may_come_are_told_without_a_mask(tokenizer: Any) -> None:
    constraint, _, matcher = after(tokenizer, '{"first_name":"Ann",')
    draft = tokenize('"kind":"person"')
    assert all(constraint.permits(draft[:j], token) for j, token in enumerate(draft))
    assert not constraint.permits(draft, ord("x"))
    constraint.accept(draft)
    assert matcher.n_masks == 0


@pytest.mark.parametrize("text", ['{"first_name":"Ann","kind":"org', '{\n  "first_name": "A'])
def test_what_is_told_of_a_token_is_what_its_mask_says(tokenizer: Any, text: str) -> None:
    draft = tokenize(text)
    constraint, matcher = made(tokenizer)
    for j in range(len(draft) + 1):
        own = np.frombuffer(matcher.deep_copy().compute_bitmask(), np.uint8)
        mask = np.unpackbits(own, bitorder="little", count=END + 1).view(np.bool_)
        found = constraint.allowed(())
        assert found is not None and members(found) == np.flatnonzero(mask).tolist()
        assert [constraint.permits((), t) for t in range(END + 1)] == mask.tolist()
        if j < len(draft) and mask[draft[j]]:
            constraint.accept([draft[j]])


def test_masks_along_a_draft_equal_those_of_a_walk_token_by_token(tokenizer: Any) -> None:
    draft = tokenize('{"first_name":"')
    constraint, _ = made(tokenizer)
    walked, _ = made(tokenizer)
    for j in range(len(draft) + 1):
        along, here = constraint.allowed(draft[:j]), walked.allowed(())
        assert along is not None and here is not None and (along == here).all()
        if j < len(draft):
            walked.accept([draft[j]])


def test_drafts_leave_the_state_alone_in_whatever_order_they_are_tried(tokenizer: Any) -> None:
    constraint, spacing, _ = after(tokenizer, '{\n  "first_name": "Ann",')
    forced = constraint.forced(spacing).tokens
    assert constraint.n_obeying(tokenize('\n "kind":')) > 0
    assert constraint.permits(forced[:2], forced[2])
    assert not constraint.permits((), ord("x"))
    constraint.accept(forced)
    assert constraint.permits((), ord("p")) and not constraint.complete


class GivesUp(Counted):
    """A matcher whose masks are too complex."""

    def compute_bitmask(self) -> bytes:
        self._matcher.consume_token(ord("#"))  # nothing may follow: it is in error for good
        return bytes(64)

    def deep_copy(self) -> GivesUp:
        return GivesUp(self._matcher.deep_copy())


def test_a_mask_that_is_too_complex_breaks_a_draft_and_not_the_answer(tokenizer: Any) -> None:
    grammar = grammar_from("json_schema", json.dumps(SCHEMA))
    alphabet = Alphabet([*PIECES, b""], tokenize, frozenset({END}))
    matcher = GivesUp(LLMatcher(tokenizer, grammar, log_level=0))
    constraint, spacing = GrammarConstraint(matcher, alphabet), Spacing()
    start = tokenize('{"first_name":"Ann",')
    spacing.read(b'{"first_name":"Ann",')
    constraint.accept(start)
    known = b"".join(PIECES[t] for t in constraint.forced(spacing).tokens)
    assert known == b'"kind":"'  # a draft is looked for without masks
    with pytest.raises(BadRequest, match="too complex"):
        constraint.allowed(())
    assert constraint.permits((), ord('"'))
    constraint.accept([ord('"')])


# So many ways to read as many letters that the matcher gives up, one letter after the other.
MANY_WAYS = 'start: e{1,9000}\ne: "a"?'


def test_a_matcher_that_gives_up_over_a_draft_goes_on_where_the_answer_is(tokenizer: Any) -> None:
    alphabet = Alphabet([*PIECES, b""], tokenize, frozenset({END}))
    matcher = LLMatcher(tokenizer, grammar_from("lark", MANY_WAYS), log_level=0)
    constraint, a = GrammarConstraint(matcher, alphabet), ord("a")
    constraint.accept([a])
    n = constraint.n_obeying([a] * 40)
    assert 0 < n < 40
    assert constraint.permits((), a) and constraint.permits([a], a) and constraint.complete
    constraint.accept([a] * n)
    with pytest.raises(BadRequest, match="too complex"):
        constraint.accept([a])
    with pytest.raises(BadRequest, match="too complex"):  # and never a whole text
        constraint.allowed(())

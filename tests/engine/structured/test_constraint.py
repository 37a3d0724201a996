"""What a grammar forces and lets come, with llguidance over an alphabet of our own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, grammar_from

from parlay.decoding.constraint import Forced
from parlay.decoding.masks import members
from parlay.engine.structured.constraint import Alphabet, GrammarConstraint
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
    "x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
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


def after(tokenizer: Any, text: str) -> tuple[GrammarConstraint, Any]:
    constraint, matcher = made(tokenizer)
    constraint.accept(tokenize(text))
    return constraint, matcher


def text_of(found: Forced) -> str:
    return b"".join(PIECES[t] for t in found.tokens).decode()


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ("", '{"first_name":"'),
        ('{"first_name":"Ann"', ',"kind":"'),
        ('{"first_name":"Ann",', '"kind":"'),
        ('{"first_name":"Ann","kind":"o', 'rganisation","age":'),
        ('{"first_name":"Ann","kind":"person","age":4}', ""),
    ],
)
def test_everything_between_values_is_forced_up_to_the_next_choice(
    tokenizer: Any, text: str, forced: str
) -> None:
    constraint, matcher = after(tokenizer, text)
    assert text_of(constraint.forced()) == forced
    assert matcher.n_masks == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"first_name":"An',
        '{"first_name":"An","kind":"',  # one of two
        '{"first_name":"An","kind":"person","age":4',  # or 42
    ],
)
def test_where_the_model_has_a_choice_nothing_is_forced(tokenizer: Any, text: str) -> None:
    constraint, matcher = after(tokenizer, text)
    assert constraint.forced() == Forced()
    assert matcher.n_masks == 0


def test_looking_for_the_skeleton_moves_nothing(tokenizer: Any) -> None:
    constraint, _ = after(tokenizer, '{"first_name":"Ann",')
    first = constraint.forced()
    assert constraint.forced() == first
    constraint.accept(first.tokens)
    assert constraint.forced() == Forced()


def test_what_must_come_is_sure_but_for_a_last_token_that_may_be_longer(tokenizer: Any) -> None:
    constraint, _ = after(tokenizer, '{"first_name":"Ann",')
    found = constraint.forced()
    assert [PIECES[t] for t in found.tokens] == [b'"', b"k", b"i", b"n", b"d", b'":', b'"']
    assert found.sure[:5] == (1.0,) * 5
    for j, (token, sure) in enumerate(zip(found.tokens, found.sure, strict=True)):
        assert (constraint.must(found.tokens[:j]) == token) == (sure == 1.0)


def test_what_follows_a_draft_is_told_and_nothing_behind_its_end_or_one_that_disobeys(
    tokenizer: Any,
) -> None:
    constraint, _ = after(tokenizer, '{"first_name":"Ann')
    assert text_of(constraint.forced(tokenize('",'))) == '"kind":"'
    assert constraint.forced() == Forced()  # nothing has moved
    assert constraint.forced(tokenize('"}')) == Forced()
    constraint.accept(tokenize('","kind":"person","age":4'))
    assert constraint.forced([*tokenize("}"), END]) == Forced()
    assert constraint.n_obeying([*tokenize("}"), END]) == 2  # and the matcher is whole


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_asked_on_the_way_no_text_leaves_the_grammar(
    tokenizer: Any, data: st.DataObject
) -> None:
    """Masks, single questions, drafts and skeletons say the same, and what they let come is JSON
    that the schema allows."""
    constraint, _ = made(tokenizer)
    said: list[int] = []
    for _ in range(120):
        mask = constraint.allowed(())
        assert mask is not None
        may = members(mask)
        draft = data.draw(st.sampled_from([constraint.forced().tokens, (ord("x"),), (ord('"'), 0)]))
        n = constraint.n_obeying(draft)
        assert n == 0 or draft[0] in may
        token = data.draw(st.sampled_from(may + may[:1] * 3))
        assert constraint.permits((), token) and constraint.must(()) in (None, token)
        wrong = data.draw(st.integers(0, END))
        assert constraint.permits((), wrong) == (wrong in may)
        if token == END:
            break
        said.append(token)
        constraint.accept([token])
    text = b"".join(PIECES[t] for t in said).decode()
    if constraint.complete:
        assert set(json.loads(text)) == {"first_name", "kind", "age"}
        assert json.loads(text)["kind"] in ("person", "organisation")


def test_a_draft_is_followed_as_far_as_it_obeys(tokenizer: Any) -> None:
    constraint, _ = after(tokenizer, '{"first_name":"Ann",')
    assert constraint.n_obeying(tokenize('"kind":"person",')) == len(tokenize('"kind":"person",'))
    assert constraint.n_obeying(tokenize('"kin') + tokenize("x")) == len(tokenize('"kin'))
    assert constraint.n_obeying([]) == 0


def test_what_may_follow_a_draft_is_told_and_nothing_follows_a_forbidden_one(
    tokenizer: Any,
) -> None:
    constraint, _ = after(tokenizer, '{"first_name":"Ann","kind":"')
    may = constraint.allowed(tokenize("person"))
    assert may is not None and members(may) == tokenize('",')
    may = constraint.allowed(())
    assert may is not None and {ord("p"), ord("o")} <= {*members(may)} < {*range(END)}
    assert constraint.allowed(tokenize("x")) is None


def test_no_state_is_computed_twice_for_one_row(tokenizer: Any) -> None:
    constraint, matcher = after(tokenizer, '{"first_name":"Ann",')
    draft = constraint.forced().tokens
    for _ in range(2):
        for j in range(len(draft) + 1):  # as a draft model asks, and a draw
            constraint.allowed(draft[:j])
        assert matcher.n_masks <= len(draft) + 1
    before = matcher.n_masks
    constraint.allowed(draft)
    assert matcher.n_masks == before


def test_tokens_that_may_come_are_told_without_a_mask(tokenizer: Any) -> None:
    constraint, matcher = after(tokenizer, '{"first_name":"Ann",')
    draft = tokenize('"kind":"person",')
    assert all(constraint.permits(draft[:j], token) for j, token in enumerate(draft))
    assert not constraint.permits(draft, ord("x"))
    constraint.accept(draft)
    assert matcher.n_masks == 0


@pytest.mark.parametrize("text", ['{"first_name":"Ann","kind":"org', '{"first_name":"A'])
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
    constraint, _ = after(tokenizer, '{"first_name":"Ann",')
    forced = constraint.forced().tokens
    assert constraint.n_obeying(tokenize('"kind":')) > 0
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
    constraint = GrammarConstraint(matcher, alphabet)
    constraint.accept(tokenize('{"first_name":"Ann"'))
    known = constraint.forced()
    assert text_of(known) == ',"kind":"'  # a draft is looked for without masks
    constraint.accept(known.tokens)
    with pytest.raises(BadRequest, match="too complex"):
        constraint.allowed(())
    assert constraint.permits((), ord("p"))
    constraint.accept([ord("p")])


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

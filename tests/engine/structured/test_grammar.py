"""Grammars as masks: rows given the draft, state untouched, ends only where they may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlay.decoding.constraint import Constraint
from parlay.decoding.masks import members
from parlay.engine.structured import grammar, grammar_check
from parlay.engine.structured.grammar import Grammars
from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings


@pytest.fixture(scope="module")
def model(target: Path) -> Iterator[Model]:
    with Model(target, ModelSettings()) as found:
        yield found


def allowed(constraint: Constraint, *draft: int) -> set[int]:
    found = constraint.allowed(draft)
    return set() if found is None else set(members(found))


def test_each_row_is_masked_as_if_the_draft_held(model: Model) -> None:
    vocabulary = model.vocabulary
    grammars = Grammars(vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= "on" "and"'))
    on, and_ = vocabulary.tokenize("onand", bos=False)
    first, second = allowed(constraint), allowed(constraint, on)
    o = vocabulary.tokenize("o", bos=False)[0]
    assert on in first <= {on, o}
    assert and_ in second and on not in second
    assert allowed(constraint, on, and_) == vocabulary.ends
    # Looking ahead has moved nothing.
    assert allowed(constraint) == first
    constraint.accept([on])
    assert allowed(constraint) == second


def test_a_draft_that_breaks_the_grammar_cannot_be_accepted(model: Model) -> None:
    vocabulary = model.vocabulary
    grammars = Grammars(vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= "on"+'))
    on, the = vocabulary.tokenize("on", bos=False)[0], vocabulary.tokenize(" the", bos=False)[0]
    assert the not in allowed(constraint) and constraint.allowed([the]) is None
    assert not constraint.permits([], the) and constraint.permits([], on)
    constraint.accept([on])
    assert allowed(constraint) >= {on} | vocabulary.ends


@pytest.mark.parametrize("end", [True, False])
def test_an_end_in_the_draft_leaves_the_state_alone(model: Model, end: bool) -> None:
    vocabulary = model.vocabulary
    grammars = Grammars(vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= "on"+'))
    on = vocabulary.tokenize("on", bos=False)[0]
    draft = [on, vocabulary.eos] if end else [on, on]
    assert constraint.n_obeying(draft) == 2
    assert not allowed(constraint) & vocabulary.ends
    assert not constraint.permits([], vocabulary.eos)


def test_grammars_that_cannot_be_used_say_why(model: Model) -> None:
    grammars = Grammars(model.vocabulary)
    with pytest.raises(BadRequest, match="cannot be read"):
        grammars.gbnf("root = x")
    with pytest.raises(BadRequest, match="cannot be used"):
        grammars.json_schema({"type": "nonsense"})
    with pytest.raises(BadRequest, match="over"):
        grammars.gbnf("#" * (1 << 21))
    with pytest.raises(BadRequest, match="no text at all"):
        grammars.gbnf("root ::= root")
    with pytest.raises(BadRequest, match="no text at all"):
        grammars.json_schema({"$ref": "#"})


def test_a_matcher_that_gave_up_ends_nothing_as_if_it_were_whole(model: Model) -> None:
    vocabulary = model.vocabulary
    grammars = Grammars(vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= "on"+'))
    on, the = vocabulary.tokenize("on", bos=False)[0], vocabulary.tokenize(" the", bos=False)[0]
    before = constraint.complete
    constraint.accept([on])
    assert (before, constraint.complete) == (False, True)
    with pytest.raises(BadRequest, match="too complex"):
        constraint.accept([the])  # whatever breaks a matcher, it allows nothing but the end after
    with pytest.raises(BadRequest, match="too complex"):
        constraint.allowed([])


def test_where_nothing_may_follow_the_answer_ends_and_no_draft_is_at_fault(model: Model) -> None:
    grammars = Grammars(model.vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= "on" x\nx ::= x'))
    on = model.vocabulary.tokenize("on", bos=False)[0]
    assert constraint.forced().tokens == (on,)
    constraint.accept([on])
    assert not constraint.forced().tokens
    with pytest.raises(BadRequest, match=r"nothing may follow$"):
        constraint.allowed([])


def _objects(n: int) -> dict[str, Any]:
    """Each holds the next one, by reference."""
    last: dict[str, Any] = {f"r{n}": {"type": "string"}}
    inner = {
        f"r{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/r{i + 1}"}}}
        for i in range(n)
    }
    return {"$ref": "#/$defs/r0", "$defs": inner | last}


def test_a_grammar_that_would_end_the_process_is_refused(model: Model) -> None:
    """Both end whoever reads them by a stack without end."""
    grammars = Grammars(model.vocabulary)
    rules = "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000))
    with pytest.raises(BadRequest, match="too deeply"):
        grammars.json_schema(_objects(1500))
    with pytest.raises(BadRequest, match=r"too deeply|over .* s to read"):
        grammars.gbnf(f'root ::= r0\n{rules}r4000 ::= "a"\n')


def test_a_schema_of_very_many_properties_is_refused_by_its_size() -> None:
    names = {f"p{i}": {"type": "string"} for i in range(5000)}
    with pytest.raises(BadRequest, match="too big"):
        grammar_check.read_here("json_schema", json.dumps({"type": "object", "properties": names}))


def test_an_ambiguous_grammar_is_given_up_while_a_token_takes_milliseconds(model: Model) -> None:
    """What each place takes grows with the square of what may be meant there."""
    vocabulary, grammars = model.vocabulary, Grammars(model.vocabulary)
    constraint = grammars.constraint(grammars.gbnf('root ::= s\ns ::= s s | s s s | "on" | ""'))
    on = vocabulary.tokenize("on", bos=False)[0]
    with pytest.raises(BadRequest, match=r"too complex: .* has (2[5-9]\d|3\d\d) items"):
        for _ in range(60):
            constraint.accept([on])


def test_an_ambiguous_grammar_made_large_has_hardly_more_ways_to_go_on(model: Model) -> None:
    vocabulary, grammars = model.vocabulary, Grammars(model.vocabulary)
    padding = "".join(f'r{i} ::= "xx{i}" | r{i + 1}\n' for i in range(330))
    smuggled = f'r330 ::= "\\nx: %json {"z" * 4000}"\n'
    text = f'root ::= s | r0\ns ::= s s | s s s | "on" | ""\n{padding}{smuggled}'
    constraint = grammars.constraint(grammars.gbnf(text))
    on = vocabulary.tokenize("on", bos=False)[0]
    with pytest.raises(BadRequest, match=r"too complex: .* max is [34]\d\d;"):
        for _ in range(100):
            constraint.accept([on])


@pytest.mark.parametrize("kind", ["json_schema", "lark"])
def test_what_a_schema_may_need_does_not_hang_on_where_it_stands(kind: str) -> None:
    schema = json.dumps({"enum": ["z" * 8000]})
    text = schema if kind == "json_schema" else f"start: json_0\njson_0: %json {schema}\n"
    grammar = grammar_check.read_here(kind, text)
    assert grammar_check.limits_of(grammar).max_items_in_row == 2000


def test_a_large_schema_may_have_many_ways_to_go_on(model: Model) -> None:
    names = {f"property_{i}": {"type": "string"} for i in range(200)}
    grammars = Grammars(model.vocabulary)
    constraint = grammars.constraint(grammars.json_schema({"type": "object", "properties": names}))
    for letter in '{"property_7":"on","property_9':
        constraint.accept(model.vocabulary.tokenize(letter, bos=False, special=False))


def test_a_grammar_that_takes_too_long_is_given_up(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "LIMIT_S", 0.2)
    slow = "".join(f'r{i} ::= "a" r{i + 1} "b"\n' for i in range(1900))
    with pytest.raises(BadRequest, match="simplify"):
        Grammars(model.vocabulary).gbnf(f'root ::= r0\n{slow}r1900 ::= "a"\n')


def test_a_large_grammar_is_read_as_a_small_one_is(model: Model) -> None:
    grammars = Grammars(model.vocabulary)
    text = 'root ::= "on"\n' + "#" * 20_000 + "\n"
    constraint = grammars.constraint(grammars.gbnf(text))
    assert model.vocabulary.tokenize("on", bos=False)[0] in allowed(constraint)
    with pytest.raises(BadRequest, match=r"^the grammar cannot be read: .*$"):  # and nothing else
        grammars.gbnf("root = x\n" + "#" * 20_000)
    with pytest.raises(BadRequest, match="cannot be read"):
        grammars.gbnf("root ::= " + "(" * 2000 + '"a"' + ")" * 2000)


def counted(model: Model, monkeypatch: pytest.MonkeyPatch) -> tuple[Grammars, list[str]]:
    """Grammars, and those that were begun."""
    grammars, begun = Grammars(model.vocabulary), list[str]()
    begin = grammars._begin

    def counting(found: str) -> Any:
        begun.append(found)
        return begin(found)

    monkeypatch.setattr(grammars, "_begin", counting)
    return grammars, begun


def test_answers_of_one_grammar_share_its_beginning_and_nothing_of_their_texts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars, begun = counted(model, monkeypatch)
    held = grammars.gbnf('root ::= "on" "and"')
    first = grammars.constraint(held)
    before = allowed(first)
    first.accept(model.vocabulary.tokenize("on", bos=False))
    assert allowed(grammars.constraint(held)) == before != allowed(first)
    assert begun == [held]


def test_what_is_kept_of_grammars_is_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_N_BEGUN", 2)
    monkeypatch.setattr(grammar, "_N_COPIES", 3)
    grammars, begun = counted(model, monkeypatch)
    a, b, c = (grammars.gbnf(f'root ::= "{letter}"') for letter in "abc")
    for held in (a, a, a, a, b, c, a):
        grammars.matcher(held)
    assert begun == [a, a, b, c, a] and len(grammars._begun) == 2

"""Calls hold once begun, thinking has an end, and a draft is followed without leaving a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from parlay.ask import CallForm, ToolFunction
from parlay.chat.call_text import CallText
from parlay.chat.deltas import Said
from parlay.chat.forms import FORMATS
from parlay.chat.guiding import Guiding, Wish
from parlay.chat.style import Style
from parlay.decoding.masks import members
from parlay.engine.structured.grammar import Grammars
from parlay.engine.structured.guide import Guide, Rules
from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings

SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "city": {"enum": ["on", "he"]}},
    "required": ["n", "city"],
    "additionalProperties": False,
}
WEATHER = ToolFunction("and", SCHEMA)
STRICT = replace(WEATHER, strict=True)
# As programs write schemas: parts apart, by reference.
REFERRING = ToolFunction(
    "and",
    {
        "type": "object",
        "properties": {
            "n": {"$ref": "#/$defs/Number"},
            "city": {"$ref": "#/$defs/City"},
            "at": {"$ref": "#/$defs/At"},
        },
        "required": ["n", "city", "at"],
        "additionalProperties": False,
        "$defs": {
            "Number": {"enum": [1, 2]},
            "City": {"$ref": "#/$defs/Name"},
            "Name": {"enum": ["on", "he"], "type": "string"},
            "At": {
                "type": "object",
                "properties": {"n": {"$ref": "#/$defs/Number"}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    },
)
# So many ways to read as many letters that llguidance gives up, one letter after the other.
MANY_WAYS = 'start: e\ne: e e | e e e | "a" | ""'
FORMS = [form for form in FORMATS if form.kind != "channels"]


@pytest.fixture(scope="module")
def model(target: Path) -> Iterator[Model]:
    with Model(target, ModelSettings()) as found:
        yield found


@pytest.fixture(scope="module")
def grammars(model: Model) -> Grammars:
    return Grammars(model.vocabulary)


class Writer:
    """Writes under a constraint: what it is told to, or the longest that may come."""

    def __init__(self, model: Model, guide: object) -> None:
        assert isinstance(guide, Guide)
        self._vocabulary = model.vocabulary
        self.guide = guide
        self._bytes = b""
        self.ended = False

    def allowed(self, draft: list[int]) -> list[set[int]]:
        masks = (self.guide.allowed(draft[:j]) for j in range(len(draft) + 1))
        ids = range(self._vocabulary.size)
        return [set(ids) if mask is None else set(members(mask)) for mask in masks]

    def say(self, text: str) -> None:
        for token in self._vocabulary.tokenize(text, bos=False, special=False):
            self._take(token)

    def go_on(self, n: int = 400) -> None:
        """Whatever is allowed, as long as not everything is."""
        for _ in range(n):
            (allowed,) = self.allowed([])
            if len(allowed) == self._vocabulary.size:
                return
            words = sorted(allowed - self._vocabulary.ends, key=self._length)
            if not words:
                self.ended = True
                return
            self._take(words[-1])

    def _length(self, token: int) -> int:
        return len(self._vocabulary.piece(token))

    def _take(self, token: int) -> None:
        assert token in self.allowed([])[0]
        self.guide.accept([token])
        self._bytes += self._vocabulary.piece(token)

    @property
    def text(self) -> str:
        return self._bytes.decode()


def guided(model: Model, grammars: Grammars, form: CallForm, wish: Wish) -> Writer:
    style = Style(form=form)
    return Writer(model, Guiding(style, model.vocabulary, grammars).constraints(wish)())


def calls_in(form: CallForm, text: str) -> list[tuple[str, object]]:
    reader, said = CallText(form, [WEATHER]), Said()
    said.add([*reader.push(text), *reader.finish()])
    found = [call["function"] for call in said.message().get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in found]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_call_that_has_begun_becomes_a_call_of_its_schema(
    model: Model, grammars: Grammars, form: CallForm
) -> None:
    wish = Wish(functions=(STRICT,), many=not form.listed)
    writer = guided(model, grammars, form, wish)
    writer.say("hello there ")
    assert len(writer.allowed([])[0]) == model.vocabulary.size
    writer.say(form.open)
    writer.go_on()
    ((name, arguments),) = calls_in(form, writer.text)
    assert name == "and"
    assert isinstance(arguments, dict) and set(arguments) == {"n", "city"}
    assert writer.ended is form.listed
    assert writer.ended or len(writer.allowed([])[0]) == model.vocabulary.size


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_one_call_means_one(model: Model, grammars: Grammars, form: CallForm) -> None:
    writer = guided(model, grammars, form, Wish(functions=(STRICT,), many=False))
    writer.say(form.open)
    writer.go_on()
    assert writer.ended and writer.guide.complete
    assert len(calls_in(form, writer.text)) == 1


def test_a_bare_object_is_held_only_as_first_words(model: Model, grammars: Grammars) -> None:
    form = next(form for form in FORMS if form.name == "llama")
    writer = guided(model, grammars, form, Wish(functions=(WEATHER,)))
    writer.say('{"name": "')
    writer.go_on()
    assert [name for name, _ in calls_in(form, writer.text)] == ["and"]
    later = guided(model, grammars, form, Wish(functions=(WEATHER,)))
    later.say('so: {"name": "')
    assert len(later.allowed([])[0]) == model.vocabulary.size


def test_rows_of_a_draft_are_held_once_the_call_begins_in_it(
    model: Model, grammars: Grammars
) -> None:
    form = next(form for form in FORMS if form.name == "hermes")
    writer = guided(model, grammars, form, Wish(functions=(WEATHER,)))
    draft = model.vocabulary.tokenize("on" + form.open, bos=False, special=False)
    rows = writer.allowed(draft)
    assert all(len(row) == model.vocabulary.size for row in rows[: len(draft)])
    assert len(rows[-1]) < model.vocabulary.size
    assert len(writer.allowed([])[0]) == model.vocabulary.size  # looking ahead has moved nothing


def test_thinking_ends_when_its_budget_is_spent(model: Model, grammars: Grammars) -> None:
    form = next(form for form in FORMS if form.name == "hermes")
    writer = guided(model, grammars, form, Wish(budget=3, thinking=True))
    for token in model.vocabulary.tokenize("onandon", bos=False)[:3]:
        writer._take(token)
    writer.go_on()
    assert writer.text.endswith("</think>")


def test_a_form_holds_from_the_end_of_thinking(model: Model, grammars: Grammars) -> None:
    form = next(form for form in FORMS if form.name == "hermes")
    wish = Wish(grammar=grammars.json_schema(SCHEMA), thinking=True)
    writer = guided(model, grammars, form, wish)
    writer.say("hello there</think>")
    writer.go_on()
    assert set(json.loads(writer.text.partition("</think>")[2])) == {"n", "city"}
    assert writer.ended


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_forced_call_is_all_there_is(model: Model, grammars: Grammars, form: CallForm) -> None:
    wish = Wish(functions=(WEATHER,), forced=True, many=False, budget=0, thinking=True)
    writer = guided(model, grammars, form, wish)
    writer.go_on()
    ((name, arguments),) = calls_in(form, writer.text.partition("</think>")[2])
    assert name == "and" and isinstance(arguments, dict) and arguments["city"] in ("on", "he")


@pytest.mark.parametrize("others", [(), (ToolFunction("a"),)], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.kind != "quoted"], ids=lambda form: form.name
)
def test_references_of_a_schema_hold_wherever_it_is_put(
    model: Model, grammars: Grammars, form: CallForm, others: tuple[ToolFunction, ...]
) -> None:
    wish = Wish(functions=(REFERRING, *others), forced=True, many=False, budget=0, thinking=True)
    writer = guided(model, grammars, form, wish)
    writer.go_on()
    ((_, arguments),) = calls_in(form, writer.text.partition("</think>")[2])
    assert isinstance(arguments, dict) and set(arguments) == {"n", "city", "at"}
    assert arguments["city"] in ("on", "he") and arguments["n"] in (1, 2)
    assert arguments["at"] in ({"n": 1}, {"n": 2})


GEMMA = next(form for form in FORMATS if form.name == "gemma")
PLACE = ToolFunction(
    "and",
    {
        "type": "object",
        "properties": {
            "note": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": ["number", "null"]}},
                "required": ["x", "y"],
            },
            "done": {"type": "boolean"},
            "more": {},
        },
        "required": ["note", "at"],
    },
    strict=True,
)


def gemma(model: Model, grammars: Grammars) -> Writer:
    wish = Wish(functions=(PLACE,), forced=True, many=False, budget=0, thinking=True)
    writer = guided(model, grammars, GEMMA, wish)
    writer.say("</think>")
    return writer


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ('{note:<|"|>a, {b}<|"|>,at:{x:-3,y:0.5}}', {"note": "a, {b}", "at": {"x": -3, "y": 0.5}}),
        (
            '{note:<|"|><|"|>,tags:[<|"|>on<|"|>,<|"|>he<|"|>],at:{x:0,y:null},done:true}',
            {"note": "", "tags": ["on", "he"], "at": {"x": 0, "y": None}, "done": True},
        ),
        (
            '{note:<|"|>a<|"|>,at:{x:1,y:2},more:{k:[1,{l:<|"|>z<|"|>}]}}',
            {"note": "a", "at": {"x": 1, "y": 2}, "more": {"k": [1, {"l": "z"}]}},
        ),
    ],
)
def test_arguments_in_gemmas_quotes_are_held_to_their_schema(
    model: Model, grammars: Grammars, said: str, meant: object
) -> None:
    writer = gemma(model, grammars)
    writer.say(f"<|tool_call>call:and{said}<tool_call|>")
    writer.go_on()
    assert writer.ended
    assert calls_in(GEMMA, writer.text.partition("</think>")[2]) == [("and", meant)]


@pytest.mark.parametrize(
    "said",
    ["{}", "{at:", '{note:<|"|>a<|"|>}', "{note:1", '{note:<|"|>a<|"|>,at:{x:1.5', "{other:"],
)
def test_gemmas_arguments_that_leave_their_schema_cannot_be_written(
    model: Model, grammars: Grammars, said: str
) -> None:
    writer = gemma(model, grammars)
    writer.say("<|tool_call>call:and{")
    with pytest.raises(AssertionError):
        writer.say(said[1:])


def test_a_grammar_that_gives_up_frees_nothing_and_is_no_end(
    model: Model, grammars: Grammars
) -> None:
    """One after the thinking; a draft that goes too far leaves the answer alone."""
    rules = Rules(model.vocabulary, grammars, frozenset(), afterwards=grammars.lark(MANY_WAYS))
    guide, a = Guide(rules, thinking=False), model.vocabulary.tokenize("a", bos=False)[0]
    guide.accept([a])
    assert 0 < guide.n_obeying([a] * 120) < 120
    before = guide.permits([], a), guide.complete
    for _ in range(120):
        guide.accept([a])
    assert (before, guide.permits([], a), guide.complete) == ((True, True), False, False)
    with pytest.raises(BadRequest, match="too complex"):
        guide.allowed([])

"""Drafts that cost nothing, over HTTP: predictions and grammars never change a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import doors

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["on", "and"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
WAYS = [{"temperature": 0}, {"temperature": 0.9, "seed": 11}]


def complete(server: doors.Server, **more: Any) -> dict[str, Any]:
    body = {"prompt": "the on and", "max_tokens": 40, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def details(found: dict[str, Any]) -> dict[str, int]:
    numbers: dict[str, int] = found["usage"]["completion_tokens_details"]
    return numbers


@pytest.mark.parametrize("way", WAYS)
def test_a_right_prediction_is_accepted_and_the_text_stays(
    server: doors.Server, way: dict[str, Any]
) -> None:
    plain = complete(server, speculation=False, **way)
    text = plain["choices"][0]["text"]
    prediction = {"type": "content", "content": text}
    only = {"draft": "prediction", "window": 8}
    found = complete(server, prediction=prediction, speculation=only, **way)
    assert found["choices"][0]["text"] == text
    # A random model writes tokens that its own tokenizer would join: some are found, not all.
    assert details(found)["accepted_prediction_tokens"] >= 5
    assert details(plain)["accepted_prediction_tokens"] == 0
    free = complete(server, prediction=prediction, **way)
    assert free["choices"][0]["text"] == text


@pytest.mark.parametrize(
    "content", ["", "再び天気の話 " * 3000, "\x01\x02￿\x00" * 200, "on " * 30_000]
)
def test_any_prediction_is_answered_and_changes_nothing(server: doors.Server, content: str) -> None:
    text = complete(server, speculation=False)["choices"][0]["text"]
    found = complete(server, prediction={"type": "content", "content": content})
    assert found["choices"][0]["text"] == text


def test_a_prediction_in_parts_is_one_text(server: doors.Server) -> None:
    text = complete(server, speculation=False)["choices"][0]["text"]
    half = len(text) // 2
    parts = [{"type": "text", "text": part} for part in (text[:half], text[half:])]
    only = {"draft": "prediction", "window": 8}
    found = complete(server, prediction={"type": "content", "content": parts}, speculation=only)
    assert found["choices"][0]["text"] == text
    assert details(found)["accepted_prediction_tokens"] >= 5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", ["skeleton", "suffix", "model", "skeleton,suffix,model"])
def test_drafts_under_a_grammar_change_nothing(
    server: doors.Server, way: dict[str, Any], draft: str
) -> None:
    plain = complete(server, json_schema=SCHEMA, speculation=False, **way)
    for window in (1, 4, 8):
        how = {"draft": draft, "window": window}
        found = complete(server, json_schema=SCHEMA, speculation=how, **way)
        assert found["choices"][0]["text"] == plain["choices"][0]["text"]


def test_the_skeleton_is_right_where_it_drafts(server: doors.Server) -> None:
    how = {"draft": "skeleton", "window": 8}
    told = complete(server, json_schema=SCHEMA, speculation=how)["speculation"]
    assert told["drafted"] > 0
    assert told["token_acceptance"] > 0.5


def test_a_prediction_that_contradicts_the_grammar_takes_no_row_and_changes_nothing(
    server: doors.Server,
) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5}
    prediction = {"type": "content", "content": "nonsense" * 40}
    how = {"draft": "prediction", "window": 8}
    for schema in (SCHEMA, numbers):
        plain = complete(server, json_schema=schema, speculation=False)
        found = complete(server, json_schema=schema, prediction=prediction, speculation=how)
        assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    assert details(found)["rejected_prediction_tokens"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_chat_takes_a_prediction_and_says_what_it_brought(
    server: doors.Server, way: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "the on and"}], "max_tokens": 40, **way}
    url = f"{server.url}/v1/chat/completions"
    plain = httpx.post(url, json={**body, "speculation": False}).json()
    text = plain["choices"][0]["message"]["content"]
    more = {
        "prediction": {"type": "content", "content": text},
        "speculation": {"draft": "prediction", "window": 8},
    }
    found = httpx.post(url, json={**body, **more}).json()
    assert found["choices"][0]["message"]["content"] == text
    assert details(found)["accepted_prediction_tokens"] >= 3
    used = found["usage"]
    assert used["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert used["prompt_tokens"] == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize("way", WAYS)
def test_tool_calls_have_a_skeleton_too(server: doors.Server, way: dict[str, Any]) -> None:
    function = {"name": "find", "description": "finds", "parameters": SCHEMA}
    body = {
        "messages": [{"role": "user", "content": "find the on"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_tokens": 160,
        **way,
    }
    url = f"{server.url}/v1/chat/completions"
    plain = httpx.post(url, json={**body, "speculation": False}).json()
    how = {"draft": "skeleton", "window": 8}
    found = httpx.post(url, json={**body, "speculation": how}).json()
    calls = [answer["choices"][0]["message"]["tool_calls"] for answer in (plain, found)]
    assert calls[0][0]["function"] == calls[1][0]["function"]
    assert json.loads(calls[1][0]["function"]["arguments"]).keys() == {"name", "kind"}
    assert found["speculation"]["accepted"] > 5


def test_a_schema_is_kept_with_every_source_of_drafts(server: doors.Server) -> None:
    for draft in ("skeleton", "suffix", "model", "skeleton,suffix,model"):
        how = {"draft": draft, "window": 8}
        found = complete(server, json_schema=SCHEMA, speculation=how, max_tokens=80)
        answer = json.loads(found["choices"][0]["text"])
        assert answer.keys() == {"name", "kind"} and answer["kind"] in ("on", "and")


def test_how_one_key_spaces_its_answers_is_not_drafted_for_another(model: Path) -> None:
    """By counts: the first tokens of an answer are drafted from its owner's last one, if any."""
    options = {"server__api_keys": ("anna", "bert"), "model__drafter": "suffix"}
    how = {"draft": "skeleton", "window": 8}
    body = {"prompt": "the on and", "max_tokens": 60, "temperature": 0}
    told = {}
    with doors.server(model, **options) as server:
        for name, key in (("first", "anna"), ("again", "anna"), ("another", "bert")):
            headers = {"authorization": f"Bearer {key}"}
            more = {"json_schema": SCHEMA, "speculation": how}
            answer = httpx.post(
                f"{server.url}/v1/completions", json={**body, **more}, headers=headers
            )
            told[name] = answer.json()["speculation"]["drafted"]
    assert told["another"] == told["first"]


def test_a_prediction_of_another_kind_is_refused_in_one_line(server: doors.Server) -> None:
    body = {"prompt": "on", "prediction": {"type": "picture", "content": "x"}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 400
    assert "prediction" in answer.json()["error"]["message"]

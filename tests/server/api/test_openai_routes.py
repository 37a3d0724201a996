"""Routes act: by endpoint, alias, shape, tools, header and tag; the request's own word is last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay.decoding.round import Fallback
from parlay.routing import Rule, When
from tests.server.running import Running, running

RULES = (
    Rule(name="tagged", when=When(tag="batch"), policy="plain"),
    Rule(name="team", when=When(header={"X-Team": "r*"}), policy="plain", reason=Fallback.REQUEST),
    Rule(name="alias", when=When(model="small*"), policy="plain", reason=Fallback.LOW_ACCEPTANCE),
    Rule(
        name="heavy",
        when=When(min_prompt_tokens=60, max_answer_tokens=9),
        policy="plain",
        reason=Fallback.PROMPT_HEAVY,
    ),
    Rule(name="talk", when=When(endpoint="chat"), window=1),
    Rule(name="text", draft="ngram"),
)
BODY: dict[str, Any] = {"prompt": "on on on on", "max_tokens": 30, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "on on on"}], "max_tokens": 30}


@pytest.fixture(scope="module")
def routed(target: Path) -> Iterator[Running]:
    with running(target, routes=RULES, model__drafter="suffix,ngram") as server:
        yield server


@pytest.mark.parametrize(
    ("body", "headers", "policy", "reason"),
    [
        (BODY | {"metadata": {"tag": "batch"}}, {}, "tagged", "policy"),
        (BODY, {"X-Parlay-Tag": "batch"}, "tagged", "policy"),
        (BODY, {"X-Team": "red"}, "team", "request"),
        (BODY | {"model": "small-1"}, {}, "alias", "low_acceptance"),
        (BODY | {"prompt": "q" * 80, "max_tokens": 9}, {}, "heavy", "prompt_heavy"),
    ],
)
def test_plain_routes_say_their_reason(
    routed: Running, body: dict[str, Any], headers: dict[str, str], policy: str, reason: str
) -> None:
    answer = httpx.post(f"{routed.url}/v1/completions", json=body, headers=headers).json()
    assert answer["speculative"]["policy"] == policy
    assert answer["speculative"]["fallbacks"].keys() == {reason}


def test_speculating_routes_choose_proposers_and_windows(routed: Running) -> None:
    text = httpx.post(f"{routed.url}/v1/completions", json=BODY).json()["speculative"]
    assert text["policy"] == "text" and set(text["proposers"]) <= {"ngram"}
    chat = httpx.post(f"{routed.url}/v1/chat/completions", json=CHAT).json()["speculative"]
    assert chat["policy"] == "talk" and set(chat["windows"]) <= {"0", "1"}


def test_the_request_has_the_last_word(routed: Running) -> None:
    body = BODY | {"metadata": {"tag": "batch"}, "speculative": True}
    found = httpx.post(f"{routed.url}/v1/completions", json=body).json()["speculative"]
    assert found["policy"] == "request" and "policy" not in found["fallbacks"]

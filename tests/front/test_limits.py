"""What a server takes over from a request, and what it tells of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from parlay.ask import Ask
from parlay.deployment import Deployment
from parlay.errors import BadRequest
from parlay.front.doors.chat import ChatDoor
from parlay.front.doors.door import Visit
from parlay.front.errors import Failure
from parlay.front.limits import checked, known_model
from parlay.front.schema import ChatRequest
from parlay.front.stored_responses import StoredResponses

HEADERS = {
    "authorization": "Bearer secret",
    "x-parlay-headed": "1",
    "x-parlay-tries": "2",
    "x-team": "red",
}


def taken(body: dict[str, Any], owner: str = "me", **server: Any) -> tuple[Ask, list[str]]:
    """The ask, and the names of what is told."""
    route = {"name": "team", "when": {"header": {"X-Team": "*"}}}
    deployment = Deployment.model_validate({"server": server, "routes": [route]})
    messages = [{"role": "user", "content": "hi"}]
    request = ChatRequest.model_validate({"messages": messages, **body})
    asked = ChatDoor().ask(request, Visit("key", StoredResponses(0)))
    ask, remarks = checked(asked, deployment, owner, HEADERS)
    return ask, [remark.param for remark in remarks]


def test_of_a_clients_headers_only_those_that_a_rule_names_go_on() -> None:
    ask, told = taken({})
    assert ask.headers == {"x-team": "red"} and ask.tag is None and told == []


@pytest.mark.parametrize(
    ("shared", "key", "owner", "memory"),
    [
        (False, None, "me", "me"),
        (False, "talk", "me", "me/talk"),
        (True, "talk", "", "me/talk"),
    ],
)
def test_cached_prompts_may_be_shared_and_what_was_said_never_is(
    shared: bool, key: str | None, owner: str, memory: str
) -> None:
    ask, _ = taken({"prompt_cache_key": key}, share_prompt_cache=shared)
    assert (ask.owner, ask.memory) == (owner, memory)


def test_what_a_server_does_not_follow_is_told_or_refused() -> None:
    assert taken({"moods": 1})[1] == ["moods"]
    assert taken({"max_tokens": 9}, max_answer_tokens=4)[1] == ["max_tokens"]
    with pytest.raises(Failure, match="unknown field moods"):
        taken({"moods": 1}, unknown_fields="refuse")
    with pytest.raises(Failure, match="mirostat would change the text"):
        taken({"mirostat": 2})
    with pytest.raises(BadRequest, match="n is 9"):
        taken({"n": 9})


def test_a_model_that_is_not_there_is_told_by_its_name() -> None:
    (remark,) = known_model("gpt-5", ("mine", "other"))
    assert remark.param == "model" and "'gpt-5'" in remark.message and "mine" in remark.message
    assert known_model("other", ("mine", "other")) == known_model("", ("mine",)) == ()

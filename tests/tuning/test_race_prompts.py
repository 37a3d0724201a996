"""Requests for a race: from a suite, a prompts file or a server's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.bench.suite import Prompt
from parlay.errors import BadRequest
from parlay.tuning.race_prompts import MAX_PROMPTS, from_log, from_suite, route_of


def test_neighbours_are_of_different_kinds() -> None:
    work = from_suite("core-60")
    assert len(work.suite.prompts) == MAX_PROMPTS and len(work.source.prompts) == 60
    first = [prompt.category for prompt in work.suite.prompts[:5]]
    assert len(set(first)) == 5
    assert set(work.routes) == {prompt.id for prompt in work.suite.prompts}


def test_a_log_gives_its_prompts_as_they_were_read_and_their_routes(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    rows = [
        {"request_id": "a", "prompt": "<|im_start|>user\nhi", "policy": "agent"},
        {"request_id": "b", "status": 400},
        {"request_id": "c", "prompt": "```python\n```", "answers": ["x"]},
    ]
    log.write_text("\n".join([*map(json.dumps, rows), "half a li"]))
    work = from_log(log)
    assert work.raw and sorted(work.routes.values()) == ["agent", "code"]
    assert {str(p.messages[0]["content"])[:5] for p in work.suite.prompts} == {"<|im_", "```py"}


def test_a_log_without_prompts_says_which_key_to_set(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    log.write_text('{"request_id": "a"}\n')
    with pytest.raises(BadRequest, match="log_prompts"):
        from_log(log)
    with pytest.raises(BadRequest, match="cannot be read"):
        from_log(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("text", "tools", "route"),
    [("hello", (), "chat"), ("```js", (), "code"), ("hello", ({"type": "function"},), "agent")],
)
def test_a_prompt_takes_the_route_a_server_would_give_it(
    text: str, tools: tuple[dict[str, str], ...], route: str
) -> None:
    assert route_of(Prompt("a", "c", ({"role": "user", "content": text},), 64, tools)) == route

"""Requests for a race: from a suite, a prompts file or a server's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.errors import BadRequest
from parlay.tuning.prompts import MAX_PROMPTS, from_log, from_suite


def test_neighbours_are_of_different_kinds() -> None:
    work = from_suite("core-60")
    assert len(work.suite.prompts) == MAX_PROMPTS
    first = [prompt.category for prompt in work.suite.prompts[:5]]
    assert len(set(first)) == 5


def test_a_log_gives_its_prompts_as_they_were_read_and_their_routes(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    rows = [
        {"request_id": "a", "prompt": "<|im_start|>user\nhi", "policy": "agent"},
        {"request_id": "b", "status": 400},
        {"request_id": "c", "prompt": "```python\n```", "answers": ["x"]},
    ]
    log.write_text("\n".join([*map(json.dumps, rows), "half a li"]))
    work = from_log(log)
    assert work.raw and sorted(p.category for p in work.suite.prompts) == ["agent", "log"]
    assert {str(p.messages[0]["content"])[:5] for p in work.suite.prompts} == {"<|im_", "```py"}


def test_a_log_without_prompts_says_which_key_to_set(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    log.write_text('{"request_id": "a"}\n')
    with pytest.raises(BadRequest, match="log_prompts"):
        from_log(log)
    with pytest.raises(BadRequest, match="cannot be read"):
        from_log(tmp_path / "nothing.jsonl")

"""A request made to break things is refused or ends alone; those beside it get their answers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests import doors


def ask(server: doors.Server, content: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}/v1/completions", content=content, headers=headers)


def honest(i: int) -> dict[str, Any]:
    return {"prompt": f"hello {i}", "max_tokens": 40, "temperature": 0}


@pytest.mark.parametrize("number", ["-1e999", "1e999", "NaN", "-Infinity"])
def test_numbers_without_bounds_are_refused_and_cost_nobody_an_answer(
    server: doors.Server, number: str
) -> None:
    a = server.tokens("a")[-1]
    poison = (
        '{"prompt":"x","temperature":0.8,"grammar":"root ::= \\"a\\"",'
        f'"logit_bias":{{"{a}":{number}}}}}'
    )
    bodies = [poison, *(json.dumps(honest(i)) for i in range(3))]
    alone = [ask(server, body).json()["choices"][0]["text"] for body in bodies[1:]]
    with ThreadPoolExecutor(4) as pool:
        refused, *others = pool.map(lambda body: ask(server, body), bodies)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_json"
    assert [other.json()["choices"][0]["text"] for other in others] == alone

"""The live routes on a running server: snapshots, the stream, requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.front.running import Running, running
from tests.serving import PATIENCE_S, wait_for

BODY: dict[str, Any] = {"prompt": "on on on on", "max_tokens": 30, "temperature": 0}


def ask(server: Running, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{server.url}/v1/completions", json=BODY | more).json()
    return answer


def events(server: Running, n: int) -> list[tuple[str, dict[str, Any]]]:
    """The first so many events of the stream."""
    found: list[tuple[str, dict[str, Any]]] = []
    with httpx.stream("GET", f"{server.url}/live/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            if line.startswith("data: "):
                found.append((kind, json.loads(line[6:])))
            if len(found) == n:
                break
    return found


def viewers(server: Running) -> int:
    found: int = httpx.get(f"{server.url}/live").json()["viewers"]
    return found


def test_a_snapshot_holds_what_the_requests_did(server: Running) -> None:
    told = ask(server, speculation={"draft": "suffix", "window": 4})["speculation"]
    found = httpx.get(f"{server.url}/live").json()
    everything, *groups = found["groups"]
    assert (everything["route"], everything["model"]) == ("all", "all")
    (group,) = [g for g in groups if g["route"] == told["policy"]]
    assert group["requests"] >= 1 and group["recent"]["rounds"] > 0
    assert everything["generated"] >= told["generated"] - 1
    assert len(found["slots"]) == 8 and found["queue"]["waiting"] == 0
    assert found["memory"]["planned_bytes"] > 0 and found["memory"]["used_bytes"] > 0
    assert found["mode"] == "exact" and "suffix" in found["proposers"]
    assert found["exact_class"] == told["exact_class"]
    assert found["exact_cost_percent"] == told["exact_cost_percent"]  # by this machine's times


def test_busy_groups_are_brought_up_to_date_in_turn(server: Running) -> None:
    def generated() -> dict[str, int]:
        groups = httpx.get(f"{server.url}/live").json()["groups"]
        return {group["route"]: group["recent"]["generated"] for group in groups}

    before = [generated() for _ in range(6)][-1]  # as often as there are groups, and more
    for policy in ("plain", "speculate"):
        ask(server, speculation={"policy": policy})
    seen = [generated() for _ in range(6)]
    assert all(found == seen[-1] for found in seen[2:])
    for route in ("plain", "speculate"):
        assert seen[-1][route] > before.get(route, 0)
    assert seen[-1]["all"] == seen[0]["all"], "the whole is never behind"


def test_fifty_viewers_see_the_same_and_answers_go_on(server: Running) -> None:
    with ThreadPoolExecutor(51) as pool:
        watching = [pool.submit(events, server, 5) for _ in range(50)]
        answer = pool.submit(ask, server)
        assert answer.result()["choices"][0]["text"]
        times = [[e["time"] for kind, e in w.result() if kind == "snapshot"] for w in watching]
    ticks = sorted({t for seen in times for t in seen})
    assert all(b - a > 0.5 for a, b in pairwise(ticks)), "one snapshot a tick, whoever watches"
    wait_for(lambda: viewers(server) == 0)


def test_one_request_can_be_followed_round_by_round(server: Running) -> None:
    reply = ask(server, speculation={"draft": "suffix", "window": 3})
    rows = httpx.get(f"{server.url}/live/requests").json()
    assert rows[0]["request_id"] == reply["id"] and rows[0]["generated"] > 0
    assert "prompt" not in rows[0]
    found = httpx.get(f"{server.url}/live/requests/{reply['id']}").json()
    (rounds,) = found["answers"]
    assert sum(r["generated"] for r in rounds) + rounds[0]["position"] == found["generated"]
    assert sum(r["drafted"] for r in rounds) == found["drafted"]
    assert {"window", "proposer", "expected_gain", "actual_gain", "reason"} <= rounds[0].keys()


def test_an_unknown_request_is_not_found(server: Running) -> None:
    answer = httpx.get(f"{server.url}/live/requests/nothing")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_streams_do_not_hold_the_end_of_the_server_up(target: Path) -> None:
    with running(target, server__drain_s=20) as server, ThreadPoolExecutor(1) as pool:
        watching = pool.submit(events, server, 10_000)
        wait_for(lambda: viewers(server) == 1)
        server.service.draining = True
        assert watching.result(PATIENCE_S)  # the server ended it

"""`parlay ps`: a server's live figures in a terminal, and what it says when there are none."""

from __future__ import annotations

import io
import json
from collections import deque
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from parlay.cli.main import app
from parlay.cli.ps import screen, screens, spark
from tests.front.running import Running, running, server_on

RECENT: dict[str, Any] = {
    "rounds": 10,
    "generated": 25,
    "drafted": 20,
    "accepted": 15,
    "token_acceptance": 0.75,
    "acceptance_length": 2.5,
    "acceptance_by_position": [0.9, 0.8],
    "fallbacks": {"no_draft": 4},
    "draft_ms": 1.0,
    "verify_ms": 98.0,
    "overhead_ms": 1.0,
    "speedup": 1.7,
}
SNAPSHOT: dict[str, Any] = {
    "time": 0.0,
    "uptime_s": 3725.0,
    "viewers": 2,
    "model": "[red]model[/red]",
    "mode": "exact",
    "proposers": ["suffix"],
    "answered": 7,
    "slots": [{"id": 0, "busy": True}, {"id": 1, "busy": False}],
    "queue": {"waiting": 3, "size": 64},
    "memory": {"place": "ram", "planned_bytes": 1 << 30, "used_bytes": 3 << 29},
    "alerts": [{"kind": "memory_pressure", "message": "96 % of memory is in use"}],
    "groups": [
        {
            "route": "all",
            "model": "all",
            "requests": 7,
            "generated": 99,
            "now": {"tokens_per_s": 42.5},
            "recent": RECENT,
        }
    ],
}


PARTS = (
    "42.5",
    "1.70x",
    "75 %",
    "2.50",
    "position 2",
    "plain, no_draft",
    "1 of 2 busy, 3 waiting",
    "1.50 GiB of 1.00 GiB planned",
    "1 h 2 min",
    "! memory_pressure: 96 % of memory is in use",
)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ps", *arguments])


def shown(snapshot: dict[str, Any], course: tuple[float, ...] = (), route: str = "all") -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(screen(snapshot, course, route))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_screen_has_the_figures_of_the_page() -> None:
    text = shown(SNAPSHOT, (1.0, 2.0))
    for part in PARTS:
        assert part in text
    assert "[red]model[/red]" in text, "names from a server are no markup"


def test_a_route_without_requests_has_no_figures_and_no_error() -> None:
    assert "route code" in shown(SNAPSHOT, route="code")


def test_a_course_of_nothing_draws_nothing() -> None:
    assert spark([0.0, 0.0]) == "" and spark([]) == ""
    assert spark([0.0, 1.0, 2.0]) == " ▄█"


def test_once_shows_one_snapshot_in_words_or_json(served: Running) -> None:
    assert "parlay ps" in call(f"{served.url}/v1").output
    found = json.loads(call(served.url, "--json").output)
    assert found["model"] == "llama" and found["groups"][0]["route"] == "all"


def test_the_stream_fills_the_course_and_the_screen(served: Running) -> None:
    course: deque[float] = deque(maxlen=3)
    with httpx.Client(base_url=served.url, timeout=60) as client:
        shown = screens(client, course, "all")
        assert next(shown) and next(shown)
        shown.close()  # type: ignore[attr-defined]
    assert len(course) >= 2


def test_a_wrong_address_or_key_is_one_line_that_says_what_to_do(served: Running) -> None:
    for arguments, part in (
        (("http://127.0.0.1:9",), "is the server running?"),
        (("not an address",), "is no address"),
        (("127.0.0.1:8080",), "is no address"),
        ((f"{served.url}/page",), "is it a parlay server?"),
    ):
        result = call(*arguments)
        assert result.exit_code == 1 and any(p in str(result.exception) for p in part.split("|"))


served = server_on("tiny_llama")


def test_the_key_comes_from_the_environment(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"server__api_keys": "some-key", "server__admin_keys": "secret-key"}
    with running(tiny_llama, **keys) as locked:
        refused = call(locked.url)
        assert "PARLAY_API_KEY" in str(refused.exception)
        monkeypatch.setenv("PARLAY_API_KEY", "some-key")
        assert "server.admin_keys" in str(call(locked.url).exception)
        monkeypatch.setenv("PARLAY_API_KEY", "secret-key")
        assert call(locked.url).exit_code == 0

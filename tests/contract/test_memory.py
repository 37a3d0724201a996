"""What is remembered of earlier answers: told in numbers, by key, until it is told to forget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import doors

ASKED: dict[str, Any] = {"prompt": "the on and the on", "door": "completions", "max_tokens": 24}


def test_what_is_to_be_forgotten_is_gone_when_the_answer_says_so(model: Path) -> None:
    with doors.server(model) as server:
        for _ in range(10):
            server.ask(**ASKED)
            doors.until(lambda: server.remembered() > 20)
            assert server.delete("/memory").status_code == 204
            assert server.remembered() == 0


def test_with_keys_nothing_is_remembered_unless_it_is_set(model: Path) -> None:
    with doors.server(model, server__api_keys=("anna",)) as server:
        anna = server.as_key("anna")
        anna.ask(**ASKED)
        assert anna.get("/memory").json()["remembers"] is False


def test_one_key_is_never_drafted_what_another_was_told(model: Path) -> None:
    options = {"server__api_keys": ("anna", "bert"), "runtime__remember_tokens": 10_000}
    how = {"draft": "suffix", "window": 4}
    drafted = {}
    for before in ("", "anna"):
        with doors.server(model, **options) as server:
            for _ in range(2 * bool(before)):
                server.as_key(before).ask(**ASKED, speculation=how)
            told = server.as_key("bert").ask(**ASKED, speculation=how)
            drafted[before] = told.speculation["drafted"]
            assert told.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert drafted[""] == drafted["anna"]


def test_one_key_forgets_its_own_and_nobody_elses(model: Path) -> None:
    options = {"server__api_keys": ("anna", "bert"), "runtime__remember_tokens": 10_000}
    with doors.server(model, **options) as server:
        for key in ("anna", "bert"):
            server.as_key(key).ask(**ASKED)
        anna = server.as_key("anna")
        doors.until(lambda: anna.get("/memory").json()["owners"] == 2)
        anna.delete("/memory")
        assert anna.get("/memory").json()["owners"] == 1
        assert anna.remembered() > 20


def test_a_file_keeps_it_across_a_restart(model: Path, tmp_path: Path) -> None:
    kept = {"runtime__remember_file": str(tmp_path / "memory.json")}
    with doors.server(model, **kept) as server:
        server.ask(**ASKED)
        doors.until(lambda: server.remembered() > 20)
        before = server.remembered()
    with doors.server(model, **kept) as server:
        assert server.remembered() == before


@pytest.mark.parametrize("text", ["{", '{"parlay_memory": 1, "owners": {'])
def test_a_damaged_file_is_set_aside_before_anybody_is_answered(
    model: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "memory.json"
    path.write_text(text)
    with doors.server(model, runtime__remember_file=str(path)) as server:
        assert (tmp_path / "memory.json.damaged").read_text() == text
        assert server.remembered() == 0
        server.ask(**ASKED)
    assert path.exists()  # and the next one is kept again

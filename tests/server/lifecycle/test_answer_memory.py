"""What a server remembers: by key, in numbers, until it is told to forget, across a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from parlay.deployment import DeploymentError
from parlay.engine.engine import Engine
from parlay.proposers.skeleton import SkeletonProposer
from parlay.proposers.suffix import SuffixProposer
from parlay.server.lifecycle.answer_memory import AnswerMemory, check_memory_file
from tests.server.running import Running, running
from tests.serving import wait_for

BODY = {"prompt": "the on and the on", "max_tokens": 24, "temperature": 0}


def ask(server: Running, key: str = "", **more: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{server.url}/v1/completions", json={**BODY, **more}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def remembered(server: Running, key: str = "") -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found: int = httpx.get(f"{server.url}/memory", headers=headers).json()["tokens"]
    return found


def test_one_person_is_remembered_by_default_and_can_be_forgotten(target: Path) -> None:
    with running(target, model__drafter="suffix") as server:
        assert remembered(server) == 0
        ask(server)
        wait_for(lambda: remembered(server) > 20)
        schema = {"type": "object", "properties": {"a": {"enum": ["on"]}}, "required": ["a"]}
        ask(server, json_schema=schema, max_tokens=60)
        skeleton = server.service.engine.bets.proposers["skeleton"]
        assert isinstance(skeleton, SkeletonProposer)
        wait_for(lambda: bool(skeleton._last))
        assert httpx.delete(f"{server.url}/memory").status_code == 204
        wait_for(lambda: remembered(server) == 0 and not skeleton._last)


def test_with_keys_nothing_is_remembered_unless_it_is_set(target: Path) -> None:
    with running(target, model__drafter="suffix", server__api_keys=("anna",)) as server:
        ask(server, "anna")
        headers = {"authorization": "Bearer anna"}
        assert httpx.get(f"{server.url}/memory", headers=headers).json()["remembers"] is False


def test_one_key_is_never_drafted_what_another_was_told(target: Path) -> None:
    options = {"server__api_keys": ("anna", "bert"), "runtime__remember_tokens": 10_000}
    how = {"draft": "suffix", "window": 4}
    drafted = {}
    for before in ("", "anna"):
        with running(target, model__drafter="suffix", **options) as server:
            for _ in range(2 * bool(before)):
                ask(server, before, speculation=how)
            told = ask(server, "bert", speculation=how)
            drafted[before] = told["speculation"]["drafted"]
            assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert drafted[""] == drafted["anna"]


def test_a_file_keeps_it_across_a_restart_and_a_damaged_one_is_set_aside(
    target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "memory.json"
    options = {"model__drafter": "suffix", "runtime__remember_file": str(path)}
    with running(target, **options) as server:
        ask(server)
        wait_for(lambda: remembered(server) > 20)
        before = remembered(server)
    with running(target, **options) as server:
        wait_for(lambda: remembered(server) == before)
    path.write_text("{")
    with running(target, **options) as server:
        assert remembered(server) == 0
        assert (tmp_path / "memory.json.damaged").exists()


def opened(path: Path) -> AnswerMemory:
    """That of an engine which has nothing but a suffix proposer."""
    suffix = SuffixProposer(remember_tokens=1000)
    bets = SimpleNamespace(proposers={"suffix": suffix})
    engine = SimpleNamespace(bets=bets, call=lambda asked: asked())
    memory = AnswerMemory(cast(Engine, engine), path)
    assert suffix.memory is not None
    suffix.memory.add("", list(range(40)))
    memory.keep()
    return memory


def test_a_folder_is_left_where_it_is_and_said_to_keep_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine").mkdir()
    opened(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (said,) = caplog.messages
    assert said.startswith("what is remembered is not kept: ") and "no memory of answers" in said


@pytest.mark.parametrize(
    "text", ["{", '{"parlay_memory": 1, "owners": {', '{"parlay_memory": 7, "owners": {}}']
)
def test_a_damaged_file_of_its_own_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    check_memory_file(path)
    opened(path)
    assert (tmp_path / "mine.json.damaged").read_text() == text
    assert "parlay_memory" in path.read_text()


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.touch()
    check_memory_file(path)
    opened(path)
    assert [found.name for found in tmp_path.iterdir()] == ["mine.json"]
    assert "parlay_memory" in path.read_text()


@pytest.mark.parametrize("text", ["[]", '{"name": "of something else"}', "\xff", "GGUF\x03"])
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.gguf"
    path.write_text(text, "latin-1")
    with pytest.raises(DeploymentError, match=r"mine\.gguf is no memory of answers; name another"):
        check_memory_file(path)
    opened(path)
    assert [found.name for found in tmp_path.iterdir()] == ["mine.gguf"]
    assert path.read_text("latin-1") == text
    assert len(caplog.messages) == 1

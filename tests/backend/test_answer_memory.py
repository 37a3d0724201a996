"""What a server remembers: by key, in numbers, until it is told to forget, across a restart."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parlay.backend.answer_memory import AnswerMemory, check_memory_file
from parlay.deployment import DeploymentError
from parlay.engine.engine import Engine
from parlay.proposers.lookup import Lookup


def done(asked: Any) -> Future[None]:
    found: Future[None] = Future()
    found.set_result(asked())
    return found


def opened(path: Path) -> AnswerMemory:
    """That of an engine which has nothing but a suffix proposer."""
    suffix = Lookup(remember_tokens=1000)
    bets = SimpleNamespace(proposers={"suffix": suffix})
    engine = SimpleNamespace(drafts=bets, call=done)
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

"""One temperature for all doors where none is given: the model's file's, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from tests import doors, tiny_models
from tests.doors import CHAT_DOORS, PATHS, Door


@dataclass(frozen=True)
class Recommending(tiny_models.Vocabulary):
    """The model's file says how warm its answers are best."""

    def write(self, writer: GGUFWriter) -> None:
        super().write(writer)
        writer.add_float32("general.sampling.temp", 0.25)


@pytest.fixture(scope="module")
def recommending(tiny_folder: Path) -> Path:
    path = tiny_folder / "contract-recommending.gguf"
    return tiny_models.write_llama(path, vocab=Recommending(), ftype="q8_0")


@pytest.fixture(scope="module")
def server(recommending: Path) -> Iterator[doors.Server]:
    with doors.server(recommending) as found:
        yield found


def told(server: doors.Server, door: Door, **options: Any) -> float:
    body = doors.body_of(door, "hello", {"max_tokens": 2, **options})
    if "temperature" not in options:
        del body["temperature"]
    return float(server.post(PATHS[door], body).json()["temperature"])


@pytest.mark.parametrize("door", [*CHAT_DOORS, "completions"])
def test_a_server_takes_what_the_file_recommends_and_tells_it(
    server: doors.Server, door: Door
) -> None:
    assert told(server, door) == 0.25
    assert told(server, door, temperature=0.5) == 0.5


def test_python_and_the_command_line_take_the_same(recommending: Path) -> None:
    with doors.python(recommending) as parlay:
        assert parlay.generate("hello", max_tokens=2).temperature == 0.25
    words = [*doors.run_words(recommending, "hello", max_tokens=2), "--json"]
    at = words.index("--temperature")
    assert '"temperature": 0.25' in doors.verb(*words[:at], *words[at + 2 :]).stdout


def test_where_no_file_says_one_it_is_the_same_for_all(
    one_server: doors.Server, model: Path
) -> None:
    assert told(one_server, "chat") == told(one_server, "messages") == 0.8
    with doors.python(model) as parlay:
        assert parlay.generate("hello", max_tokens=2).temperature == 0.8

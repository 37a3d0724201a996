"""Filling in the middle, on a model that has marks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf import GGUFWriter

from tests import doors, tiny_models

BEFORE, AFTER, MIDDLE, FILE = 40, 41, 42, 43  # any tokens will do


@dataclass(frozen=True)
class MarkedVocabulary(tiny_models.Vocabulary):
    """With marks around a gap."""

    def write(self, writer: GGUFWriter) -> None:
        super().write(writer)
        marks = {"fim_pre": BEFORE, "fim_suf": AFTER, "fim_mid": MIDDLE, "fim_sep": FILE}
        for name, token in marks.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)


@pytest.fixture(scope="module")
def marked(tiny_folder: Path) -> Iterator[doors.Server]:
    path = tiny_models.write_llama(tiny_folder / "marked.gguf", vocab=MarkedVocabulary())
    with doors.server(path) as server:
        yield server


def ask(server: doors.Server, path: str, **body: Any) -> Any:
    options = {"temperature": 0, "n_predict": 12}
    answer = httpx.post(f"{server.url}{path}", json={**options, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(server: doors.Server, text: str) -> list[int]:
    content = {"content": text, "parse_special": False}
    found: list[int] = httpx.post(f"{server.url}/tokenize", json=content).json()["tokens"]
    return found


def test_a_gap_is_read_as_what_stands_around_it(marked: doors.Server) -> None:
    around = [BEFORE, *tokens(marked, "hello "), AFTER, *tokens(marked, " there"), MIDDLE]
    expected = ask(marked, "/v1/completions", prompt=around)["choices"][0]["text"]
    suffixed = ask(marked, "/v1/completions", prompt="hello ", suffix=" there")
    assert suffixed["choices"][0]["text"] == expected
    filled = ask(marked, "/infill", input_prefix="hello ", input_suffix=" there")
    assert filled["content"] == expected
    assert (filled["tokens_evaluated"], filled["tokens_predicted"]) == (len(around), 12)
    assert filled["stop_type"] == "limit"


def test_other_files_come_first_and_begun_text_last(marked: doors.Server) -> None:
    extra = [{"filename": "a.py", "text": "on"}]
    filled = ask(
        marked, "/infill", input_prefix="he", input_suffix="on", input_extra=extra, prompt="and"
    )
    prompt = [FILE, *tokens(marked, "a.py\non\n"), BEFORE, *tokens(marked, "he")]
    prompt += [AFTER, *tokens(marked, "on"), MIDDLE, *tokens(marked, "and")]
    alone = ask(marked, "/v1/completions", prompt=prompt)
    assert filled["content"] == alone["choices"][0]["text"]


def test_a_gap_is_filled_as_a_stream(marked: doors.Server) -> None:
    body = {"input_prefix": "hello ", "input_suffix": "", "n_predict": 8, "temperature": 0}
    text = httpx.post(f"{marked.url}/infill", json={**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    whole = ask(marked, "/infill", **body)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]

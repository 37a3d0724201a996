"""`parlay ab` against recorded servers: verdict, exit code, history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parlay.errors import ParlayError
from tests.bench.recorded import Recorded, serve
from tests.cli.runner import call


class ToldTime:
    """Goes on by what servers say that they need, and a little with every look at it."""

    def __init__(self) -> None:
        self._now = 0.0

    def perf_counter(self) -> float:
        self._now += 1e-4
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture(autouse=True)
def told_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers take what they are said to take, however busy this machine is."""
    time = ToldTime()
    monkeypatch.setattr("parlay.bench.subjects.endpoint.time", time)
    monkeypatch.setattr("tests.bench.recorded.Recorded.sleep", staticmethod(time.sleep))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"prompt": "say {i}", "max_tokens": 8}}\n' for i in range(3)))
    return path


def compare(a: Recorded, b: Recorded | None, prompts: Path, *options: object) -> tuple[int, Any]:
    history = prompts.with_name("history.jsonl")
    common = ["--prompts", prompts, "--history", history, "--json", *options]
    with serve(a) as first:
        if b is None:
            result = call("ab", first, *common)
        else:
            with serve(b) as second:
                result = call("ab", first, second, *common)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_slower_server_is_found_and_fails_the_job(prompts: Path) -> None:
    code, said = compare(Recorded("openai", 0.002), Recorded("openai", 0.02), prompts)
    assert (code, said["verdict"]) == (1, "slower")
    assert said["comparison"]["wall"]["ratio"] < 0.6


def test_a_faster_server_is_found(prompts: Path) -> None:
    options = ("--expect", "faster", "--pairs", "4")
    code, said = compare(Recorded("openai", 0.02), Recorded("openai", 0.002), prompts, *options)
    assert (code, said["verdict"]) == (0, "faster")


def test_one_changed_field_is_sent_to_one_side_only(prompts: Path) -> None:
    server = Recorded("openai")
    compare(server, None, prompts, "--change", "speculation=false", "--pairs", "2")
    plain = [body for body in server.asked if "speculation" not in body]
    assert len(plain) == len(server.asked) / 2
    assert server.asked[-1].get("speculation", False) is False


def test_history_says_when_a_version_changed_the_behaviour(prompts: Path) -> None:
    a = Recorded("llama.cpp", version="1")
    options = ("--pairs", "4")
    _, first = compare(a, Recorded("llama.cpp", 0.002, version="7"), prompts, *options)
    assert first["changes"] == []
    other = Recorded("llama.cpp", 0.03, version="8", text=["Snow", " falls", "."])
    _, second = compare(a, other, prompts, *options)
    text = "\n".join(second["changes"])
    assert "B: the version was b7 and is b8" in text
    assert "B: 3 of 3 answers have another text" in text
    assert "the ratio of wall time" in text
    assert len(prompts.with_name("history.jsonl").read_text().splitlines()) == 2


def test_a_damaged_line_of_the_history_is_named_and_left_out(
    prompts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts.with_name("history.jsonl").write_text("{}\n")
    compare(Recorded("openai"), Recorded("openai"), prompts, "--pairs", "1")
    assert "history.jsonl line 1 is damaged and was left out" in caplog.text


def test_a_table_for_people(prompts: Path) -> None:
    with serve(Recorded("openai")) as url:
        history = prompts.with_name("h.jsonl")
        options = ["--prompts", prompts, "--pairs", 1, "--change", "x=1", "--history", history]
        result = call("ab", url, *options)
    assert "time to first token" in result.stdout
    assert "same text: 3 of 3 prompts" in result.stdout


@pytest.mark.parametrize("arguments", [["http://127.0.0.1:9"], ["http://127.0.0.1:9", "nonsense"]])
def test_bad_use_is_refused(prompts: Path, arguments: list[str]) -> None:
    result = call("ab", *arguments, "--prompts", prompts)
    assert isinstance(result.exception, ParlayError)


def test_a_key_comes_from_the_environment(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-key")
    server = Recorded("openai")
    _, said = compare(
        server, None, prompts, "--change", "x=1", "--pairs", "1", "--api-key-env", "MY_KEY"
    )
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    assert "secret-key" not in json.dumps(said)

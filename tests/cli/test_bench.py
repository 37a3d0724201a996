"""`parlay bench`: against recorded servers, and on a model beside llama.cpp's server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.errors import ParlayError
from parlay.results.record import Record, parse
from tests.bench.recorded import Recorded, serve
from tests.cli.runner import call


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    rows = [{"prompt": "Count: one two three one two three", "max_tokens": 6, "category": "a"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_two_endpoints_make_a_record_without_addresses(prompts: Path, tmp_path: Path) -> None:
    with serve(Recorded("vllm", 0.005)) as a, serve(Recorded("llama.cpp", 0.002)) as b:
        out = tmp_path / "run"
        options = ["--suite", prompts, "--pairs", 4, "--out", out, "--json"]
        result = call("bench", "--endpoint", a, "--endpoint", b, *options)
    assert result.exit_code == 0, result.output
    record = parse(result.stdout.encode())
    assert [arm.kind for arm in record.arms] == ["vllm", "llama.cpp"]
    assert record.comparisons[0].clock == "decode"  # only one side tells its own
    assert "127.0.0.1" not in result.stdout
    assert parse((out / "result.json").read_bytes()) == record


def test_finished_folder_is_not_overwritten(prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with serve(Recorded("openai")) as url:
        options = ["--suite", prompts, "--out", tmp_path, "--change", "x=1"]
        result = call("bench", "--endpoint", url, *options)
    assert isinstance(result.exception, ParlayError)
    assert "holds a finished result" in result.exception.message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--endpoint", "http://127.0.0.1:9"], "no --change"),
        (["--suite", "core-13"], "core-12, core-60"),
        (["--library", "/no/such/folder"], "no folder"),
        (["--window", "few"], "give auto or a number"),
        (["--quick", "--mode", "bogus"], "mode is 'bogus'; give exact, faithful"),
        (["--window", "auto", "--window", "17"], "16 is the widest"),
    ],
)
def test_bad_use_is_refused(options: list[str], reason: str) -> None:
    result = call("bench", *options)
    assert isinstance(result.exception, ParlayError)
    assert reason in result.exception.message


def test_own_runtime_and_the_peer_on_one_model(
    target: Path, drafter: Path, prompts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("xllamacpp")
    out = tmp_path / "run"
    models = ["--model", target, "--draft", f"suffix,{drafter}"]
    windows = ["-k", "auto", "-k", 2]
    options = ["--suite", prompts, "--pairs", 1, "--threads", 1, *windows, "--out", out]
    result = call("bench", *models, *options, "--peer", "ngram-simple", "--json")
    assert result.exit_code in (0, 1), result.output
    record: Record = parse((out / "result.json").read_bytes())
    assert [arm.name for arm in record.arms] == [
        "plain",
        "suffix+model",
        "suffix+model k=2",
        "llama.cpp none",
        "llama.cpp ngram-simple",
    ]
    assert all(s.outcome == "ok" for s in record.samples)
    assert record.run.warm_up["suffix+model k=2"] == [0, 1, 2]
    assert record.target is not None and record.target.architecture == "llama"
    assert record.drafter is not None and record.drafter.file_type == "Q8_0"
    assert record.costs is not None and len(record.costs.target) > 5
    own = record.comparisons[1]
    assert (own.identity.n_identical, own.identity.n_compared) == (1, 1)
    assert own.acceptance is not None and own.acceptance.counts.drafted > 0
    for name in ("figures", "complete", "times", "counts"):
        assert all(c.ok is not False for c in record.checks if c.name == name)

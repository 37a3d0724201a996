"""`parlay bench`: against recorded servers, and on a model beside llama.cpp's server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.bench import community
from parlay.bench.record import Record, dump, parse
from parlay.errors import ParlayError
from tests.bench.recorded import Recorded, serve
from tests.cli.runner import call
from tests.results import made


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
        result = call("bench", a, b, *options)
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
        result = call("bench", url, *options)
    assert isinstance(result.exception, ParlayError)
    assert "holds a finished result" in result.exception.message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["http://127.0.0.1:9"], "no --change"),
        (["--suite", "core-13"], "core-12, core-60"),
        (["--library", "/no/such/folder"], "no folder"),
        (["--window", "few"], "give auto or a number"),
        (["--set", "runtime.mode=bogus"], "runtime.mode"),
        (["--window", "auto", "--window", "17"], "16 is the widest"),
        (["--set", "server.port=1"], "says nothing about how a model runs here"),
        (["--report"], "--report of what?"),
        (["nonsense", "--change", "x=1"], "is no address"),
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
    options = [
        "--suite",
        prompts,
        "--pairs",
        1,
        "--set",
        "runtime.threads=1",
        *windows,
        "--out",
        out,
    ]
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
    assert record.target is not None and record.target.architecture == "llama"
    assert record.drafter is not None and record.drafter.file_type == "Q8_0"
    own = record.comparisons[1]
    assert (own.identity.n_identical, own.identity.n_compared) == (1, 1)
    assert own.acceptance is not None and own.acceptance.counts.drafted > 0
    for name in ("figures", "complete", "times", "counts"):
        assert all(c.ok is not False for c in record.checks if c.name == name)


# -- two addresses ----------------------------------------------------------------------------


class ToldTime:
    """Goes on by what servers say that they need, and a little with every look at it."""

    def __init__(self) -> None:
        self._now = 0.0

    def perf_counter(self) -> float:
        self._now += 1e-4
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def told_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers take what they are said to take, however busy this machine is."""
    time = ToldTime()
    monkeypatch.setattr("parlay.bench.endpoint.time", time)
    monkeypatch.setattr("tests.bench.recorded.Recorded.sleep", staticmethod(time.sleep))


@pytest.mark.usefixtures("told_time")
@pytest.mark.parametrize(
    ("delay_s", "code", "verdict"), [(0.02, 1, "slower"), (0.0002, 0, "faster")]
)
def test_the_verdict_on_two_servers_is_the_exit_code(
    prompts: Path, tmp_path: Path, delay_s: float, code: int, verdict: str
) -> None:
    with serve(Recorded("openai", 0.002)) as a, serve(Recorded("openai", delay_s)) as b:
        result = call("bench", a, b, "--suite", prompts, "--out", tmp_path / "run", "--json")
    record = parse(result.stdout.encode())
    wall = record.comparisons[0].wall
    assert wall is not None and (result.exit_code, wall.verdict) == (code, verdict)


def test_one_changed_field_is_sent_to_one_side_only_and_keys_stay_secret(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_API_KEY", "secret-key")
    server = Recorded("openai")
    options = ["--suite", prompts, "--pairs", 2, "--out", tmp_path / "run", "--json"]
    with serve(server) as url:
        result = call("bench", url, "--change", "speculation=false", *options)
    plain = [body for body in server.asked if "speculation" not in body]
    assert len(plain) == len(server.asked) / 2
    assert server.asked[-1].get("speculation", False) is False
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    assert "secret-key" not in result.output


def test_a_run_goes_on_where_it_stopped_when_that_is_said(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--suite", prompts, "--pairs", 2, "--out", out, "--change", "x=1"]
    server = Recorded("openai")
    with serve(server) as url:
        call("bench", url, *options)
        (out / "result.json").unlink()
        again = call("bench", url, *options)
        assert "go on with --resume" in str(again.exception)
        n_asked = len(server.asked)
        done = call("bench", url, *options, "--resume", "--json")
    assert parse(done.stdout.encode()).run.n_sittings == 2
    assert len(server.asked) == n_asked


# -- what is made of results ------------------------------------------------------------------


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(dump(made.record()), "utf-8")
    return path


def test_a_page_and_a_table_are_written_beside_a_result(result: Path) -> None:
    told = json.loads(call("bench", result.parent, "--report", "--json").stdout)
    assert "suffix: faster" in Path(told["html"]).read_text()
    assert "| suffix | all |" in Path(told["markdown"]).read_text()


def test_a_submission_is_made_of_what_can_be_believed(result: Path, tmp_path: Path) -> None:
    out = tmp_path / "ryzen7950x.json"
    sent = call("bench", result, "--submit", "ryzen7950x", "--out", out)
    assert sent.exit_code == 0 and community.parse(out.read_bytes(), "it").name == "ryzen7950x"
    assert "CC-BY-4.0" in sent.stdout
    out.unlink()
    quick = made.record().run.model_copy(update={"quick": True})
    result.write_text(dump(made.changed(made.record(), run=quick)), "utf-8")
    refused = call("bench", result, "--submit", "ryzen7950x", "--out", out)
    assert refused.exit_code == 1 and "send a whole run" in refused.stdout
    assert not out.exists()
    assert "3 to 64 of a-z" in str(call("bench", result, "--submit", "A B").exception)


def test_the_map_leaves_out_and_names_what_cannot_be_believed(tmp_path: Path) -> None:
    folder, out = tmp_path / "community", tmp_path / "map.html"
    folder.mkdir()
    (folder / "ryzen7950x.json").write_text(dump(made.submission()), "utf-8")
    assert call("bench", "--map", folder, "--out", out).exit_code == 0
    (folder / "bad.json").write_text("{}")
    drawn = call("bench", "--map", folder, "--out", out, "--json")
    assert drawn.exit_code == 1
    told = json.loads(drawn.stdout)
    assert told["submissions"] == 1 and list(told["refused"]) == ["bad.json"]
    assert "ryzen7950x" in out.read_text()

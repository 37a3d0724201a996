"""`parlay run` as people run it: a process with arguments, two streams and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parlay.decoding.counts import Counts
from tests.serving import PATIENCE_S

PARLAY = Path(sys.executable).with_name("parlay")
PROMPT = "the cat sat on the mat and the cat sat on the mat and"
TAB, RETURN = 3 + 9, 3 + 13  # ids of single bytes in the tiny vocabulary

# Whether exact text is worth its price is measured where nothing is said.
SMALL: tuple[object, ...] = ("--threads", 1, "--max-tokens", 24, "--context-size", 256)
SMALL += ("--temperature", 0, "--set", "runtime.mode=exact")
SHELL = """
import contextlib, io, json, sys
from parlay.cli.main import app_main
for line in sys.stdin:
    arguments, given = json.loads(line)
    sys.argv = ["parlay", "run", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    listening, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(given.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app_main()
        except SystemExit as end:
            code = end.code
    sys.stdin = listening
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "PARLAY_CACHE": str(cache), "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def shell(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that runs one command line after another: starting Python anew takes the longest
    part of each."""
    with subprocess.Popen(
        [sys.executable, "-c", SHELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=environment,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def run(shell: subprocess.Popen[str]) -> Run:
    def call(*arguments: object, input: str = "") -> subprocess.CompletedProcess[str]:
        assert shell.stdin is not None and shell.stdout is not None
        words = [str(argument) for argument in arguments]
        shell.stdin.write(json.dumps([words, input]) + "\n")
        shell.stdin.flush()
        return subprocess.CompletedProcess(words, *json.loads(shell.stdout.readline()))

    return call


@pytest.fixture
def generate(run: Run, target: Path) -> Run:
    """With the tiny target, a short answer and one thread."""

    def call(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        return run(*SMALL, "--model", target, *arguments, **options)

    return call


def alone(*arguments: object, encoding: str | None = "utf-8", **options: Any) -> Any:
    """The command as a process of its own; its text as it was written, line ends too."""
    done = subprocess.run(
        [PARLAY, *map(str, arguments)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )
    if encoding is not None:
        texts = done.stdout.decode(encoding), done.stderr.decode(encoding)
        return subprocess.CompletedProcess(done.args, done.returncode, *texts)
    return done


# -- answers -----------------------------------------------------------------------------------


def test_text_goes_to_standard_output_and_the_summary_to_standard_error(
    generate: Run, environment: dict[str, str], target: Path, drafter: Path
) -> None:
    small = ("-m", target, *SMALL, "--draft", drafter, "--window", "4")
    done = alone("run", PROMPT, *small, env=environment)
    assert done.returncode == 0
    whole = json.loads(generate(PROMPT, "--draft", drafter, "--json").stdout)
    assert done.stdout == whole["text"] + "\n"
    for words in (
        "24 (token or context limit)",
        "tok/s",
        "byte for byte",
        "acceptance length",
        "token acceptance",
        "sequence acceptance",
        "draft share",
        "verify",
        "overhead",
    ):
        assert words in done.stderr


def test_json_is_one_object_with_the_promised_fields(generate: Run, drafter: Path) -> None:
    done = generate(PROMPT, "--draft", drafter, "--json", "--window", 6)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "length"
    assert (answer["mode"], answer["exact"]) == ("exact", True)
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["usage"]["prompt_tokens"] > 20
    assert set(answer["timings"]) == {"prefill_ms", "decode_ms", "tokens_per_second"}
    speculation = answer["speculation"]
    assert set(speculation) == set(Counts().as_dict())
    assert speculation["generated"] == 24
    assert 0 < speculation["accepted"] < speculation["drafted"]
    assert list(speculation["proposers"]) == ["model"]


def test_the_same_seed_gives_the_same_text_with_any_drafter_and_another_seed_another(
    generate: Run, drafter: Path
) -> None:
    sampled = ("--temperature", 0.9, "--set", "answer.top_p=0.95", "--seed")

    def text(*arguments: object) -> str:
        done = generate(PROMPT, *arguments)
        assert done.returncode == 0
        return done.stdout

    first = text(*sampled, 7, "--draft", "none")
    assert first == text(*sampled, 7, "--draft", drafter)
    assert first == text(*sampled, 7, "--draft", "suffix", "--window", 2)
    assert first != text(*sampled, 8, "--draft", "none")


def test_a_trace_has_a_line_for_every_round(generate: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = generate("one two", "--draft", "suffix", "-n", "12", "--trace", str(path), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert sum(line["generated"] for line in lines) == answer["speculation"]["generated"] - 1
    assert all(line["reason"] and line["round_ms"] > 0 for line in lines)
    assert {"time_s", "proposer", "window", "expected_gain", "actual_gain"} <= lines[0].keys()


def test_a_trace_that_cannot_be_written(generate: Run, tmp_path: Path) -> None:
    done = generate("one", "--trace", str(tmp_path / "no" / "trace.jsonl"))
    assert done.returncode == 2
    assert "--trace" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_prompt_can_come_from_standard_input(generate: Run) -> None:
    assert generate("-", input=PROMPT).stdout == generate(PROMPT).stdout


@pytest.mark.parametrize(("token", "byte"), [(TAB, b"\t"), (RETURN, b"\r")])
def test_a_pipe_gets_every_byte_of_the_text(
    token: int, byte: bytes, environment: dict[str, str], target: Path
) -> None:
    bias = ("--set", f"answer.logit_bias={{{token}: 1000}}", *SMALL, "-n", 3)
    done = alone("run", "hi", "-m", target, *bias, env=environment, encoding=None)
    assert done.stdout == byte * 3 + b"\n"


def test_stop_strings_end_the_text_before_them(generate: Run) -> None:
    whole = generate(PROMPT, "--draft", "none").stdout.rstrip("\n")
    stop = whole[6:8]
    done = generate(PROMPT, "--stop", stop, "--json")
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "stop"
    assert answer["text"] == whole[: whole.index(stop)]


def test_a_locale_that_lacks_a_character_gets_a_mark_and_no_traceback(
    environment: dict[str, str], target: Path
) -> None:
    done = alone(
        *("run", PROMPT, "-m", target, *SMALL),
        env=environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "?" in done.stdout


def test_verbose_shows_llama_cpps_log_on_standard_error(
    environment: dict[str, str], target: Path
) -> None:
    few = ("-n", 1, "--threads", 1)
    done = alone("--verbose", "run", "a", "-m", target, *few, env=environment)
    assert done.returncode == 0
    assert "llama_model_loader" in done.stderr
    assert "llama_model_loader" not in done.stdout


# -- bad use and bad input ---------------------------------------------------------------------


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line a user's mistake is worth."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("parlay: ")
    return lines[0]


def test_a_missing_file(run: Run, tmp_path: Path) -> None:
    assert "does not exist" in complaint(run("hi", "-m", tmp_path / "missing.gguf"))


def test_a_file_that_is_not_gguf(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x40\0\0\0\0\0\0\0{}")
    assert "not a GGUF file" in complaint(run("hi", "-m", path))


@pytest.mark.parametrize("share", [0.01, 0.7])
def test_a_truncated_file(run: Run, target: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "part.gguf"
    whole = target.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    line = complaint(run("hi", "-m", path))
    assert "truncated" in line
    assert "download" in line


def test_a_truncated_drafter(generate: Run, drafter: Path, tmp_path: Path) -> None:
    path = tmp_path / "drafter.gguf"
    path.write_bytes(drafter.read_bytes()[:-1000])
    assert "drafter.gguf is truncated" in complaint(generate("hi", "--draft", path))


def test_a_drafter_with_another_vocabulary(generate: Run, tiny_other_vocab: Path) -> None:
    line = complaint(generate("hi", "--draft", tiny_other_vocab))
    assert "cannot draft for served.gguf: token 268" in line
    assert "--draft suffix" in line


def test_a_prompt_longer_than_the_context(generate: Run) -> None:
    line = complaint(generate("a b c d e f " * 100))
    assert "the context holds 256" in line
    assert "raise the context size" in line


def test_an_empty_prompt(generate: Run) -> None:
    assert "the prompt is empty" in complaint(generate("", "--set", "answer.raw=true"))


# Options and what the complaint must say of them.
REFUSED = {
    ("--nonsense",): "--nonsense",
    ("--context-size", "3"): "runtime.context_size",
    ("--set", "runtime.llama.device=CUDA9"): "no device 'CUDA9'; this build has",
    ("--set", "runtime.llama.flash-atn=on"): "did you mean flash-attn",
    ("--set", "answer.logit_bias={5: .nan}"): "logit_bias of token 5",
    ("--set", "answer.logit_bias={-5: 1}"): "logit_bias names token -5",
    ("--set", "answer.logit_bias={99999: 1}"): "logit_bias names token 99999",
    ("--set", "answer.nothing=1"): "nothing",
    ("--temperature", "-1"): "temperature",
    ("--set", "answer.top_p=2"): "top_p",
    ("--seed", str(1 << 64)): "seed",
    ("--set", "runtime.mode=sloppy"): "runtime.mode",
    ("--set", "runtime.llama.cache-type-k=q3"): "unknown cache type 'q3'",
    ("--set", "runtime.llama.spec-draft-type-v=q3"): "unknown cache type 'q3'",
    ("--set", "runtime.llama.flash-attn=maybe"): "flash-attn",
    ("--threads", "100000"): "100000 threads",
    ("--set", "runtime.llama.batch-size=2"): "batch of 2 rows is too small",
    ("--max-tokens", "none"): "max-tokens",
    ("--max-tokens", "0"): "max-tokens",
    ("--window", "-1"): "window",
    ("--context-size", "40000000000"): "give at most",
    ("--set", "runtime.llama.tensor-split=3,1"): "2 shares, there are 0 GPUs",
    ("--set", "runtime.llama.main-gpu=1"): "GPUs are counted from 0",
    ("--set", "runtime.llama.ubatch-size=4096"): "in batches of 512",
    ("--set", "runtime.llama.n-cpu-moe=1"): "has no experts",
    ("--set", "runtime.llama.override-tensor=exps=CPU"): "matches no tensor",
    ("--set", "runtime.llama.override-tensor=exps"): "is not PATTERN=DEVICE",
    ("--set", "model.lora=no-such-file.gguf"): "no-such-file.gguf",
    ("--set", "runtime.llama.rope-scale=0"): "greater than 0",
    ("--url", "http://127.0.0.1:9"): "leave it out with --url",
}


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_a_value_that_cannot_be_used(
    options: tuple[str, ...], run: Run, target: Path, drafter: Path
) -> None:
    done = run("hi", "--model", target, "--draft", drafter, *options)
    assert REFUSED[options] in complaint(done)


def test_a_prompt_that_is_no_text(environment: dict[str, str], target: Path) -> None:
    command: list[bytes] = [bytes(PARLAY), b"run", b"-m", bytes(target)]
    for prompt, given in ((b"\xff\xfe", None), (b"-", b"\xff\xfe")):
        done = subprocess.run(
            [*command, prompt],
            input=given,
            capture_output=True,
            env=environment | {"PYTHONIOENCODING": "utf-8:strict"},
            timeout=PATIENCE_S,
            check=False,
        )
        said = done.stderr.decode()
        assert done.returncode == 2
        assert "not valid text" in said
        assert said.count("\n") == 1


# -- who reads goes away -----------------------------------------------------------------------


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_a_closed_pipe_ends_the_command_quietly(
    extra: tuple[str, ...], environment: dict[str, str], target: Path
) -> None:
    n = 300 if extra else 3000
    command = [PARLAY, "run", PROMPT, "-m", target, "-n", n, "--threads", 1, *extra]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if extra:
            process.stdout.close()
        else:
            assert process.stdout.read(1)
            process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) in (0, 1)
    assert "Traceback" not in said
    assert "Broken pipe" not in said


# -- structured output ---------------------------------------------------------------------------


def test_an_answer_obeys_the_schema_in_a_file(generate: Run, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"],'
        ' "additionalProperties": false}'
    )
    # White space may come without end.
    bias = ", ".join(f"{3 + byte}: -100" for byte in b" \t\n\r")
    less = ("--set", f"answer.logit_bias={{{bias}}}")
    done = generate(PROMPT, "--json-schema", schema, "--max-tokens", 200, *less)
    assert done.returncode == 0
    assert json.loads(done.stdout)["n"] in (1, 22)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot read"), ("[1]", "one object"), ("{", "is not JSON")]
)
def test_a_schema_that_is_none_is_refused_in_one_line(
    generate: Run, tmp_path: Path, content: str | None, words: str
) -> None:
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_text(content)
    done = generate(PROMPT, "--json-schema", schema)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1

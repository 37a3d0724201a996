"""`parlay` as people run it: words in, two streams and an exit code out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import doors
from tests.serving import PATIENCE_S

PROMPT = "the cat sat on the mat and the cat sat on the mat and"


def test_text_goes_to_standard_output_and_all_else_to_standard_error(model: Path) -> None:
    done = doors.command(*doors.run_words(model, PROMPT))
    with doors.python(model) as parlay:
        text = parlay.generate(PROMPT, temperature=0, max_tokens=16).text
    assert done.returncode == 0
    assert done.stdout == f"{text}\n" and done.stderr


def test_the_prompt_can_come_through_a_pipe(model: Path) -> None:
    piped = doors.command(*doors.run_words(model, "-"), input=PROMPT)
    assert piped.stdout == doors.command(*doors.run_words(model, PROMPT)).stdout != ""


def test_json_is_one_object_with_the_numbers(model: Path) -> None:
    done = doors.command(*doors.run_words(model, PROMPT, "--json"))
    found = json.loads(done.stdout)
    assert found["usage"]["completion_tokens"] == 16 == found["speculation"]["generated"]
    assert found["exact"] is True and found["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "/nowhere/parlay.yaml"], "/nowhere/parlay.yaml"),
        (["no-such-verb"], "no-such-verb"),
        (["serve", "--no-such-option"], "--no-such-option"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_few_lines_with_exit_code_2(
    words: list[str], said: str
) -> None:
    done = doors.command(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 8


def test_a_file_that_is_no_model_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("not a model")
    done = doors.command(*doors.run_words(tmp_path / "model.gguf", PROMPT))
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert "model.gguf" in line


def test_a_reader_that_goes_away_ends_the_command_without_a_word(model: Path) -> None:
    words = [str(word) for word in doors.run_words(model, PROMPT, max_tokens=400)]
    with subprocess.Popen(
        [doors.PARLAY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        said = process.stderr.read()
        process.wait(PATIENCE_S)
    assert "Traceback" not in said


def test_every_verb_has_a_help_that_begins_with_what_people_type() -> None:
    top = doors.verb("--help")
    assert top.exit_code == 0
    for name in doors.VERBS:
        assert name in top.output
        told = doors.verb(name, "--help")
        assert told.exit_code == 0 and f"{name} " in told.output

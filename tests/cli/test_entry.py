"""Ctrl-C ends a command with 130 and without a word, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import PATIENCE_S

WORKS = """
import sys, time
from parlay.cli import entry
class Sleepy:
    def find_spec(self, name, *_):
        if name == "parlay.cli.main":
            print("loading", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Sleepy())
entry.main()
"""


MEASURES = """
import sys
from parlay.cli import entry
from parlay.engine.exact.choice import ExactChoice
choose = ExactChoice.choose
def told(*given):
    print("measuring", flush=True)
    while True:
        choose(*given)
        given[-1](0.5, "and on")
ExactChoice.choose = told
sys.argv = ["parlay", "run", "hi", "--model", sys.argv[1], "--draft", "suffix"]
entry.main()
"""


def interrupted(script: str, ready: str, *arguments: str) -> tuple[int, str]:
    """The script's end after Ctrl-C as soon as it has said that it is ready: status, complaint."""
    started = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert started.stdout is not None and started.stdout.readline() == f"{ready}\n"
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=PATIENCE_S)
        return started.returncode, said
    finally:
        started.kill()


def test_an_interrupt_while_parts_are_loaded_is_no_traceback() -> None:
    assert interrupted(WORKS, "loading") == (130, "")


def test_an_interrupt_while_a_model_is_measured_ends_in_good_order(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a segmentation fault: contexts were freed under passes that were timed."""
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    assert interrupted(MEASURES, "measuring", str(tiny_llama))[0] == 130

"""How a result looks in a terminal."""

from __future__ import annotations

import pytest

from parlay.cli import show_bench
from tests.results import made


def test_table_has_verdict_interval_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    show_bench.result(made.record(n_repeats=2))
    shown = capsys.readouterr()
    assert "core-12 against plain" in shown.out
    assert "faster" in shown.out
    assert "11/12" in shown.out
    assert "code-01 differs from token 8" in shown.out
    assert "A round cost" in shown.out
    assert "warning: 2 pair(s) a prompt" in shown.err


def test_what_is_implausible_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    record = made.record()
    bad = record.checks[0].model_copy(update={"ok": False})
    show_bench.result(record.model_copy(update={"checks": [bad]}))
    assert "implausible: complete" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (59.6, "1:00 min"), (125, "2:05 min")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert show_bench.duration(seconds) == text

"""What a round takes of Python, counted: the same on every machine, where time is not."""

from __future__ import annotations

import time

import pytest

from benchmarks.measurements.round_cost import Clock, Rows, Script, begin
from parlay.runtime import scheduler as scheduling
from tests.calls import python_calls

N_ROUNDS = 10
SETTLED = 100  # tokens of an answer after which windows are as wide as they may be


@pytest.fixture(autouse=True)
def only_passes_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the controller learns of time is the same on every machine, too."""
    monkeypatch.setattr(Clock, "__call__", lambda clock: clock._claimed)
    monkeypatch.setattr(scheduling, "perf_counter", time.perf_counter)  # to be put back


def calls(kind: str, window: int) -> float:
    """Functions of Python a round, but for the models' scripts; every draft holds."""
    script = Script(
        "again", "gpu-14b-f16", 900, wait=False, window=window, n_vocab=2048, draft_ms=0.1
    )
    begun = begin(kind, "faithful", 1, script)
    (answer,), scheduler = begun.answers, begun.scheduler
    while answer.n_generated < SETTLED:
        scheduler.step()

    def rounds() -> None:
        for _ in range(N_ROUNDS):
            scheduler.step()

    _, n_calls = python_calls(rounds, outside=Rows.decode)
    assert [r.n_drafted for r in answer.rounds][-N_ROUNDS + 1 :] == [window] * (N_ROUNDS - 1)
    return n_calls / N_ROUNDS


def test_a_round_without_a_draft_takes_few_calls_of_python() -> None:
    assert calls("plain", 0) <= 110


@pytest.mark.parametrize(("kind", "most", "most_each"), [("model", 460, 14), ("suffix", 400, 6)])
def test_a_round_with_a_draft_takes_a_bounded_number_of_calls_and_few_for_each_token(
    kind: str, most: int, most_each: int
) -> None:
    few, many = calls(kind, 3), calls(kind, 15)
    assert few <= most
    assert (many - few) / 12 <= most_each

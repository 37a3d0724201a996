"""What a round takes of Python, counted: the same on every machine, where time is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.measurements.round_cost import Begun, Clock, Rows, Script, begin
from parlay.control.profit import ProfitController
from parlay.engine import scheduler as scheduling
from parlay.proposers.occurrences import Occurrences
from tests.calls import python_calls

N_ROUNDS = 10
SETTLED = 100  # tokens of an answer after which windows are as wide as they may be


@pytest.fixture(autouse=True)
def only_passes_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the controller learns of time is the same on every machine, too."""
    monkeypatch.setattr(Clock, "__call__", lambda clock: clock._claimed)
    monkeypatch.setattr(scheduling, "perf_counter", time.perf_counter)  # to be put back


def settled(kind: str, window: int) -> Begun:
    """An answer whose drafts hold, in windows as wide as they may be."""
    script = Script(
        "again", "gpu-14b-f16", 900, wait=False, window=window, n_vocab=2048, draft_ms=0.1
    )
    begun = begin(kind, "faithful", 1, script)
    while begun.answers[0].n_generated < SETTLED:
        begun.scheduler.step()
    return begun


def calls(kind: str, window: int) -> float:
    """Functions of Python a round, but for the models' scripts; every draft holds."""
    begun = settled(kind, window)
    (answer,), scheduler = begun.answers, begun.scheduler

    def rounds() -> None:
        for _ in range(N_ROUNDS):
            scheduler.step()

    _, n_calls = python_calls(rounds, Rows.decode, Rows.start, Rows.fetch)
    assert [r.n_drafted for r in answer.rounds][-N_ROUNDS + 1 :] == [window] * (N_ROUNDS - 1)
    return n_calls / N_ROUNDS


def test_a_round_without_a_draft_takes_few_calls_of_python() -> None:
    assert calls("plain", 0) <= 110


@pytest.mark.parametrize(("kind", "most", "most_each"), [("model", 425, 8), ("suffix", 160, 3)])
def test_a_round_with_a_draft_takes_a_bounded_number_of_calls_and_few_for_each_token(
    kind: str, most: int, most_each: int
) -> None:
    few, many = calls(kind, 3), calls(kind, 15)
    assert few <= most
    assert (many - few) / 12 <= most_each


def test_a_draft_is_indexed_while_a_device_verifies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, feed = settled("suffix", 15), Occurrences.feed
    fed: list[int] = []

    def counted(self: Occurrences, tokens: Sequence[int]) -> None:
        fed.append(len(tokens))
        feed(self, tokens)

    monkeypatch.setattr(Occurrences, "feed", counted)
    for _ in range(N_ROUNDS):
        begun.scheduler.step()
    assert fed == [1, 15] * N_ROUNDS  # the target's own token before a pass, the draft beside it


def test_a_bet_that_held_is_made_again_and_learned_from_while_a_device_computes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, told = settled("suffix", 15), list[str]()
    learn, choose, decode = ProfitController.observe, ProfitController.choose, Rows._rows

    def written(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            told.append(name)
            return function(*given)

        return noted

    monkeypatch.setattr(ProfitController, "observe", written("learn", learn))
    monkeypatch.setattr(ProfitController, "choose", written("weigh", choose))
    monkeypatch.setattr(Rows, "_rows", written("pass", decode))
    for _ in range(3 * N_ROUNDS):
        begun.scheduler.step()
    rounds = " ".join(told)
    assert "pass learn pass learn pass learn" in rounds
    assert "learn weigh pass" in rounds  # now and then it is weighed, by what was learned
    assert 3 * N_ROUNDS / 10 <= rounds.count("weigh") <= 3 * N_ROUNDS / 7

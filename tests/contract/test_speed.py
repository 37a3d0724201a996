"""A round costs what it cost: calls are counted, and its time is held against a loop beside it.

Knows scripted models, which take no time; the bounds are twice what was counted and measured when
they were written, so that no noise of a machine turns them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import numpy as np
import pytest

from tests import doors
from tests.calls import python_calls
from tests.scripted import ScriptedModel, ScriptedProposer

pytestmark = pytest.mark.quick

N_VOCAB = 32
ROWS = np.random.default_rng(1).standard_normal((N_VOCAB, N_VOCAB)).astype(np.float32)
CALLS = ("start", "fetch", "truncate", "mark", "save", "restore", "clear", "shift")
N_ROUNDS = 200


def logits(history: Sequence[int]) -> Any:
    """A token follows another always: nothing to compute."""
    return ROWS[history[-1]]


class Counted(ScriptedModel):
    """Counts what the loop has the library do."""

    def __init__(self) -> None:
        super().__init__(logits, N_VOCAB, 1 << 20)
        self.calls = Counter[str]()
        for name in CALLS:
            setattr(self, name, self._counted(name, getattr(self, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return real(*given, **named)

        return call


def rounds(target: ScriptedModel, n_answers: int, window: int) -> doors.Rounds:
    """Under way for a while."""
    proposers = {"scripted": ScriptedProposer(logits)} if window else {}
    made = doors.Rounds(n_answers, target=target, window=window or 1, proposers=proposers)
    made.step(20)
    return made


@pytest.mark.parametrize(("n_answers", "window"), [(1, 0), (1, 4), (4, 0), (4, 4)])
def test_a_round_takes_few_calls_of_the_library(n_answers: int, window: int) -> None:
    target = Counted()
    made = rounds(target, n_answers, window)
    target.calls.clear()
    made.step(N_ROUNDS)
    assert len(target.shapes[-N_ROUNDS:]) == target.calls["fetch"] == N_ROUNDS  # one for everybody
    assert target.calls.total() / N_ROUNDS <= 4, target.calls


@pytest.mark.parametrize(("n_answers", "window", "most"), [(1, 0, 470), (1, 4, 575), (4, 4, 1400)])
def test_a_round_takes_few_calls_of_python(n_answers: int, window: int, most: int) -> None:
    made = rounds(ScriptedModel(logits, N_VOCAB, 1 << 20), n_answers, window)
    _, n_calls = python_calls(lambda: made.step(N_ROUNDS), ScriptedModel.decode)
    assert n_calls / N_ROUNDS <= most


def reference(n: int) -> int:
    """What a round is held against: calls, attributes, lists and dictionaries of Python."""
    kept: dict[int, list[int]] = {}
    for i in range(n):
        row = kept.setdefault(i % 64, [])
        row.append(i)
        if len(row) > 8:
            del row[:4]
    return sum(len(row) for row in kept.values())


def seconds(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


@pytest.mark.parametrize(("n_answers", "window", "most"), [(1, 0, 43), (1, 4, 57), (4, 4, 136)])
def test_a_rounds_time_is_a_bounded_multiple_of_a_plain_loops(
    n_answers: int, window: int, most: int
) -> None:
    made = rounds(ScriptedModel(logits, N_VOCAB, 1 << 20), n_answers, window)
    times = [
        (seconds(lambda: made.step(N_ROUNDS)), seconds(lambda: reference(50 * N_ROUNDS)))
        for _ in range(7)
    ]
    own, beside = (min(column) for column in zip(*times, strict=True))
    assert own / beside <= most

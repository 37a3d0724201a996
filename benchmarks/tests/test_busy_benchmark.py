"""The benchmark of a busy machine: a short run of it, with nobody else at work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.measurements import busy
from benchmarks.measurements.busy import FOLLOWING, Slice, Slices, measure
from parlay import Parlay
from parlay.control.crew import Crew
from parlay.control.crew_choice import CrewChoice


@pytest.fixture(scope="module")
def parlay(tiny_llama: Path) -> Iterator[Parlay]:
    with Parlay(tiny_llama, draft="none", context_size=1024) as opened:
        yield opened


def test_every_setting_is_compared_and_the_first_text_told_apart(parlay: Parlay) -> None:
    (found,) = measure(Slices(parlay, "none", 3, 60.0), [0], 1)
    assert found["busy_cores"] == 0
    for figure in ("rate", "decoding"):
        assert found[figure]["means"].keys() == found[figure]["slices"].keys()
        assert FOLLOWING in found[figure]["means"]
        assert found[figure]["of_best"]["ratio"] > 0
        assert found["first_text"][figure] > 0
        assert all(len(each) == 1 for each in found[figure]["slices"].values())


class Endless:
    """A stream that never ends by itself; a piece is a token."""

    def __init__(self) -> None:
        self.n_generated = 0
        self.answer = SimpleNamespace(speculation=self)

    def __iter__(self) -> Iterator[None]:
        while True:
            self.n_generated += 1
            yield


def test_a_slice_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(busy, "perf_counter", lambda: float(next(clock)))
    slow = SimpleNamespace(stream=lambda *_, **__: Endless(), engine=SimpleNamespace(crews=None))
    slow.engine.crews = SimpleNamespace(choice=None)
    made = Slices(cast(Parlay, slow), "none", 10**6, 10.0).make(CrewChoice([Crew(1)]), 0)
    assert made.n_tokens < 12
    assert made.seconds < 15


def test_tokens_after_the_first_are_told_apart_from_reading_the_prompt() -> None:
    made = Slice(11, 1.0, 2.0)
    assert (made.rate, made.decoding) == (5.5, 10.0)
    assert Slice(1, 2.0, 2.0).decoding == 0.0

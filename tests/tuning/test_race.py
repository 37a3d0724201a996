"""Stopping early never picks a loser: races simulated with the statistics of the bench."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from parlay.tuning.race import Race, widening

PROMPTS = [f"p{i}" for i in range(12)]
BLOCK = 3
N_RACES = 30  # of 200, one picked `c`, which is neither faster nor slower, and none missed the best


def run(truth: Mapping[str, float], seed: int, free: frozenset[str] = frozenset()) -> Race:
    """A race as `parlay tune` runs it: blocks of prompts, a look after each, losers go home.

    Prompts differ by 10 % (one standard deviation), runs of one prompt by 6 %, and one run in
    twenty stalls.
    """
    rng = np.random.default_rng(seed)
    kinds = {name: dict(zip(PROMPTS, rng.normal(0, 0.10, 12), strict=True)) for name in truth}
    race = Race(tuple(truth), free)
    for heat in range(12):
        for name in race.racing:
            for prompt in PROMPTS[(heat * BLOCK) % 12 :][:BLOCK]:
                noise = rng.normal(0, 0.06) - (0.5 if rng.random() < 0.05 else 0.0)
                race.add(name, prompt, math.log(truth[name]) + kinds[name][prompt] + noise)
        race.stop_losers()
        if race.decided:
            break
    return race


def test_where_nothing_pays_nothing_is_picked() -> None:
    truth = {"a": 0.97, "b": 0.9, "c": 1.0, "d": 0.7, "e": 0.98, "f": 0.5}
    picked = [run(truth, seed).winner for seed in range(N_RACES)]
    assert sum(name is not None for name in picked) <= 1  # and never one far behind
    assert not {"b", "d", "f"} & set(picked)


def test_a_clear_winner_is_picked_and_never_a_loser() -> None:
    truth = {"slow": 0.8, "same": 1.0, "good": 1.25, "best": 1.6, "near": 1.55}
    picked = [run(truth, seed).winner for seed in range(N_RACES)]
    assert not {"slow", "same"} & set(picked)
    assert sum(name in ("best", "near") for name in picked) >= N_RACES - 1


def test_losers_go_home_long_before_the_end() -> None:
    truth = {"slow": 0.6, "best": 1.6}
    counts = [sum(map(len, run(truth, seed).pairs["slow"].values())) for seed in range(20)]
    assert max(counts) <= 15 and min(counts) >= 4  # of 36


def test_nobody_goes_home_for_a_single_prompt() -> None:
    race = Race(("a",))
    for _ in range(10):
        race.add("a", "p0", -2.0)
    assert race.stop_losers() == []


def test_memory_must_be_worth_it() -> None:
    rng = np.random.default_rng(1)
    race = Race(("suffix", "model"), frozenset({"suffix"}))
    for prompt in PROMPTS:
        own = rng.normal(0, 0.01)
        race.add("suffix", prompt, math.log(1.30) + own)
        race.add("model", prompt, math.log(1.31) + own)
    assert race.winner == "suffix"


@pytest.mark.parametrize(("n", "wider"), [(1, 1.0), (10, 1.43), (60, 1.71)])
def test_more_looks_need_wider_bounds(n: int, wider: float) -> None:
    assert widening(n) == pytest.approx(wider, abs=0.01)

"""Warnings: what is injected is found, what is calm is left alone."""

from __future__ import annotations

import math
import random

from parlay.bench.compare import compare, warnings_of
from parlay.bench.record import ArmInfo, Readings, Sample
from parlay.reading.speculation import Speculation
from tests.bench.scripted import PLAIN, SUFFIX, sample

ARMS = {"plain": PLAIN, "suffix": SUFFIX}
DRAFTING = Speculation(drafted=50, accepted=25)


def calm(spread: float = 0.02, n_repeats: int = 5, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    found: list[Sample] = []
    for r in range(n_repeats):
        for i in range(12):
            for arm in ("plain", "suffix"):
                speed = (80 + 3 * i) * rng.lognormvariate(0, spread)
                told = DRAFTING if arm == "suffix" else None
                found.append(sample(f"p{i}", arm, r, len(found), speed=speed, speculation=told))
    return found


def slowed(s: Sample, factor: float) -> Sample:
    return s.model_copy(update={"decode_s": s.decode_s * factor})


def kinds(samples: list[Sample], arms: dict[str, ArmInfo] = ARMS) -> set[str]:
    return {w.kind for w in warnings_of(samples, arms, n_cores=2)}


def test_calm_runs_give_no_warning() -> None:
    false_alarms = sum(bool(kinds(calm(seed=seed))) for seed in range(50))
    assert false_alarms <= 1


def test_a_stalled_run_is_found_and_changes_no_verdict() -> None:
    samples = calm()
    samples[50] = slowed(samples[50], 15)
    found = warnings_of(samples, ARMS)
    assert [w.kind for w in found] == ["stall"]
    assert f"{samples[50].prompt} repeat {samples[50].repeat}" in found[0].text
    categories = {f"p{i}": "code" for i in range(12)}
    assert compare(samples, categories, "plain", "suffix").verdict == "no difference"


def test_drift_is_found_in_either_direction() -> None:
    for sign in (1, -1):
        samples = [slowed(s, math.exp(sign * 0.3 * s.position / 120)) for s in calm()]
        found = [w for w in warnings_of(samples, ARMS) if w.kind == "drift"]
        assert len(found) == 2  # both arms feel it
        assert ("slower" if sign > 0 else "faster") in found[0].text


def test_drift_that_hits_both_arms_makes_no_speed_up() -> None:
    samples = [slowed(s, math.exp(0.5 * s.position / 120)) for s in calm()]
    categories = {f"p{i}": "code" for i in range(12)}
    found = compare(samples, categories, "plain", "suffix")
    assert found.verdict == "no difference"


def test_noise_is_called_unstable() -> None:
    assert "unstable" in kinds(calm(spread=0.3))


def test_few_pairs_are_told() -> None:
    assert kinds(calm(n_repeats=2)) == {"few pairs"}


def test_failures_are_counted() -> None:
    samples = calm()
    samples[7] = samples[7].model_copy(update={"outcome": "error", "error": "gone"})
    found = next(w for w in warnings_of(samples, ARMS) if w.kind == "failures")
    assert "1 of 120" in found.text


def test_a_method_that_drafts_nothing_is_told() -> None:
    nothing = Speculation(drafted=0, accepted=0)
    samples = [s.model_copy(update={"speculation": nothing}) for s in calm()]
    assert kinds(samples) == {"no drafts"}


def test_a_method_that_remembers_earlier_answers_is_told() -> None:
    better = Speculation(drafted=90, accepted=85)
    samples = [
        s.model_copy(update={"speculation": better}) if s.repeat > 0 and s.arm == "suffix" else s
        for s in calm()
    ]
    assert kinds(samples) == {"remembers"}


def test_counted_chunks_are_told() -> None:
    samples = [s.model_copy(update={"counted": "chunks"}) for s in calm()]
    assert kinds(samples) == {"token count"}


def test_different_builds_are_told() -> None:
    arms = {
        "plain": PLAIN.model_copy(update={"build": "a"}),
        "suffix": SUFFIX.model_copy(update={"build": "b"}),
    }
    assert kinds(calm(), arms) == {"builds"}


def test_a_busy_machine_is_told() -> None:
    samples = [s.model_copy(update={"readings": Readings(load_1min=9.0)}) for s in calm()]
    assert kinds(samples) == {"load"}

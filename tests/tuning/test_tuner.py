"""The tuner on scripted subjects: ends in time, stops losers, picks the fastest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlay.bench.record import ArmInfo
from parlay.bench.subject import Subject, SubjectError
from parlay.bench.suite import Prompt, Suite, suite_hash
from parlay.deployment import Deployment, load_deployment
from parlay.tuning.candidates import PLAIN, Candidate, Sitting, sittings
from parlay.tuning.outcome import Outcome, outcome, write_deployment
from parlay.tuning.prompts import Workload
from parlay.tuning.tuner import Tuner
from tests.bench.scripted import Clock, Scripted

SMALL = Candidate("small", Path("/models/small.gguf"), "model", 30_000_000)
LARGE = Candidate("large", Path("/models/large.gguf"), "model", 900_000_000)
BROKEN = Candidate("broken", Path("/models/broken.gguf"), "model", 1_000_000)
Speeds = Mapping[str, float | Callable[[str], float]]


def workload(n: int = 12, every: int = 2) -> Workload:
    prompts = tuple(
        Prompt(f"p{i}", "chat" if i % every else "code", ({"role": "user", "content": "?"},))
        for i in range(n)
    )
    suite = Suite("own", None, suite_hash(prompts), prompts)
    return Workload(suite)


def tuned(
    folder: Path, speeds: Speeds, minutes: float = 60.0, work: Workload | None = None
) -> tuple[Outcome, Tuner, Clock]:
    clock, work = Clock(), work or workload()
    rng = random.Random(0)

    @contextmanager
    def open_(sitting: Sitting) -> Iterator[dict[str, Subject]]:
        clock.now += 5
        if sitting.drafter == BROKEN:
            raise SubjectError("broken.gguf is damaged; download it again")
        yield {name: arm(name) for name in (PLAIN, *(way.label for way in sitting.ways))}

    def arm(name: str) -> Scripted:
        speed = speeds.get(name, 1.0)

        def at(prompt: Prompt, _n: int) -> float:
            ratio = speed(prompt.category) if callable(speed) else speed
            return 50 * ratio * rng.gauss(1, 0.02)

        info = ArmInfo(name=name, kind="parlay", method="x", speculates=name != PLAIN)
        return Scripted(info, clock, at)

    found = [SMALL, LARGE, BROKEN]
    tuner = Tuner(work, sittings(found), open_, minutes * 60, folder, clock=clock, began=clock.now)
    tuner.run()
    return outcome(tuner, []), tuner, clock


def test_the_fastest_wins_and_the_broken_one_says_why(tmp_path: Path) -> None:
    speeds = {"suffix": 1.1, "small": 1.5, "suffix+small": 1.7, "large": 0.6}
    found, _, _ = tuned(tmp_path, speeds)
    assert found.winner is not None and found.winner.label == "suffix+small"
    rows = {row.label: row for row in found.rows}
    assert rows["suffix+small"].state == "wins"
    assert rows["large"].state == "stopped early"
    assert rows["large"].n_pairs < rows["suffix+small"].n_pairs
    assert "damaged" in rows["broken"].state
    assert rows["suffix+small"].n_identical == rows["suffix+small"].n_compared > 0


def test_it_ends_within_its_time(tmp_path: Path) -> None:
    found, tuner, _ = tuned(tmp_path, {"small": 1.02, "large": 1.03}, minutes=3)
    assert tuner.spent_s <= 180
    assert found.n_tokens < 128  # shorter answers, so that everybody can be looked at
    assert {r.label for r in found.rows if r.ratio} >= {"suffix", "small", "large"}


def test_a_slow_machine_races_the_first_ones_and_says_who_was_left_out(tmp_path: Path) -> None:
    drafters = ("small", "suffix+small", "large", "suffix+large")
    speeds = dict.fromkeys((PLAIN, "suffix", *drafters), 0.02)
    found, tuner, _ = tuned(tmp_path, speeds, minutes=6)
    assert tuner.spent_s <= 6 * 60
    rows = {row.label: row for row in found.rows}
    assert rows["suffix"].ratio is not None and "time was over" in rows["large"].state


def test_a_machine_that_slows_down_cannot_make_it_late(tmp_path: Path) -> None:
    n_asked = 0

    def slower(_category: str) -> float:
        nonlocal n_asked
        n_asked += 1
        return 1.0 if n_asked < 4 else 0.001

    _, tuner, _ = tuned(tmp_path, {PLAIN: slower}, minutes=2)
    longest = 127 / (50 * 0.001)  # the scripted subject knows no limit: one answer may be late
    assert tuner.spent_s <= 120 + longest + 10


def test_where_nothing_pays_the_deployment_is_plain(tmp_path: Path) -> None:
    speeds = dict.fromkeys(("suffix", "small", "suffix+small", "large"), 0.8)
    found, _, _ = tuned(tmp_path, speeds)
    assert found.winner is None
    assert written(tmp_path, found).model.drafter == "none"


def test_the_deployment_names_the_winner_and_can_be_read(tmp_path: Path) -> None:
    found, _, _ = tuned(tmp_path, {"small": 1.6, "suffix+small": 1.4})
    made = written(tmp_path, found)
    assert made.model.target == "org/repo:Q4_K_M" and made.model.drafter == "small"
    assert "1.6" in (tmp_path / "deploy.yaml").read_text()


@pytest.mark.parametrize("n", [1, 4, 24])
def test_any_number_of_prompts_will_do(tmp_path: Path, n: int) -> None:
    found, _, _ = tuned(tmp_path, {"small": 2.0}, work=workload(n))
    assert found.n_prompts == n
    assert all(row.ratio for row in found.rows if row.label == "small")


def written(folder: Path, found: Outcome) -> Deployment:
    path = folder / "deploy.yaml"
    write_deployment(path, "org/repo:Q4_K_M", "own", found)
    return load_deployment(path, environ={})

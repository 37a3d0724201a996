"""The runner: warm-up, order, failures kept, time limits, budget, resume after interruption."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from parlay.bench.run import Run, Runner, RunOptions, SampleFile, header
from parlay.bench.subject import SubjectError
from parlay.bench.suite import Prompt
from parlay.errors import BadRequest
from tests.bench.scripted import PLAIN, SUFFIX, Clock, Scripted, noisy, small_suite

SUITE = small_suite()


class Stop(Exception):
    """As if somebody had pulled the plug."""


def make(
    folder: Path, clock: Clock, options: RunOptions | None = None, **script: object
) -> tuple[Runner, dict[str, Scripted]]:
    options = options or RunOptions(n_repeats=5, seed=1)
    arms = {
        "plain": Scripted(PLAIN, clock, noisy(100, 0.02, 1)),
        "suffix": Scripted(SUFFIX, clock, noisy(150, 0.02, 2), accepted_share=0.4, **script),  # type: ignore[arg-type]
    }
    file = SampleFile(folder / "samples.jsonl", header(SUITE, arms, options))
    return Runner(SUITE, arms, options, file, clock=clock), arms


def run(folder: Path, options: RunOptions | None = None, **script: object) -> Run:
    return make(folder, Clock(), options, **script)[0].run()


def test_every_pair_is_run_once_after_a_warm_up(tmp_path: Path) -> None:
    runner, arms = make(tmp_path, Clock())
    found = runner.run()
    assert len(found.samples) == 6 * 5 * 2
    assert len({(s.repeat, s.prompt, s.arm) for s in found.samples}) == 60
    assert all(arm.warmed == 1 for arm in arms.values())
    assert (found.n_sittings, found.stopped_early) == (1, False)


def test_times_and_texts_are_those_of_the_replies(tmp_path: Path) -> None:
    runner, _ = make(tmp_path, Clock())
    found = runner.run()
    one = next(s for s in found.samples if s.arm == "suffix")
    assert one.n_tokens == 40
    assert one.wall_s == pytest.approx(0.2 + one.decode_s)
    assert runner.file.texts[one.repeat, one.prompt, "suffix"] == f"answer to {one.prompt}"


def test_failures_are_kept_and_the_run_goes_on(tmp_path: Path) -> None:
    found = run(tmp_path, fails=lambda n: n in (4, 9))
    bad = [s for s in found.samples if s.outcome == "error"]
    assert len(bad) == 2
    assert len(found.samples) == 60
    assert all("scripted failure" in (s.error or "") for s in bad)


def test_a_subject_that_never_answers_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="suffix has not answered once: scripted failure"):
        run(tmp_path, fails=lambda n: True)


def test_interrupted_run_resumes_and_redoes_the_pair_that_was_cut(tmp_path: Path) -> None:
    clock = Clock()

    def pull_the_plug(n: int) -> bool:
        if n == 20:
            raise Stop
        return False

    runner, _ = make(tmp_path, clock, fails=pull_the_plug)
    with pytest.raises(Stop):
        runner.run()
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    kept = [line["sample"] for line in lines if "sample" in line]
    halves = [k for k, n in Counter((s["repeat"], s["prompt"]) for s in kept).items() if n == 1]
    assert len(halves) == 1  # the plug was pulled between the two sides of a pair
    again, arms = make(tmp_path, clock)
    found = again.run()
    assert len(found.samples) == 60
    assert found.n_sittings == 2
    assert sum(arm.n_asked for arm in arms.values()) == 60 - len(kept) + 1
    in_order = [s.at_s for s in found.samples]
    assert in_order == sorted(in_order)


def test_finished_run_asks_nobody_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    runner, arms = make(tmp_path, Clock())
    assert runner.run().samples == first.samples
    assert all(arm.n_asked == 0 and arm.warmed == 0 for arm in arms.values())


def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path) -> None:
    run(tmp_path, RunOptions(n_repeats=1, seed=1))
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    found = run(tmp_path, RunOptions(n_repeats=1, seed=1))
    assert len(found.samples) == 12
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    run(tmp_path, RunOptions(n_repeats=1, seed=1))
    with pytest.raises(BadRequest, match="belongs to another run"):
        run(tmp_path, RunOptions(n_repeats=1, seed=2))


def test_damaged_line_is_named(tmp_path: Path) -> None:
    run(tmp_path, RunOptions(n_repeats=1, seed=1))
    path = tmp_path / "samples.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = '{"sample": {"prompt": 3}, "text": ""}'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRequest, match="line 4 is damaged"):
        run(tmp_path, RunOptions(n_repeats=1, seed=1))


def test_budget_ends_the_run_between_repeats(tmp_path: Path) -> None:
    found = run(tmp_path, RunOptions(n_repeats=50, seed=1, budget_s=20.0))
    assert found.stopped_early
    n = len({s.repeat for s in found.samples})
    assert 1 <= n < 50
    assert len(found.samples) == n * 12
    assert found.duration_s < 22


def test_progress_tells_the_time_left(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float | None]] = []
    runner, _ = make(tmp_path, Clock())
    runner.progress = lambda done, total, left_s, what: seen.append((done, total, left_s))
    runner.run()
    assert seen[-1] == (60, 60, 0.0)
    middle = next(row for row in seen if row[0] == 30)
    assert middle[2] is not None and 5 < middle[2] < 30


def test_the_suite_sets_the_length_and_the_option_shortens_it(tmp_path: Path) -> None:
    found = run(tmp_path, RunOptions(n_repeats=1, seed=1, max_tokens=8))
    assert {s.n_tokens for s in found.samples} == {8}
    longer = run(tmp_path / "b", RunOptions(n_repeats=1, seed=1, max_tokens=999))
    assert {s.n_tokens for s in longer.samples} == {40}


@pytest.mark.parametrize("bad", [{"n_repeats": 0}, {"time_limit_s": 0.0}])
def test_impossible_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        RunOptions(**bad)  # type: ignore[arg-type]


def test_prompts_are_asked_by_both_arms_in_mirrored_order(tmp_path: Path) -> None:
    runner, arms = make(tmp_path, Clock())
    runner.run()
    assert sorted(arms["plain"].asked) == sorted(arms["suffix"].asked)
    assert isinstance(SUITE.prompts[0], Prompt)

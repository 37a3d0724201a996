"""A proof that was cut goes on from its file: no answer is lost, and no other question's is taken.

Needs no model: only what is kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.proofs.exact_classes import Outcome, Results, Row

ASKED = {"model": "some.gguf", "prompts": 2}
ROW = Row(1, "controller", "cold", "greedy", {})


def _cut_run(path: Path) -> Results:
    results = Results(path, ASKED)
    results.rows[ROW.name] = ROW
    results.outcomes[ROW.name] = [Outcome(True, True, 3, 2, 0.5), Outcome(False, True, 0, 0, 0.5)]
    results.plain["1, greedy, cold"] = ["a text"]
    results.save(slots_1={"class": "3-4"})
    return results


def test_a_run_that_was_cut_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    before = _cut_run(path)
    after = Results.of(path, ASKED)
    assert after.outcomes == before.outcomes
    assert after.plain == before.plain
    assert after.class_of(1) == "3-4"
    assert after.wrong == 1


def test_answers_to_another_question_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    _cut_run(path)
    with pytest.raises(SystemExit, match="name another file"):
        Results.of(path, {**ASKED, "prompts": 20})

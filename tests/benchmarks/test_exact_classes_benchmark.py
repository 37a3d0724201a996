"""The proof's cases are spread evenly, and one that was cut goes on from its file.

Needs no model: only what is planned, and what is kept.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.proofs.exact_classes import Outcome, Results, lines
from benchmarks.shared.text_cases import TURNS, WAYS, chains, way_of

ASKED = {"model": "some.gguf", "prompts": 2}
RIGHT = Outcome("controller", "alone", "cold", "greedy", True, True, 3, 2)
WRONG = Outcome("controller", "alone", "cold", "greedy", False, True, 0, 0)
WINDOWS = [("controller", "w1", "suffix", "none"), tuple("abcdef"), tuple("abcdefghij")]


@pytest.mark.parametrize("arms", WINDOWS)
def test_every_prompt_meets_every_arm_and_every_company_and_turn(arms: tuple[str, ...]) -> None:
    met = Counter(
        each
        for case in chain.from_iterable(chains(20, arms, 4, 0))
        for prompt in case.prompts
        for each in ((prompt, case.arm), (prompt, case.company), (prompt, case.turn))
    )
    assert len(met) == 20 * (len(arms) + 2 + len(TURNS))


@pytest.mark.parametrize("arms", WINDOWS)
def test_two_rounds_hold_every_kind_of_case(arms: tuple[str, ...]) -> None:
    kinds = {
        (case.arm, case.company, case.turn, way_of(prompt, round_))
        for round_ in range(2)
        for case in chain.from_iterable(chains(20, arms, 4, round_))
        for prompt in case.prompts
    }
    assert len(kinds) == len(arms) * 2 * len(TURNS) * len(WAYS)


def test_a_chain_is_of_the_same_prompts_and_begins_cold() -> None:
    for own in chains(6, ("a", "b"), 4, 0):
        assert [case.turn for case in own] == list(TURNS)
        assert len({(case.prompts, case.together) for case in own}) == 1


def _cut_run(path: Path) -> Results:
    results = Results(path, ASKED)
    results.outcomes = {"one": RIGHT, "other": WRONG}
    results.plain["0, greedy, cold"] = "a text"
    results.save(**{"class": "3-4"})
    return results


def test_a_run_that_was_cut_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    before = _cut_run(path)
    after = Results.of(path, ASKED)
    assert after.outcomes == before.outcomes
    assert after.plain == before.plain
    assert after.facts == {"class": "3-4"}
    assert after.wrong == 1


def test_answers_to_another_question_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "exact.json"
    _cut_run(path)
    with pytest.raises(SystemExit, match="name another file"):
        Results.of(path, {**ASKED, "prompts": 20})


def test_texts_are_counted_by_kind() -> None:
    (line,) = lines([RIGHT, WRONG])
    assert line.startswith("controller, alone, cold, greedy: 1 equal of 2, 2 say exact")

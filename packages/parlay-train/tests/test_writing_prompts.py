"""Prompts: seeds can all be filled, none is given twice, and the benchmark's are not among them."""

from __future__ import annotations

import random

import pytest

from parlay.bench.suite import load_suite
from parlay_train.found import FoundText, found_texts
from parlay_train.writing_prompts import Shares, WritingPrompts, shipped_seeds


def suite_texts() -> list[str]:
    prompts = (*load_suite("core-12").prompts, *load_suite("core-60").prompts)
    return [str(m["content"]) for p in prompts for m in p.messages if m.get("content")]


def words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()


def runs_of_eight(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return set(zip(*(found[i:] for i in range(8)), strict=False))


def test_the_suites_prompts_are_neither_in_the_seeds_nor_in_the_found_texts() -> None:
    """No run of eight words of a suite occurs there: those prompts are the test."""
    seeds, found = shipped_seeds(), found_texts()
    fillers = [word for group in seeds.fillers.values() for word in group]
    runs = {run for text in suite_texts() for run in runs_of_eight(text)}
    assert len(runs) > 1000
    tasks = (*seeds.tasks, *seeds.over_prose, *seeds.over_code)
    for text in (*tasks, *fillers, *found.prose, *found.code):
        assert not runs & runs_of_eight(text), text


def test_no_drawn_prompt_is_a_suites() -> None:
    rng = random.Random(0)
    drawn = {shipped_seeds().draw(rng).strip().lower() for _ in range(5000)}
    assert len(drawn) > 2000
    assert not drawn & {text.strip().lower() for text in suite_texts()}


def test_every_task_can_be_filled() -> None:
    seeds, rng = shipped_seeds(), random.Random(0)
    for task in (*seeds.tasks, *seeds.over_prose, *seeds.over_code):
        assert "{" not in seeds._fill(task, rng)
    for task in (*seeds.over_prose, *seeds.over_code):
        assert "{text}" in task
    for is_code in (False, True):
        assert "TEXT {x}" in seeds.draw_over("TEXT {x}", is_code, rng)


def test_no_prompt_comes_twice_and_the_seed_decides() -> None:
    shares = Shares(seeds=1.0, over_texts=0.0)
    one, other = WritingPrompts(7, shares), WritingPrompts(7, shares)
    given = [str(one.next()) for _ in range(500)]
    assert given == [str(other.next()) for _ in range(500)]
    asked = [text for text in given if text != "None"]
    assert len(set(asked)) == len(asked) > 450


def over_texts(prompts: WritingPrompts, n: int) -> list[str]:
    return [str(given[0]["content"]) for _ in range(n) if (given := prompts.next())]


def test_half_of_the_tasks_over_texts_are_over_found_ones() -> None:
    prompts = WritingPrompts(3, Shares(seeds=0.0, over_texts=1.0))
    written = "".join(f"Sentence {i} was written by the target. " for i in range(20))
    prompts.learn(written)
    asked = over_texts(prompts, 60)
    share = sum(written not in text for text in asked) / len(asked)
    assert 0.3 < share < 0.7


def test_found_texts_are_all_there_is_until_something_is_written_unless_unwanted() -> None:
    texts = [*found_texts().prose, *found_texts().code]
    for share, n in ((0.5, 50), (0.0, 0)):
        asked = over_texts(WritingPrompts(3, Shares(seeds=0.0, over_texts=1.0, found=share)), 50)
        assert sum(any(text in each for text in texts) for each in asked) == n


def test_code_gets_tasks_for_code_and_prose_those_for_prose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = shipped_seeds()
    code = [task.partition("{")[0] for task in seeds.over_code if not task.startswith("{")]
    prompts = WritingPrompts(5, Shares(seeds=0.0, over_texts=1.0))
    found = found_texts()

    def is_over_code(text: str) -> bool:
        return any(text.startswith(start) for start in code)

    asked = over_texts(prompts, 300)
    over_code = [text for text in asked if is_over_code(text)]
    assert 0.3 < len(over_code) / len(asked) < 0.7
    assert any("```python\n" in text for text in over_code)
    assert all(any(each in text for each in found.code) for text in over_code[:20])
    # What the target wrote is code where it has a block of code.
    monkeypatch.setattr("parlay_train.writing_prompts.found_texts", lambda: FoundText((), ()))
    block = "Here it is:\n\n```\n" + "x = 1\n" * 60 + "```"
    prompts.learn(block)
    tasks = [text for text in over_texts(prompts, 30) if not text.startswith("Here")]
    assert tasks and all(is_over_code(text) for text in tasks)

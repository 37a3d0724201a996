"""Prompts: seeds can all be filled, none is given twice, and the benchmark's are not among them."""

from __future__ import annotations

import random

from parlay.bench.suite import load_suite
from parlay.training.prompts import Prompts, Shares, shipped_seeds


def suite_texts() -> list[str]:
    prompts = (*load_suite("core-12").prompts, *load_suite("core-60").prompts)
    return [str(m["content"]) for p in prompts for m in p.messages if m.get("content")]


def words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()


def test_the_suites_prompts_are_not_in_the_seeds() -> None:
    """No run of eight words of a seed occurs in a suite: those prompts are the test."""
    seeds = shipped_seeds()
    fillers = [word for group in seeds.fillers.values() for word in group]
    runs = {
        tuple(found[i : i + 8])
        for text in suite_texts()
        for found in [words(text)]
        for i in range(len(found) - 7)
    }
    assert len(runs) > 1000
    for text in (*seeds.tasks, *seeds.over_texts, *fillers):
        found = words(text)
        assert not runs & {tuple(found[i : i + 8]) for i in range(len(found) - 7)}, text


def test_no_drawn_prompt_is_a_suites() -> None:
    rng = random.Random(0)
    drawn = {shipped_seeds().draw(rng).strip().lower() for _ in range(5000)}
    assert len(drawn) > 2000
    assert not drawn & {text.strip().lower() for text in suite_texts()}


def test_every_task_can_be_filled() -> None:
    seeds, rng = shipped_seeds(), random.Random(0)
    for task in (*seeds.tasks, *seeds.over_texts):
        assert "{" not in seeds._fill(task, rng)
    assert "TEXT {x}" in seeds.draw_over("TEXT {x}", rng)


def test_no_prompt_comes_twice_and_the_seed_decides() -> None:
    shares = Shares(seeds=1.0, over_texts=0.0)
    one, other = Prompts(7, shares), Prompts(7, shares)
    given = [str(one.next()) for _ in range(500)]
    assert given == [str(other.next()) for _ in range(500)]
    asked = [text for text in given if text != "None"]
    assert len(set(asked)) == len(asked) > 450

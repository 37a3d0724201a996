"""The order of a run: mirrored, balanced, shuffled, the same for the same seed."""

from __future__ import annotations

from collections import Counter

from parlay.bench.run import schedule

PROMPTS = [f"p{i}" for i in range(12)]


def orders(n_repeats: int, arms: list[str], seed: int = 0) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for step in schedule(PROMPTS, arms, n_repeats, seed):
        key = (step.prompt, step.repeat)
        found[key] = found.get(key, "") + step.arm
    return found


def test_every_prompt_sees_ab_then_ba() -> None:
    found = orders(4, ["A", "B"])
    for prompt in PROMPTS:
        four = [found[prompt, r] for r in range(4)]
        assert four in (["AB", "BA", "AB", "BA"], ["BA", "AB", "BA", "AB"])


def test_half_of_the_prompts_begin_with_either_arm() -> None:
    first = Counter(orders(5, ["A", "B"])[prompt, 0][0] for prompt in PROMPTS)
    assert first == {"A": 6, "B": 6}


def test_several_arms_are_mirrored_too() -> None:
    found = orders(2, ["A", "B", "C"])
    assert all({found[p, 0], found[p, 1]} == {"ABC", "CBA"} for p in PROMPTS)


def test_the_arms_of_a_pair_stand_next_to_each_other() -> None:
    steps = schedule(PROMPTS, ["A", "B"], 5, 3)
    for a, b in zip(steps[::2], steps[1::2], strict=True):
        assert (a.prompt, a.repeat) == (b.prompt, b.repeat)
    assert [s.position for s in steps] == list(range(120))


def test_prompt_order_is_shuffled_anew_and_repeatable() -> None:
    def order(seed: int, repeat: int) -> list[str]:
        return [s.prompt for s in schedule(PROMPTS, ["A", "B"], 3, seed) if s.repeat == repeat]

    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert schedule(PROMPTS, ["A", "B"], 3, 1) == schedule(PROMPTS, ["A", "B"], 3, 1)

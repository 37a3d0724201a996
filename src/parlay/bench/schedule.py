"""The order of a run: prompts shuffled anew for each repeat, arms mirrored from one to the next.

Pure; the same seed gives the same order. Knows neither prompts nor arms beyond their names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One request to run."""

    position: int
    repeat: int
    prompt: str
    arm: str


def schedule(
    prompts: Sequence[str], arms: Sequence[str], n_repeats: int, seed: int
) -> tuple[Step, ...]:
    """Every arm answers every prompt once a repeat, one right after the other.

    Over two repeats a prompt sees A B, then B A: what drifts slowly cancels. Half of the prompts
    begin with A, half with B, so that an odd number of repeats favours nobody.
    """
    rng = random.Random(seed)
    backwards = _halves(prompts, rng)
    steps: list[Step] = []
    for repeat in range(n_repeats):
        for prompt in rng.sample(list(prompts), len(prompts)):
            mirrored = (prompt in backwards) != (repeat % 2 == 1)
            for arm in reversed(arms) if mirrored else arms:
                steps.append(Step(len(steps), repeat, prompt, arm))
    return tuple(steps)


def _halves(prompts: Sequence[str], rng: random.Random) -> frozenset[str]:
    return frozenset(rng.sample(list(prompts), len(prompts) // 2))

"""The cases of a proof that texts are equal: who is asked what, with whom, after what, how drawn.

Pure; knows no model. Every prompt meets every arm, being alone and being one of several, a cold
cache, a warm one and a second turn. Which of these meet in one case moves on by one from group to
group, so that over the groups every arm meets nearly every company and turn; what is left, and the
other way of drawing, comes in the second round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COLD, WARM, SECOND = TURNS = ("cold", "warm", "second turn")
GREEDY, DRAWN = WAYS = ("greedy", "drawn")


@dataclass(frozen=True)
class Case:
    """What is asked of some prompts at once."""

    prompts: tuple[int, ...]
    arm: str
    together: bool  # as one of several; prompts that are alone come one after the other
    turn: str

    @property
    def company(self) -> str:
        return "one of several" if self.together else "alone"


def way_of(prompt: int, round_: int) -> str:
    """How a prompt's answers are drawn: each way for half of them, the other one a round later."""
    return WAYS[(prompt + round_) % len(WAYS)]


def chains(
    n_prompts: int, arms: Sequence[str], size: int, round_: int
) -> Iterator[tuple[Case, ...]]:
    """One round. A chain begins with a cold cache, each turn goes on from what the last one left.

    Arms come again until there are as many chains with company as without.
    """
    groups = [tuple(range(n_prompts))[at : at + size] for at in range(0, n_prompts, size)]
    n_chains = 2 * -(-len(arms) // (2 * len(TURNS)))
    for g, group in enumerate(groups, round_ * len(groups)):
        for c in range(n_chains):
            own = [arms[(g + c * len(TURNS) + i) % len(arms)] for i in range(len(TURNS))]
            together = c % 2 == 1
            for asked in [group] if together else [(p,) for p in group]:
                yield tuple(
                    Case(asked, arm, together, turn) for arm, turn in zip(own, TURNS, strict=True)
                )

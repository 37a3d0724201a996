"""The threads of a pass: how many, spinning or asleep at barriers, and which are worth trying.

Knows numbers; neither llama.cpp nor how fast anybody is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crew:
    """The threads of a pass, and whether they sleep while they wait for each other."""

    threads: int
    sleeps: bool = False


def crews(most: int, *, can_sleep: bool) -> list[Crew]:
    """Those worth a race where so many threads are the rule, that rule first."""
    counts = dict.fromkeys((most, most - 1, 3 * most // 4, most // 2, most // 4, 1))
    found = [Crew(n) for n in counts if n >= 1]
    if can_sleep:
        found += [Crew(n, sleeps=True) for n in dict.fromkeys((most, most // 2)) if n > 1]
    return found

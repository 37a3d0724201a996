"""Where two texts part, and how close the two candidates were for the target.

Pure: compares texts and scored tokens; asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.bench.comparison import Difference
from parlay.bench.subjects.subject import ScoredToken
from parlay.reading.bounds import one_line


def first_difference(
    prompt: str, baseline: str, candidate: str, scored: Sequence[ScoredToken]
) -> Difference | None:
    """None where the texts are equal. `scored`: the baseline's answer again, token by token."""
    if baseline == candidate:
        return None
    at = _common(baseline, candidate)
    place = _token_at(scored, baseline, at)
    if place is None:
        return Difference(prompt=prompt, character=at)
    index, start = place
    token = scored[index]
    other = _chosen_instead(token, candidate[start:])
    return Difference(
        prompt=prompt,
        character=at,
        token=index,
        baseline=_shown(token.text),
        candidate=_shown(other[0]) if other else None,
        gap=round(max(0.0, token.logprob - other[1]), 6) if other else None,
    )


def _common(a: str, b: str) -> int:
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def _token_at(scored: Sequence[ScoredToken], text: str, at: int) -> tuple[int, int] | None:
    """The token that holds character `at`, and where it starts; None if scores differ."""
    start = 0
    for index, token in enumerate(scored):
        end = start + len(token.text)
        if end > at:
            return index, start
        if text[start:end] != token.text:
            return None
        start = end
    return None


def _chosen_instead(token: ScoredToken, rest: str) -> tuple[str, float] | None:
    """The alternative that the other text goes on with; the longest, where several fit."""
    fitting = [t for t in token.top if t[0] and t[0] != token.text and rest.startswith(t[0])]
    return max(fitting, key=lambda t: len(t[0]), default=None)


def _shown(text: str) -> str:
    visible = text.replace("\n", "\\n").replace("\t", "\\t")
    return one_line(visible, 40) or "(blank)"

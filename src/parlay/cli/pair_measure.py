"""Measures a pair through Parlay's own interface: acceptance over many answers, cost of passes.

Knows prompts and clocks; what follows from the figures is computed in `parlay.pairing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parlay.bench.suite import Prompt, load_suite
from parlay.control.prices.breakeven import RoundCosts, value
from parlay.decoding.counts import Counts
from parlay.errors import BadRequest, PromptTooLong
from parlay.llama.machine import machine_name
from parlay.pairing.baseline import Baseline
from parlay.parlay import Parlay

Progress = Callable[[int], None]

_TIMED_TOKENS = 24
_LAPS = 3
_WINDOWS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
# The first round of prompts is greedy; further ones are drawn, so that no answer comes twice.
_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure."""

    cycles: int
    window: int = 8
    max_tokens: int = 64
    suite: str = "core-60"
    context_size: int = 4096
    threads: int = 0
    gpu_layers: int = -1
    translate: bool = False  # a drafter of another vocabulary, through text


def measure(target: Path, drafter: Path, settings: Settings, progress: Progress) -> Baseline:
    """Load the pair once, answer so many prompts, and time passes of every window."""
    prompts = load_suite(settings.suite).prompts
    with Parlay(
        target,
        draft=str(drafter),
        window=settings.window,
        # Any shape: what is measured is the drafter, not which windows are exact.
        mode="faithful",
        context_size=settings.context_size,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        drafter_gpu_layers=settings.gpu_layers,
        translate=settings.translate,
    ) as parlay:
        runs = list(_answers(parlay, prompts, settings, progress))
        if not runs:
            raise BadRequest("every prompt was too long for the context; raise --context-size")
        talk = _conversation(parlay, prompts[0])
        costs = measure_rounds(
            lambda k: (
                parlay.generate(talk, temperature=0, max_tokens=_TIMED_TOKENS, window=k).speculation
            ),
            settings.window,
        )
    return _baseline(runs, costs, settings)


_Run = tuple[str, Counts]  # category and what was counted


def _answers(
    parlay: Parlay, prompts: Sequence[Prompt], settings: Settings, progress: Progress
) -> Iterator[_Run]:
    for i in range(settings.cycles):
        prompt, lap = prompts[i % len(prompts)], i // len(prompts)
        try:
            answer = parlay.generate(
                _conversation(parlay, prompt),
                max_tokens=settings.max_tokens,
                temperature=_TEMPERATURE if lap else 0.0,
                seed=lap,
            )
            yield prompt.category, answer.speculation
        except PromptTooLong:
            pass
        progress(i + 1)


def _conversation(parlay: Parlay, prompt: Prompt) -> str | list[dict[str, object]]:
    """The messages, or their text for a model without a chat template."""
    if parlay.template is not None:
        return [dict(message) for message in prompt.messages]
    return "\n\n".join(str(message.get("content") or "") for message in prompt.messages)


def _baseline(runs: Sequence[_Run], costs: RoundCosts, settings: Settings) -> Baseline:
    by_position = _by_position([counts for _, counts in runs])
    windows = [
        value(costs, rows - 1, by_position)
        for rows in costs.target
        if 1 < rows <= settings.window + 1
    ]
    categories = {name: _of(runs, name) for name in sorted({n for n, _ in runs})}
    return Baseline(
        machine=machine_name(),
        cycles=len(runs),
        window=settings.window,
        token_acceptance=_acceptance(runs),
        acceptance_length=_length(runs),
        draft_cost=costs.per_token,
        by_category={name: _acceptance(some) for name, some in categories.items()},
        by_position=tuple(by_position),
        speedups={str(w.window): w.speedup or 0.0 for w in windows},
        break_even={str(w.window): w.break_even for w in windows},
        first_by_category={name: _first_token(some) for name, some in categories.items()},
        length_by_category={name: _length(some) for name, some in categories.items()},
    )


def _of(runs: Sequence[_Run], category: str) -> list[_Run]:
    return [run for run in runs if run[0] == category]


def _acceptance(runs: Sequence[_Run]) -> float:
    return _ratio(sum(c.n_accepted for _, c in runs), sum(c.n_drafted for _, c in runs))


def _first_token(runs: Sequence[_Run]) -> float:
    return next(iter(_by_position([counts for _, counts in runs])), 0.0)


def _length(runs: Sequence[_Run]) -> float:
    return _ratio(sum(c.n_generated for _, c in runs), sum(c.n_rounds for _, c in runs))


def _by_position(counts: Sequence[Counts]) -> list[float]:
    depth = max((max(c.drafted_at, default=0) for c in counts), default=0)
    return [
        _ratio(sum(c.accepted_at[j] for c in counts), sum(c.drafted_at[j] for c in counts))
        for j in range(1, depth + 1)
    ]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def measure_rounds(answer: Callable[[int], Counts], widest: int) -> RoundCosts:
    """Passes by their rows and drafts by their tokens, from answers made with one window each.

    Another job on the same cores only ever adds time, so the least is nearest to the truth.
    """
    windows = sorted({*(k for k in _WINDOWS if k <= widest), widest})
    target = dict.fromkeys((k + 1 for k in windows), math.inf)
    draft: dict[int, float] = {}
    for k in windows * _LAPS:
        counts = answer(k)
        target[k + 1] = min(target[k + 1], counts.verify_s / max(1, counts.n_rounds))
        if counts.n_drafted:
            whole = k * counts.draft_s / counts.n_drafted  # a text's last draft may be shorter
            draft[k] = min(draft.get(k, math.inf), whole)
    return RoundCosts(target, draft)

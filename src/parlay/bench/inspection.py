"""After a run: looks at the prompts whose texts differ, and asks the baseline what it nearly said.

Knows subjects and texts; changes no sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from parlay.bench.comparison import Difference
from parlay.bench.differences import first_difference
from parlay.bench.runner import Run, RunOptions
from parlay.bench.subjects.subject import Ask, Subject
from parlay.bench.suite import Prompt, Suite
from parlay.errors import ParlayError

MAX_INSPECTED: Final = 12


def inspect(
    suite: Suite, subjects: Mapping[str, Subject], options: RunOptions, run: Run
) -> dict[str, list[Difference]]:
    """Per candidate, where its texts leave the baseline's."""
    baseline, *candidates = subjects
    found: dict[str, list[Difference]] = {}
    for name in candidates:
        differing = [p for p in suite.prompts if _texts(run, p.id, baseline, name) is not None]
        found[name] = [
            difference
            for number, prompt in enumerate(differing)
            if (
                difference := _look(
                    prompt,
                    run,
                    (baseline, name),
                    subjects[baseline] if number < MAX_INSPECTED else None,
                    suite.temperature,
                    options,
                )
            )
        ]
    return found


def _texts(run: Run, prompt: str, baseline: str, candidate: str) -> tuple[str, str] | None:
    """The texts of the first pair that differs."""
    for repeat in sorted({s.repeat for s in run.samples}):
        a = run.texts.get((repeat, prompt, baseline))
        b = run.texts.get((repeat, prompt, candidate))
        if a and b and a != b:
            return a, b
    return None


def _look(
    prompt: Prompt,
    run: Run,
    arms: Sequence[str],
    subject: Subject | None,
    temperature: float,
    options: RunOptions,
) -> Difference | None:
    texts = _texts(run, prompt.id, *arms)
    if texts is None:
        return None
    limit = options.max_tokens or prompt.max_tokens
    ask = Ask(
        prompt, min(limit, prompt.max_tokens), temperature, options.seed, options.time_limit_s
    )
    try:
        scored = subject.score(ask) if subject is not None else ()
    except ParlayError:
        scored = ()  # the place of the difference is known all the same
    return first_difference(prompt.id, *texts, scored)

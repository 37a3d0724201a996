"""The requests a race is run on: a request log, a prompts file, or a built-in suite.

Knows texts and where they come from; asks nobody.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from parlay.bench.suite import Prompt, Suite, load_suite, suite_hash
from parlay.errors import BadRequest
from parlay.reading.answers import object_of

MAX_PROMPTS = 24
_MAX_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in an order in which neighbours differ; `raw`: texts with the template in them."""

    suite: Suite
    raw: bool = False


def from_suite(name_or_path: str, seed: int = 0) -> Workload:
    """A built-in suite, or a user's JSONL file; at most so many prompts of it."""
    return Workload(_spread(load_suite(name_or_path), seed))


def from_log(path: Path, seed: int = 0) -> Workload:
    """Prompts that a server wrote down (`monitoring.log_prompts`), by the routes they took."""
    prompts: list[Prompt] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
                row = object_of(line) or {}
                text, route = row.get("prompt"), str(row.get("policy") or "log")
                if isinstance(text, str) and text.strip():
                    prompts.append(Prompt(f"{number}", route, ({"role": "user", "content": text},)))
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}); name a request log") from None
    if not prompts:
        raise BadRequest(
            f"{path.name} holds no prompts; serve with monitoring.log_prompts, or use --prompts"
        )
    suite = Suite(path.stem[:64], None, suite_hash(prompts), tuple(prompts))
    return Workload(_spread(suite, seed), raw=True)


def _spread(suite: Suite, seed: int) -> Suite:
    """One of each kind in turn: the first few prompts already stand for all of them."""
    kinds: defaultdict[str, list[Prompt]] = defaultdict(list)
    for prompt in suite.prompts:
        kinds[prompt.category].append(prompt)
    rng = random.Random(seed)
    columns = [rng.sample(found, len(found)) for _, found in sorted(kinds.items())]
    spread = (p for row in zip_longest(*columns) for p in row if p is not None)
    chosen = tuple(spread)[:MAX_PROMPTS]
    return replace(suite, prompts=chosen, sha256=suite_hash(chosen))

"""The requests a race is run on: a request log, a prompts file, or a built-in suite.

Knows texts and where they come from; asks nobody.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from parlay.bench.suite import Prompt, Suite, load_suite, suite_hash
from parlay.errors import BadRequest
from parlay.routing import DEFAULT_RULES, RequestFacts, first_match

MAX_PROMPTS = 24
_MAX_LINE = 1 << 24
_CHARACTERS = 4  # of a token, about: only to find the route of a prompt


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in an order in which neighbours differ; `raw`: texts with the template in them."""

    suite: Suite
    source: Suite  # as it was before prompts were chosen
    routes: Mapping[str, str]  # prompt -> the route that a server would take
    raw: bool = False


def from_suite(name_or_path: str, seed: int = 0) -> Workload:
    """A built-in suite, or a user's JSONL file; at most so many prompts of it."""
    suite = load_suite(name_or_path)
    return _workload(suite, {p.id: route_of(p) for p in suite.prompts}, False, seed)


def from_log(path: Path, seed: int = 0) -> Workload:
    """Prompts that a server wrote down (`monitoring.log_prompts`), with the routes they took."""
    routes: dict[str, str] = {}
    prompts: list[Prompt] = []
    for number, row in _rows(path):
        text, policy = row.get("prompt"), row.get("policy")
        if not isinstance(text, str) or not text.strip():
            continue
        prompt = Prompt(f"{number}", str(policy or "log"), ({"role": "user", "content": text},))
        prompts.append(prompt)
        routes[prompt.id] = str(policy) if policy else route_of(prompt)
    if not prompts:
        raise BadRequest(
            f"{path.name} holds no prompts; serve with monitoring.log_prompts, or use --prompts"
        )
    suite = Suite(path.stem[:64], None, suite_hash(prompts), tuple(prompts))
    return _workload(suite, routes, True, seed)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
                row = _parse(line)
                if row is not None:
                    yield number, row
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}); name a request log") from None


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _workload(suite: Suite, routes: Mapping[str, str], raw: bool, seed: int) -> Workload:
    chosen = _spread(suite.prompts, routes, seed)[:MAX_PROMPTS]
    kept = replace(suite, prompts=tuple(chosen), sha256=suite_hash(chosen))
    return Workload(kept, suite, {p.id: routes[p.id] for p in chosen}, raw)


def _spread(prompts: Iterable[Prompt], routes: Mapping[str, str], seed: int) -> list[Prompt]:
    """One of each kind in turn: the first few prompts already stand for all of them."""
    kinds: defaultdict[tuple[str, str], list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        kinds[routes[prompt.id], prompt.category].append(prompt)
    rng = random.Random(seed)
    columns = [rng.sample(found, len(found)) for _, found in sorted(kinds.items())]
    return [p for row in zip_longest(*columns) for p in row if p is not None]


def route_of(prompt: Prompt) -> str:
    """The rule of a server's table that would apply."""
    texts = [str(message.get("content") or "") for message in prompt.messages]
    facts = RequestFacts(
        endpoint="chat",
        n_prompt=max(1, sum(map(len, texts)) // _CHARACTERS),
        n_answer=prompt.max_tokens,
        tools=bool(prompt.tools),
        grammar=prompt.json_schema is not None,
        code=any("```" in text for text in texts),
    )
    return first_match(DEFAULT_RULES, facts).name

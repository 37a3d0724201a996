"""Where prompts come from: the target's own user turns, seeds, tasks over texts, a file.

Knows words, not models. Drawn with a fixed seed, and none is given twice.
"""

from __future__ import annotations

import functools
import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from parlay.errors import BadRequest
from parlay_train.found import MAX_CHARACTERS, MIN_CHARACTERS, found_texts

Messages = Sequence[Mapping[str, Any]]

MAX_FILE_BYTES = 256_000_000
_POOL = 512  # written texts that tasks are set over
_FENCE = "```"
_FENCED = 0.5  # share of found code that comes in a block of its own
_TRIES = 8
_REMEMBERED = 2_000_000


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each source is asked; what is left is the target's own user turns."""

    seeds: float = 0.35
    over_texts: float = 0.35
    found: float = 0.5  # of the tasks over texts; the others are over texts that the target wrote
    given: float = 0.0


@dataclass(frozen=True, slots=True)
class Seeds:
    """Tasks with holes, and what to fill them with."""

    tasks: tuple[str, ...]  # "Explain {topic} to {reader}."
    over_prose: tuple[str, ...]  # "Summarise this:\n\n{text}"
    over_code: tuple[str, ...]  # "Add comments to this:\n\n{text}"
    fillers: Mapping[str, tuple[str, ...]]

    def draw(self, rng: random.Random) -> str:
        return self._fill(rng.choice(self.tasks), rng)

    def draw_over(self, text: str, is_code: bool, rng: random.Random) -> str:
        task = rng.choice(self.over_code if is_code else self.over_prose)
        return self._fill(task, rng).replace("<text>", text)

    def _fill(self, task: str, rng: random.Random) -> str:
        # Numbers are drawn, not listed: a hundred sums are better than ten.
        holes = {name: rng.choice(words) for name, words in self.fillers.items()}
        numbers = {f"n{i}": rng.randint(2, 10 ** rng.randint(1, 3)) for i in range(1, 5)}
        return task.format(**holes, **numbers, text="<text>")


@functools.cache
def shipped_seeds() -> Seeds:
    """The seeds that come with the package."""
    raw = yaml.safe_load(resources.files("parlay_train").joinpath("seeds.yaml").read_text("utf-8"))
    tasks = tuple(task for group in raw["tasks"].values() for task in group)
    fillers = {name: tuple(words) for name, words in raw["fillers"].items()}
    over = raw["over_texts"]
    return Seeds(tasks, tuple(over["prose"]), tuple(over["code"]), fillers)


def read_prompts(path: Path) -> list[Messages]:
    """A user's prompts: JSON lines with `prompt` or `messages` (a request log is such a file), or
    plain text, one prompt to a line."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadRequest(f"{path} is over {MAX_FILE_BYTES // 10**6} MB; give a part of it")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadRequest(f"{path} cannot be read: {reason}; check the path") from None
    found = [_parse(line, path, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadRequest(f"{path} holds no prompts; write one per line")
    return found


def _parse(line: str, path: Path, number: int) -> Messages:
    if not line.lstrip().startswith("{"):
        return [{"role": "user", "content": line.strip()}]
    try:
        row = json.loads(line)
        if row.get("messages"):
            return [dict(message) for message in row["messages"]]
        return [{"role": "user", "content": str(row["prompt"])}]
    except (ValueError, KeyError, TypeError):
        raise BadRequest(
            f'{path}, line {number}: neither "prompt" nor "messages" in it; a request log has them'
            " with monitoring.log_prompts on"
        ) from None


@dataclass(slots=True)
class WritingPrompts:
    """Gives one prompt after another: messages, or None for "let the target write the turn"."""

    seed: int
    shares: Shares = field(default_factory=Shares)
    given: Sequence[Messages] = ()
    _rng: random.Random = field(init=False)
    _texts: deque[str] = field(init=False)
    _seen: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._texts = deque(maxlen=_POOL)
        self._seen = set()

    def next(self) -> Messages | None:
        """A prompt that was not given before, as far as that can be had in a few tries."""
        at = self._rng.random()
        if self.given and at < self.shares.given:
            return self._rng.choice(self.given)
        if at < self.shares.given + self.shares.over_texts and (text := self._text()):
            return self._new(lambda: shipped_seeds().draw_over(*text, self._rng))
        if at < self.shares.given + self.shares.over_texts + self.shares.seeds:
            return self._new(lambda: shipped_seeds().draw(self._rng))
        return None

    def is_new(self, words: object) -> bool:
        """Whether this was not seen before; remembers it."""
        key = hash(words)
        new = key not in self._seen
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen.add(key)
        return new

    def learn(self, text: str) -> None:
        """A written text that tasks may be set over."""
        if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS:
            self._texts.append(text)

    def _new(self, make: Callable[[], str]) -> Messages | None:
        for _ in range(_TRIES):
            text = make()
            if self.is_new(text):
                return [{"role": "user", "content": text}]
        return None

    def _text(self) -> tuple[str, bool] | None:
        """A text to set a task over, and whether it is code; None where there is none yet."""
        if self.shares.found and (not self._texts or self._rng.random() < self.shares.found):
            pools = [pool for pool in (found_texts().prose, found_texts().code) if pool]
            if pools:
                return self._found(self._rng.choice(pools))
        if not self._texts:
            return None
        text = self._rng.choice(self._texts)
        return text, _FENCE in text

    def _found(self, pool: Sequence[str]) -> tuple[str, bool]:
        text, is_code = self._rng.choice(pool), pool is found_texts().code
        if is_code and self._rng.random() < _FENCED:
            text = f"{_FENCE}python\n{text}\n{_FENCE}"
        return text, is_code

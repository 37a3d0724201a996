"""A history of comparisons: one line for each, and what changed since the last one.

Append-only file; knows figures and versions, not who measured them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from parlay import store
from parlay.bench.comparison import Comparison, Interval
from parlay.bench.statistics import Verdict
from parlay.bench.subjects.subject import ArmInfo
from parlay.errors import BadRequest
from parlay.reading.bounds import Label, Sha256, Strict

log = logging.getLogger("parlay.bench")


class HistoryEntry(Strict):
    """One comparison, as much as the next one needs to know."""

    at: Label
    suite: Sha256
    verdict: Verdict
    wall: Interval
    first_token: Interval | None
    arms: dict[Label, ArmInfo]
    texts: dict[Label, dict[Label, Sha256]]  # arm -> prompt -> hash of its text


def read(path: Path) -> list[HistoryEntry]:
    """Earlier entries, oldest first."""
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        try:
            entries.append(HistoryEntry.model_validate_json(line))
        except ValidationError:  # a run that was killed while it wrote; the others still count
            log.warning("%s line %d is damaged and was left out", path.name, number)
    return entries


def append(path: Path, entry: HistoryEntry) -> None:
    """Add one line."""
    try:
        with store.locked(path), path.open("a+b") as file:
            file.seek(0, os.SEEK_END)
            torn = file.tell() > 0 and not _ends_a_line(file)
            line = json.dumps(entry.model_dump(mode="json")).encode() + b"\n"
            file.write(b"\n" * torn + line)
    except OSError as error:
        raise BadRequest(f"cannot write {path.name}: {error.strerror}; use --history") from error


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def changes(before: HistoryEntry, after: HistoryEntry) -> list[str]:
    """What is not as it was, in words: versions, drafters, texts, speed."""
    if before.suite != after.suite:
        return ["other prompts than last time: nothing can be compared"]
    found: list[str] = []
    for name in after.arms.keys() & before.arms.keys():
        found += _arm_changes(name, before.arms[name], after.arms[name])
        found += _text_changes(name, before.texts.get(name, {}), after.texts.get(name, {}))
    found += _speed_changes("wall time", before.wall, after.wall)
    if before.first_token and after.first_token:
        found += _speed_changes("time to first token", before.first_token, after.first_token)
    if before.verdict != after.verdict:
        found.append(f"the verdict was {before.verdict!r} and is {after.verdict!r}")
    return found


def _arm_changes(name: str, before: ArmInfo, after: ArmInfo) -> list[str]:
    words: Mapping[str, str] = {"build": "version", "model": "model", "drafter": "drafter"}
    found = []
    for field, word in words.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            found.append(f"{name}: the {word} was {old or 'unknown'} and is {new or 'unknown'}")
    return found


def _text_changes(name: str, before: dict[str, str], after: dict[str, str]) -> list[str]:
    common = before.keys() & after.keys()
    n = sum(before[prompt] != after[prompt] for prompt in common)
    return [f"{name}: {n} of {len(common)} answers have another text"] if n else []


def _speed_changes(what: str, before: Interval, after: Interval) -> list[str]:
    """Told only where the intervals do not touch."""
    if after.low > before.high or after.high < before.low:
        return [f"the ratio of {what} was {before.ratio:.2f}x and is {after.ratio:.2f}x"]
    return []


def entry_of(
    at: str, suite: str, comparison: Comparison, arms: Any, samples: Any
) -> HistoryEntry | None:
    """The entry of a comparison; None where it gave no figure."""
    if comparison.wall is None:
        return None
    texts: dict[str, dict[str, str]] = {name: {} for name in arms}
    for sample in samples:
        if sample.text_sha256 and sample.repeat == 0:
            texts[sample.arm][sample.prompt] = sample.text_sha256
    return HistoryEntry(
        at=at,
        suite=suite,
        verdict=comparison.wall.verdict,
        wall=comparison.wall,
        first_token=comparison.first_token,
        arms=dict(arms),
        texts=texts,
    )

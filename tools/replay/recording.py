"""A recording: for every position of an answer, what each proposer would have drafted there.

Knows neither tokens nor costs: only how long each draft is, how much of it the target accepts, and
how sure the proposer was. `python -m tools.replay` plays controllers over it.

JSON lines, gzip if the name ends in .gz: a header {"parlay_recording": 1, ...}, then one answer per
line. A draft is [n_accepted, [confidence in thousandths, ...]], one number per drafted token.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from parlay.errors import BadRequest

VERSION = 1
_KEY = "parlay_recording"
_WANTED = "name a shipped one, such as code, or a file that scripts/record_traces.py made"


@dataclass(frozen=True, slots=True)
class RecordedOffer:
    """One proposer's draft at one position, and what would have become of it."""

    n_accepted: int
    confidence: tuple[float, ...]  # one per drafted token


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer of plain greedy decoding; position 0 is the round after the prompt's own token."""

    id: str
    category: str
    n_prompt: int
    finish_reason: str
    offers: Mapping[str, tuple[RecordedOffer, ...]]  # by proposer, one per position

    @property
    def n_tokens(self) -> int:
        """Tokens that rounds have to generate: as many as there are positions."""
        return len(next(iter(self.offers.values())))

    def first(self, n: int) -> Recording:
        """The same answer with a limit of so many tokens."""
        if n >= self.n_tokens:
            return self
        cut = {name: offers[:n] for name, offers in self.offers.items()}
        return replace(self, finish_reason="length", offers=cut)


def load_recordings(path: Path) -> list[Recording]:
    """Every answer of one file."""
    try:
        lines = _read(path).splitlines()
        header = json.loads(lines[0])
        if _KEY not in header:
            raise BadRequest(f"{path.name} is {_kind(header)}; {_WANTED}")
        if header[_KEY] != VERSION:
            raise BadRequest(f"{path.name} is version {header[_KEY]}; this reads {VERSION}")
        return [_answer(json.loads(line)) for line in lines[1:] if line.strip()]
    except (OSError, EOFError) as error:
        raise BadRequest(f"cannot read {path}: {error}; name a recording") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"not a recording ({type(error).__name__}: {error})"
        raise BadRequest(f"{path.name} is {what}; {_WANTED}") from None


def _kind(header: Mapping[str, Any]) -> str:
    """What a file is that is no recording, as far as its first line tells."""
    if {"proposer", "window", "round_ms"} <= header.keys():
        return "a trace of decisions, as generate --trace writes it, and no recording"
    return "no recording of what proposers would have drafted"


def save_recordings(path: Path, facts: Mapping[str, Any], recordings: Iterable[Recording]) -> None:
    """Write a file; `facts` go into its header for people to read."""
    lines = [json.dumps({_KEY: VERSION, **facts})]
    lines += [json.dumps(_record(r), separators=(",", ":")) for r in recordings]
    data = ("\n".join(lines) + "\n").encode()
    # No time stamp inside: the same recordings give the same bytes.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def shipped_recordings() -> list[Path]:
    """The files kept beside this file, one per category."""
    folder = Path(__file__).parent / "data" / "traces"
    return sorted(folder.glob("*.jsonl.gz"))


@cache
def burst(text: str) -> list[Recording]:
    """Sixteen answers that are asked for at once (chat, edit or extract), of 400 tokens each."""
    folder = Path(__file__).parent / "data" / "bursts"
    return load_recordings(folder / f"{text}.jsonl.gz")


@cache
def mixed_workload() -> list[Recording]:
    """Everything that comes with the package, one answer of each category in turn."""
    turns = zip_longest(*(load_recordings(path) for path in shipped_recordings()))
    return [recording for turn in turns for recording in turn if recording is not None]


def _read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def _answer(row: dict[str, Any]) -> Recording:
    offers = {
        name: tuple(
            RecordedOffer(int(n), tuple(c / 1000 for c in confidence)) for n, confidence in drafts
        )
        for name, drafts in row["drafts"].items()
    }
    if len({len(drafts) for drafts in offers.values()}) != 1 or not next(iter(offers.values())):
        raise ValueError("every proposer needs one draft per position")
    return Recording(row["id"], row["category"], row["n_prompt"], row["finish_reason"], offers)


def _record(recording: Recording) -> dict[str, Any]:
    drafts = {
        name: [[o.n_accepted, [round(1000 * c) for c in o.confidence]] for o in offers]
        for name, offers in recording.offers.items()
    }
    return {
        "id": recording.id,
        "category": recording.category,
        "n_prompt": recording.n_prompt,
        "finish_reason": recording.finish_reason,
        "drafts": drafts,
    }

"""What a race came to, and what it leaves behind: a table, a deployment file, a recorded pair.

Reads the tuner's heats; what is in the files was measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from parlay import store
from parlay.bench.compare import acceptance
from parlay.deployment import load_deployment
from parlay.engine.start import MODEL
from parlay.errors import BadRequest
from parlay.pairing.alignment import check_pair
from parlay.pairing.manifest import Member, Pair, save_pair
from parlay.pairing.records import member, record
from parlay.pairing.tokenizer import read_tokenizer
from parlay.tuning.candidates import PLAIN, Candidate, Way
from parlay.tuning.tuner import Heats, Tuner

TOO_LATE = "not raced: the time was over"  # a row's state
_WRITTEN = "Written by parlay tune"  # how such a file begins, after its mark


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate of the table."""

    label: str
    state: str  # wins, pays, no difference, stopped early, not raced, or why it was not
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n_pairs: int = 0
    n_bytes: int = 0
    n_identical: int = 0
    n_compared: int = 0
    token_acceptance: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "candidate": self.label,
            "state": self.state,
            "speedup": self.ratio and round(self.ratio, 4),
            "low": self.low and round(self.low, 4),
            "high": self.high and round(self.high, 4),
            "pairs": self.n_pairs,
            "memory_bytes": self.n_bytes,
            "identical": self.n_identical,
            "compared": self.n_compared,
            "token_acceptance": self.token_acceptance,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a tuning found out."""

    rows: tuple[Row, ...]
    winner: Way | None  # None: plain decoding
    plain_tokens_per_second: float | None = None
    n_tokens: int = 0
    n_prompts: int = 0
    spent_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "winner": PLAIN if self.winner is None else self.winner.label,
            "candidates": [row.as_dict() for row in self.rows],
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "prompts": self.n_prompts,
            "max_tokens": self.n_tokens,
            "seconds": round(self.spent_s, 1),
        }


def outcome(tuner: Tuner, unraced: Sequence[Candidate]) -> Outcome:
    """The table, in order of speed."""
    race = tuner.race
    ways = {way.label: way for sitting in tuner.sittings for way in sitting.ways}
    rows = [_row(tuner, heats, way) for heats in tuner.heats for way in heats.sitting.ways]
    rows.sort(key=lambda row: (row.label != race.winner, -(row.ratio or 0.0)))
    rows += [Row(c.name, f"not raced: {c.problem}") for c in unraced if c.problem]
    speeds = (
        [s.tokens_per_second("decode") for s in heats.samples if s.arm == PLAIN]
        for heats in tuner.heats
    )
    known = next((found for each in speeds if (found := [s for s in each if s])), None)
    return Outcome(
        rows=tuple(rows),
        winner=None if race.winner is None else ways[race.winner],
        plain_tokens_per_second=round(median(known), 2) if known else None,
        n_tokens=tuner.n_tokens,
        n_prompts=len(tuner.workload.suite.prompts),
        spent_s=tuner.spent_s,
    )


def _row(tuner: Tuner, heats: Heats, way: Way) -> Row:
    n_bytes = 0 if way.drafter is None else way.drafter.n_bytes
    race, standing = tuner.race, tuner.race.standings().get(way.label)
    if standing is None:
        state = TOO_LATE if heats.problem is None else f"not raced: {heats.problem}"
        return Row(way.label, state, n_bytes=n_bytes)
    if way.label == race.winner:
        state = "wins"
    elif way.label in race.stopped:
        state = "stopped early"
    else:
        state = "pays" if standing.pays else "no difference"
    plain = {(s.repeat, s.prompt): s.text_sha256 for s in heats.samples if s.arm == PLAIN}
    mine = [s for s in heats.samples if s.arm == way.label]
    compared = [s for s in mine if s.text_sha256 and plain.get((s.repeat, s.prompt))]
    taken = acceptance(mine)
    return Row(
        label=way.label,
        state=state,
        ratio=standing.found.ratio,
        low=standing.low,
        high=standing.high,
        n_pairs=standing.found.n_pairs,
        n_bytes=n_bytes,
        n_identical=sum(plain[s.repeat, s.prompt] == s.text_sha256 for s in compared),
        n_compared=len(compared),
        token_acceptance=taken.token_acceptance if taken and taken.counts.drafted else None,
    )


# -- what is left behind ----------------------------------------------------------------------


def drafter_text(target: str, winner: Way | None) -> str:
    """`model.drafter`: what the winner needs."""
    if winner is None:
        return "none"
    file = ""
    if winner.drafter is not None:
        file = target if winner.drafter.kind == "head" else winner.drafter.name
    return ",".join(file if name == MODEL else name for name in winner.proposers.split(","))


def check_out(out: Path) -> None:
    """Whether the deployment may be written there: minutes later is too late to say so."""
    if not out.absolute().parent.is_dir():
        raise BadRequest(f"no folder {out.absolute().parent} for --out; make it first")
    try:
        first = out.read_text("utf-8")[:100] if out.exists() else f"# {_WRITTEN}"
    except (OSError, UnicodeDecodeError):
        first = ""
    if not first.startswith(f"# {_WRITTEN}"):
        raise BadRequest(f"{out} was not written by parlay tune; choose another --out, or move it")


def write_deployment(path: Path, target: str, suite: str, found: Outcome) -> None:
    """The file, whole or not at all, read back once to be sure that it can be served."""
    day = datetime.now(timezone.utc).date().isoformat()
    head = [
        f"{_WRITTEN} on {day}: {Path(target).name} on {suite}, {found.n_prompts} prompts,"
        f" {found.n_tokens} tokens, speed over plain decoding:"
    ]
    for row in found.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x [{row.low:.2f}, {row.high:.2f}] "
        head.append(f"  {row.label}: {ratio}{row.state}")
    content = {"model": {"target": target, "drafter": drafter_text(target, found.winner)}}
    text = "".join(f"# {line}\n" for line in head)
    try:
        with store.whole(path) as part:
            part.write_text(text + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
            load_deployment(part, environ={})
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror}); choose --out") from None


def write_pair(target: Path, winner: Way, notes: str) -> Pair:
    """The winner, to be found by `--draft auto` from now on."""
    if winner.drafter is not None and winner.drafter.kind == "model":
        drafter = winner.drafter.path
        return record(target, drafter, check_pair(target, drafter), notes)
    # Heads use the target's vocabulary, proposers without a file need none.
    own = member(target, read_tokenizer(target).fingerprint)
    drafts = Member(name=winner.proposers)
    if winner.drafter is not None:
        drafts = member(winner.drafter.path, own.tokenizer or "")
    pair = Pair(target=own, drafter=drafts, verdict="compatible", notes=notes)
    save_pair(pair)
    return pair

"""Recording pairs, finding the drafter of a target, and noticing that a file has changed.

Reads model files' headers and hashes; knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parlay.llama.facts import read_facts
from parlay.models import DRAFTERS
from parlay.pairing.alignment import Alignment
from parlay.pairing.hashes import Stamp, sha256_of, stamp
from parlay.pairing.manifest import Member, Pair, all_pairs, save_pair
from parlay.pairing.tokenizer import read_tokenizer


@dataclass(frozen=True, slots=True)
class Found:
    """A drafter for a target: what to give as `draft`, and what to say about it."""

    draft: str  # a path, or the name of a proposer without a model
    pair: Pair
    warnings: tuple[str, ...]


def record(target: Path, drafter: Path, alignment: Alignment, notes: str = "") -> Pair:
    """Write a pair into the user's manifest."""
    pair = Pair(
        target=member(target, alignment.target.fingerprint),
        drafter=member(drafter, alignment.drafter.fingerprint),
        verdict=alignment.verdict,
        notes=notes,
    )
    save_pair(pair)
    return pair


def member(path: Path, tokenizer: str) -> Member:
    """A file as the manifest keeps it."""
    facts, now = read_facts(path), stamp(path)
    return Member(
        name=path.name,
        path=str(path.resolve()),
        sha256=sha256_of(path),
        bytes=now.n_bytes,
        mtime_ns=now.mtime_ns,
        quantisation=facts.file_type or facts.tensor_type,
        tokenizer=tokenizer,
    )


def find_drafter(target: Path) -> Found | None:
    """The drafter to use with this target, by the manifests; None where they know none."""
    for pair in all_pairs():
        if not _is(pair.target, target):
            continue
        path = _locate(pair.drafter, target.parent)
        if path is None and pair.drafter.is_file:
            continue  # recorded on another machine, or moved away
        draft = pair.drafter.name if path is None else str(path)
        return Found(draft, pair, tuple(_changes(pair, target, path)))
    return None


def _is(known: Member, path: Path) -> bool:
    """The file of that name and size, a copy under another name, or whatever lies now where it
    was recorded."""
    if known.path is not None and Path(known.path) == path.resolve():
        return True
    if known.bytes != stamp(path).n_bytes:
        return False
    return known.name == path.name or known.sha256 == sha256_of(path)


def _locate(known: Member, beside: Path) -> Path | None:
    places = [Path(known.path)] if known.path else []
    if known.is_file:
        places += [beside / known.name, DRAFTERS / known.name]
    return next((place for place in places if place.is_file()), None)


def _changes(pair: Pair, target: Path, drafter: Path | None) -> Iterator[str]:
    for known, path in ((pair.target, target), (pair.drafter, drafter)):
        if path is not None and has_changed(known, path):
            yield (
                f"{path.name} is not the file that was recorded (its hash changed);"
                " parlay doctor TARGET --draft DRAFTER --record keeps it again"
            )


def has_changed(known: Member, path: Path) -> bool:
    """Hashed only where size or time of change are not those recorded."""
    now = stamp(path)
    if known.mtime_ns is not None and now == Stamp(known.bytes or 0, known.mtime_ns):
        return False
    return known.bytes != now.n_bytes or known.sha256 != sha256_of(path)


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of a recorded file."""

    member: Member
    problem: str | None


def verify(pairs: Iterable[Pair]) -> list[Verified]:
    """Look again at every file whose place is recorded, hashing all of it."""
    files = {m.path: m for p in pairs for m in (p.target, p.drafter) if m.path is not None}
    return [Verified(member, _problem(member, Path(path))) for path, member in files.items()]


def _problem(known: Member, path: Path) -> str | None:
    if not path.is_file():
        return "is gone"
    if known.sha256 != sha256_of(path):
        return "has changed"
    if known.tokenizer is not None and known.tokenizer != read_tokenizer(path).fingerprint:
        return "has another tokenizer"
    return None

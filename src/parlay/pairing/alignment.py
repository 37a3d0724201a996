"""May this drafter draft for this target? The verdict, and every difference with its reason.

Judges two tokenizers; knows nothing of speed. A drafter sees the target's token ids, never text:
so what matters is that the same id means the same text, not how text is cut into tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parlay.pairing.round_trip import RoundTrip, round_trip
from parlay.pairing.tokenizer import Tokenizer, read_tokenizer

Verdict = Literal["identical", "compatible", "incompatible"]

# Fine-tunes pad the vocabulary to a multiple of 64 or 128 (the engine applies the same rule).
MAX_PADDING, _MAX_SHOWN = 128, 5


@dataclass(frozen=True, slots=True)
class VocabularyDifference:
    """Something that is not the same in both."""

    what: str
    detail: str
    harmless: str | None  # why it does not matter; None: it does


@dataclass(frozen=True, slots=True)
class Alignment:
    """What a check of two files found."""

    verdict: Verdict
    differences: tuple[VocabularyDifference, ...]
    target: Tokenizer
    drafter: Tokenizer
    trip: RoundTrip

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {
            "verdict": self.verdict,
            "target": _summary(self.target),
            "drafter": _summary(self.drafter),
            "differences": [
                {"what": d.what, "detail": d.detail, "harmless": d.harmless}
                for d in self.differences
            ],
            "round_trip": {
                "samples": self.trip.n_samples,
                "differing": list(self.trip.differing),
                "changed_by_target": list(self.trip.changed_by_target),
                "changed_by_drafter": list(self.trip.changed_by_drafter),
            },
        }


def _summary(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "type": tokenizer.kind,
        "pre": tokenizer.pre,
        "tokens": len(tokenizer.tokens),
        "merges": len(tokenizer.merges),
        "added_tokens": len(tokenizer.added),
        "special": tokenizer.special,
        "fingerprint": tokenizer.fingerprint,
    }


def check_pair(target: Path, drafter: Path) -> Alignment:
    """Compare two model files, without their weights."""
    ours, theirs = read_tokenizer(target), read_tokenizer(drafter)
    trip = round_trip(target, drafter)
    found = (*compare(ours, theirs), *_trip_differences(trip))
    return Alignment(judge(found), found, ours, theirs, trip)


def judge(differences: Iterable[VocabularyDifference]) -> Verdict:
    """One harmful difference is enough."""
    found = list(differences)
    if any(d.harmless is None for d in found):
        return "incompatible"
    return "compatible" if found else "identical"


def compare(ours: Tokenizer, theirs: Tokenizer) -> tuple[VocabularyDifference, ...]:
    """Every difference between the target's tokenizer and the drafter's."""
    return tuple(
        difference
        for part in (_kinds, _sizes, _texts, _types, _merges, _special, _flags, _templates)
        for difference in part(ours, theirs)
    )


def _kinds(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    if ours.kind != theirs.kind:
        yield VocabularyDifference("type", f"{ours.kind} and {theirs.kind}", None)
    if ours.pre != theirs.pre:
        yield VocabularyDifference(
            "pre-tokenizer",
            f"{ours.pre} and {theirs.pre}",
            "the drafter is given the target's tokens, never text",
        )


def _sizes(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    a, b = len(ours.tokens), len(theirs.tokens)
    if a == b:
        return
    padded = abs(a - b) <= MAX_PADDING
    reason = f"padding: ids from {min(a, b)} on are never drafted" if padded else None
    yield VocabularyDifference("size", f"{a} and {b} tokens", reason)


def _texts(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    pairs = enumerate(zip(ours.tokens, theirs.tokens, strict=False))
    differing = [(i, a, b) for i, (a, b) in pairs if a != b]
    for i, a, b in differing[:_MAX_SHOWN]:
        yield VocabularyDifference("token", f"{i} is {_text(a)} and {_text(b)}", None)
    if len(differing) > _MAX_SHOWN:
        yield VocabularyDifference("token", f"{len(differing)} ids in all mean another text", None)


def _text(raw: bytes) -> str:
    return ascii(raw.decode("utf-8", "replace"))


def _types(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    pairs = zip(ours.types, theirs.types, strict=False)
    differing = [i for i, (a, b) in enumerate(pairs) if a != b]
    if differing:
        yield VocabularyDifference(
            "added tokens",
            f"{len(differing)} tokens are of another kind, the first is {differing[0]}",
            "the text is the same; which of them are marks is the target's to say",
        )


def _merges(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    if ours.merges == theirs.merges:
        return
    first = _first_difference(ours.merges, theirs.merges)
    yield VocabularyDifference(
        "merges",
        f"{len(ours.merges)} and {len(theirs.merges)}, the first that differs is {first}",
        "text is cut by the target alone; the drafter may be used to other cuts",
    )


def _first_difference(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _special(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    for name in sorted(ours.special.keys() | theirs.special.keys()):
        a, b = ours.special.get(name), theirs.special.get(name)
        if a != b:
            yield VocabularyDifference(
                f"{name} token",
                f"{_id(a)} and {_id(b)}",
                "the target's decides; a drafter used to another one may miss the end of a text",
            )


def _id(token: int | None) -> str:
    return "none" if token is None else str(token)


def _flags(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    for name in sorted(ours.flags.keys() | theirs.flags.keys()):
        a, b = ours.flags.get(name), theirs.flags.get(name)
        if a != b:
            yield VocabularyDifference(
                name, f"{a} and {b}", "prompts are made by the target's rules"
            )


def _templates(ours: Tokenizer, theirs: Tokenizer) -> Iterator[VocabularyDifference]:
    if ours.chat_template != theirs.chat_template:
        missing = "the drafter has none" if theirs.chat_template is None else "another text"
        yield VocabularyDifference(
            "chat template",
            missing,
            "prompts are made by the target's; a drafter trained on another may agree less",
        )


def _trip_differences(trip: RoundTrip) -> Iterator[VocabularyDifference]:
    if trip.differing:
        yield VocabularyDifference(
            "round trip",
            f"other tokens for {', '.join(trip.differing)}",
            "the target's tokens are used; where the ids agree in meaning nothing is lost",
        )

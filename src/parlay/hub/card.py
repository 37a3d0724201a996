"""A model file on this machine as its header describes it, and what it could draft for.

Reads headers and remembers what it read; the last word on a pair is `parlay.pairing`'s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from parlay import store
from parlay.errors import ModelFileError
from parlay.hub.place import Entry
from parlay.llama.facts import read_facts
from parlay.llama.header import Header, read_parts
from parlay.pairing.hashes import stamp
from parlay.pairing.tokenizer import Tokenizer, read_tokenizer

Kind = Literal["model", "dflash", "eagle3"]
_KINDS: dict[str, Kind] = {"dflash": "dflash", "eagle3": "eagle3"}
_PADDING = re.compile(rb"\[PAD\d+\]|<unused\d+>|<\|?pad_?\d+\|?>")
# A draft model larger than this part of its target cannot pay.
_MAX_SHARE = 0.5
_RECORD, _VERSION = "model-cards", 2


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a file says, without where it lies."""

    architecture: str
    quantisation: str
    n_params: int
    n_bytes: int
    n_embd: int
    n_layers: int
    vocabulary: str | None  # equal where the same ids mean the same texts
    kind: Kind
    target_width: int  # of a drafter that reads states; 0: it reads none
    target_layers: int  # the deepest layer it reads
    own_head: bool


@dataclass(frozen=True, slots=True)
class Card:
    """A file and what it says."""

    entry: Entry
    says: CardFacts

    def as_dict(self, others: Sequence[Card] = ()) -> dict[str, Any]:
        """The public JSON form."""
        says = self.says
        return {
            "name": self.entry.name,
            "program": self.entry.program,
            "path": str(self.entry.path),
            "bytes": says.n_bytes,
            "quantisation": says.quantisation,
            "architecture": says.architecture,
            "parameters": says.n_params,
            "kind": says.kind,
            "drafts_for": [target.entry.name for target in drafts_for(self, others)],
        }


def cards(entries: Iterable[Entry]) -> list[Card]:
    """Files that are models, each once: what several programs link to is one file."""
    found: dict[Path, Card] = {}
    for entry in entries:
        says = read_card(entry.path)
        if says is not None:
            found.setdefault(entry.path.resolve(), Card(entry, says))
    return list(found.values())


def read_card(path: Path) -> CardFacts | None:
    """From the header, or from memory if the file has not changed; None: no language model."""
    try:
        now = stamp(path)
        key = store.fingerprint(_VERSION, str(path.resolve()), now.n_bytes, now.mtime_ns)
        known = store.load(_RECORD, key)
        if known is not None:
            return CardFacts(**known)
        says = _read(path)
    except (ModelFileError, TypeError):
        return None
    store.save(_RECORD, key, asdict(says))
    return says


def _read(path: Path) -> CardFacts:
    facts, header = read_facts(path), read_parts(path)[0]
    arch = facts.architecture
    layers = header.values.get(f"{arch}.target_layers")
    kind = _KINDS.get(arch, "model")
    reads = [n for n in layers if isinstance(n, int)] if isinstance(layers, tuple) else []
    width = header.count(f"{arch}.target_hidden_size", facts.n_embd) if kind != "model" else 0
    return CardFacts(
        architecture=arch,
        quantisation=facts.file_type or facts.tensor_type,
        n_params=facts.n_params,
        n_bytes=facts.file_bytes,
        n_embd=facts.n_embd,
        n_layers=facts.n_layers,
        vocabulary=_vocabulary(path),
        kind=kind,
        target_width=width,
        target_layers=max(reads, default=0),
        own_head=_has_head(header, arch),
    )


def _has_head(header: Header, arch: str) -> bool:
    return header.count(f"{arch}.nextn_predict_layers", 0) > 0


def _vocabulary(path: Path) -> str | None:
    try:
        return vocabulary_key(read_tokenizer(path))
    except ModelFileError:  # drafters that borrow the target's may hold none
        return None


def vocabulary_key(tokenizer: Tokenizer) -> str:
    """Equal for vocabularies that differ in padding alone."""
    n = len(tokenizer.tokens)
    while n and _PADDING.fullmatch(tokenizer.tokens[n - 1]):
        n -= 1
    digest = hashlib.sha256(tokenizer.kind.encode())
    for text in tokenizer.tokens[:n]:
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()[:16]


def drafts_for(drafter: Card, targets: Iterable[Card]) -> list[Card]:
    """Targets that this file could draft for, by what the headers say."""
    return [
        t
        for t in targets
        if t.entry.path != drafter.entry.path and could_draft(drafter.says, t.says)
    ]


def could_draft(drafter: CardFacts, target: CardFacts) -> bool:
    """Same vocabulary, and small enough, or made for states of that width."""
    if target.kind != "model":
        return False
    same = drafter.vocabulary == target.vocabulary and drafter.vocabulary is not None
    if drafter.kind == "model":
        return same and drafter.n_params <= _MAX_SHARE * target.n_params
    fits = drafter.target_width == target.n_embd and drafter.target_layers <= target.n_layers
    return fits and (same or drafter.vocabulary is None)

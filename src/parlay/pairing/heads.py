"""Finds a head for a target that nobody named: in the target's own file, or in one beside it.

Reads headers and tokenizers; loads nothing. A file counts only if it was plainly made for this
target: its width, its vocabulary, the layers it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parlay.errors import ParlayError
from parlay.llama.capture import GIVES_LAST, GIVES_LAYERS, RUNS_CHAINS
from parlay.llama.facts import ASSISTANT, Facts, read_facts
from parlay.llama.header import Header, read_parts
from parlay.pairing.alignment import check_pair

_MAX_FILES = 64  # looked at beside a target


@dataclass(frozen=True, slots=True)
class Head:
    """A file that drafts for the target, and why it was taken."""

    path: Path
    why: str


def find_head(target: Path) -> Head | None:
    """What the target's file holds comes first: nothing has to be loaded for it."""
    try:
        facts, headers = read_facts(target), read_parts(target)
    except ParlayError:
        return None  # whoever loads it says what is wrong
    if _runs(facts.architecture, _n_heads(headers)):
        return Head(target, f"a NextN head in {target.name} itself")
    return _beside(target, facts)


def _n_heads(headers: list[Header]) -> int:
    """NextN layers, as far as their weights are there."""
    names = {tensor.name for header in headers for tensor in header.tensors}
    has_trunk = any(name.startswith("blk.0.") for name in names)
    return sum(name.endswith(".nextn.eh_proj.weight") for name in names) if has_trunk else 0


def _runs(architecture: str, n_heads: int) -> bool:
    """Whether llama.cpp runs so many NextN layers of an architecture."""
    many = n_heads > 1 and architecture not in RUNS_CHAINS
    return n_heads > 0 and not many and architecture in GIVES_LAST


def _beside(target: Path, facts: Facts) -> Head | None:
    others = [path for path in sorted(target.parent.glob("*.gguf"))[:_MAX_FILES] if path != target]
    found = [path for path in others if _is_made_for(path, target, facts)]
    if not found:
        return None
    best = max(found, key=lambda path: _n_shared(path.name, target.name))
    return Head(best, f"{best.name}, which lies beside {target.name} and was made for it")


def _n_shared(name: str, other: str) -> int:
    """Letters with which both begin."""
    pairs = zip(name, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(name), len(other)))


def _is_made_for(path: Path, target: Path, facts: Facts) -> bool:
    try:
        header = read_parts(path)[0]
        reads = _reads(header, facts)
        return reads and check_pair(target, path).verdict != "incompatible"
    except ParlayError:
        return False


def _reads(header: Header, facts: Facts) -> bool:
    """Whether a file is a head, and of the target's shape."""
    architecture = header.text("general.architecture") or ""
    widths = ("target_hidden_size", "embedding_length_out", "embedding_length")
    given = (header.optional(f"{architecture}.{width}") for width in widths)
    if next((width for width in given if width), None) != facts.n_embd:
        return False
    if architecture == ASSISTANT:
        return facts.architecture == "gemma4"
    if architecture in ("dflash", "eagle3"):
        layers = header.values.get(f"{architecture}.target_layers")
        known = isinstance(layers, tuple) and all(
            isinstance(layer, int) and layer <= facts.n_layers for layer in layers
        )
        return known and facts.architecture in GIVES_LAYERS
    names = [tensor.name for tensor in header.tensors]
    lone = not any(name.startswith("blk.0.") for name in names)
    heads = sum(name.endswith(".nextn.eh_proj.weight") for name in names)
    return lone and architecture == facts.architecture and _runs(architecture, heads)

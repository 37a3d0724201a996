"""Candidates: everything here that could draft for a target, checked before it is loaded.

Knows files by their headers, vocabularies by `pairing` and memory by the plan; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import ParlayError
from parlay.hub import place
from parlay.hub.card import could_draft, read_card
from parlay.hub.place import Entry
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.models import SHIPPED_DRAFTERS
from parlay.pairing.alignment import compare
from parlay.pairing.heads import find_head
from parlay.pairing.tokenizer import read_tokenizer
from parlay.planning.limits import Wanted, engine_contexts, load_list, plan_here

_WINDOW = 16
_NO_DRAFTER = "it has another vocabulary or width, or more than half of the target's weights"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter's file, by the name a deployment may give it."""

    name: str
    path: Path
    kind: str  # model, dflash, eagle3, head
    n_bytes: int  # of memory, by the plan
    problem: str | None = None  # why it is not raced


def candidates(
    target: Path, context_size: int, more: Iterable[Entry] = (), named: Sequence[Entry] = ()
) -> list[Candidate]:
    """Its own head, the shipped drafters, and every file here that could draft for it; of those
    that somebody `named`, also the others, with what is wrong with them."""
    says = read_card(target)
    if says is None:
        return []
    head = find_head(target)
    own = [] if head is None else [_head_entry(head.path, target)]
    shipped = [Entry(name, path, "parlay") for name, path in SHIPPED_DRAFTERS.items()]
    found: dict[Path, Entry] = {target.resolve(): Entry("", target, "parlay")}
    for entry in (*shipped, *named, *more, *place.everything()):
        if any(entry.path.resolve() == taken.path.resolve() for taken in own):
            continue
        card = read_card(entry.path)
        if card is not None and could_draft(card, says):
            found.setdefault(entry.path.resolve(), entry)
    del found[target.resolve()]
    raced = [_checked(entry, target, context_size) for entry in (*own, *found.values())]
    taken = {candidate.path.resolve() for candidate in raced}
    refused = [entry for entry in named if entry.path.resolve() not in taken]
    return [*raced, *(_refused(entry, target) for entry in refused)]


def _refused(entry: Entry, target: Path) -> Candidate:
    return Candidate(_name(entry), entry.path, _kind(entry, target), 0, _NO_DRAFTER)


def _head_entry(path: Path, target: Path) -> Entry:
    """In the target's own file, or in one beside it."""
    own = path == target
    return Entry("own head" if own else path.stem, path, "parlay" if own else "llama.cpp")


def _checked(entry: Entry, target: Path, context_size: int) -> Candidate:
    kind = _kind(entry, target)
    try:
        _check_vocabulary(target, entry.path, kind)
        n_bytes = _memory(target, None if kind == "head" else entry.path, context_size)
    except ParlayError as error:
        return Candidate(_name(entry), entry.path, kind, 0, error.message)
    return Candidate(_name(entry), entry.path, kind, n_bytes)


def _kind(entry: Entry, target: Path) -> str:
    card = read_card(entry.path)
    return "head" if entry.path == target or card is None else card.kind


def _name(entry: Entry) -> str:
    """A name that means this file on any day: a short one might find another."""
    return entry.name if entry.program in ("parlay", "hub", "ollama") else str(entry.path)


class Unusable(ParlayError):
    """This file cannot draft for this target here."""


def _check_vocabulary(target: Path, drafter: Path, kind: str) -> None:
    if kind != "model":
        return  # borrows the target's, or is checked when it is loaded
    found = compare(read_tokenizer(target), read_tokenizer(drafter))
    harmful = [difference for difference in found if difference.harmless is None]
    if harmful:
        raise Unusable(f"another vocabulary ({harmful[0].what}: {harmful[0].detail})")


def _memory(target: Path, drafter: Path | None, context_size: int) -> int:
    """What the drafter takes beside the target, if both fit."""
    context, own = engine_contexts(ContextSettings(context_size), _WINDOW, ("auto", "auto"))
    wanted = Wanted(target, ModelSettings(), context)
    pair = [] if drafter is None else [Wanted(drafter, ModelSettings(), own)]
    plan = plan_here(load_list(wanted, pair))
    if plan.verdict != "fits":
        raise Unusable("does not fit beside the target")
    return sum(item.n_bytes for item in plan.items if item.model == "drafter")

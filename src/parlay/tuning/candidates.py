"""Candidates: everything here that could draft for a target, checked before it is loaded, and the
sittings in which they are raced.

Knows files by their headers, vocabularies by `pairing` and memory by the plan; measures nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.bench.own import OwnArm
from parlay.bench.record import ArmInfo
from parlay.bench.subject import Subject
from parlay.engine.start import FREE_PROPOSERS, MODEL
from parlay.errors import ParlayError
from parlay.hub import place
from parlay.hub.card import could_draft, read_card
from parlay.hub.place import Entry
from parlay.llama import library
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.models import SHIPPED_DRAFTERS
from parlay.pairing.alignment import compare
from parlay.pairing.heads import find_head
from parlay.pairing.tokenizer import read_tokenizer
from parlay.parlay import Parlay
from parlay.planning.limits import Wanted, engine_contexts, load_list, plan_here
from parlay.reading.bounds import one_line

PLAIN = "plain"
_WINDOW = 16
_LABEL = 40
_NO_DRAFTER = "it has another vocabulary or width, or more than half of the target's weights"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter's file, by the name a deployment may give it."""

    name: str
    path: Path
    kind: str  # model, dflash, eagle3, head
    n_bytes: int  # of memory, by the plan
    problem: str | None = None  # why it is not raced

    @property
    def label(self) -> str:
        """Short, and told apart: a shipped drafter by its name, a file by its own."""
        short = len(self.name) <= _LABEL and "/" not in self.name
        return self.name if short else self.path.stem[:_LABEL]


def candidates(
    target: Path, context_size: int, more: Iterable[Entry] = (), named: Sequence[Entry] = ()
) -> list[Candidate]:
    """Its own head, the shipped drafters, and every file here that could draft for it; of those
    that somebody `named`, also the others, with what is wrong with them."""
    says = read_card(target)
    if says is None:
        return []
    found: dict[Path, Candidate] = {}
    head = find_head(target)
    if head is not None:  # in the target's own file, or in one beside it
        own = head.path == target
        entry = Entry(
            "own head" if own else head.path.stem, head.path, "parlay" if own else "llama.cpp"
        )
        found[head.path.resolve()] = _checked(entry, target, context_size)
    shipped = [Entry(name, path, "parlay") for name, path in SHIPPED_DRAFTERS.items()]
    for entry in (*shipped, *named, *more, *place.everything()):
        path, card = entry.path.resolve(), read_card(entry.path)
        if path in found or path == target.resolve():
            continue
        if card is not None and could_draft(card, says):
            found[path] = _checked(entry, target, context_size)
    for entry in named:
        kind = getattr(read_card(entry.path), "kind", "model")
        refused = Candidate(_name(entry), entry.path, kind, 0, _NO_DRAFTER)
        found.setdefault(entry.path.resolve(), refused)
    return list(found.values())


def _checked(entry: Entry, target: Path, context_size: int) -> Candidate:
    card = read_card(entry.path)
    kind = "head" if entry.path == target or card is None else card.kind
    n_bytes, problem = 0, None
    try:
        if kind == "model":  # others borrow the target's, or are checked when they are loaded
            differences = compare(read_tokenizer(target), read_tokenizer(entry.path))
            harmful = [each for each in differences if each.harmless is None]
            if harmful:
                problem = f"another vocabulary ({harmful[0].what}: {harmful[0].detail})"
        context, own = engine_contexts(ContextSettings(context_size), _WINDOW, ("auto", "auto"))
        pair = [] if kind == "head" else [Wanted(entry.path, ModelSettings(), own)]
        plan = plan_here(load_list(Wanted(target, ModelSettings(), context), pair))
        if problem is None and plan.verdict != "fits":
            problem = "does not fit beside the target"
        n_bytes = sum(item.n_bytes for item in plan.items if item.model == "drafter")
    except ParlayError as error:
        problem = error.message
    return Candidate(_name(entry), entry.path, kind, 0 if problem else n_bytes, problem)


def _name(entry: Entry) -> str:
    """A name that means this file on any day: a short one might find another."""
    return entry.name if entry.program in ("parlay", "hub", "ollama") else str(entry.path)


# -- sittings: files that are loaded together, plain decoding, and the ways of drafting with them --


@dataclass(frozen=True, slots=True)
class Way:
    """One way of drafting: what a table calls it, what a request asks for, what is loaded."""

    label: str
    proposers: str  # as a request names them
    drafter: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Sitting:
    """Ways that can be raced against plain decoding without loading anything else."""

    ways: tuple[Way, ...]
    drafter: Candidate | None = None

    @property
    def name(self) -> str:
        return "without a drafter" if self.drafter is None else self.drafter.label


def sittings(found: Sequence[Candidate]) -> list[Sitting]:
    """The free proposers, then every drafter alone and beside suffix; the small ones first."""
    made, seen = [Sitting(tuple(Way(n, n) for n in FREE_PROPOSERS))], Counter(FREE_PROPOSERS)
    usable = (c for c in found if c.problem is None)
    for candidate in sorted(usable, key=lambda c: c.n_bytes):
        label = candidate.label
        seen[label] += 1
        label = label if seen[label] == 1 else f"{label} ({seen[label]})"
        alone = Way(label, MODEL, candidate)
        beside = Way(f"suffix+{label}", f"suffix,{MODEL}", candidate)
        made.append(Sitting((alone, beside), candidate))
    return made


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens sittings of one target."""

    target: Path
    raw: bool = False  # prompts are whole texts, with the template's marks in them
    options: Mapping[str, Any] = field(default_factory=dict)  # of `Parlay`

    @contextmanager
    def open(self, sitting: Sitting) -> Iterator[dict[str, Subject]]:
        """Plain decoding first, then the ways; the models are freed at the end."""
        files = [] if sitting.drafter is None else [str(sitting.drafter.path)]
        draft = ",".join(["suffix", *files] if files else FREE_PROPOSERS)
        with Parlay(self.target, draft=draft, **self.options) as parlay:
            ways = (Way(PLAIN, "none"), *sitting.ways)
            yield {
                way.label: OwnArm(parlay, self._info(parlay, way), way.proposers, raw=self.raw)
                for way in ways
            }

    def _info(self, parlay: Parlay, way: Way) -> ArmInfo:
        return ArmInfo(
            name=way.label,
            kind="parlay",
            method=way.proposers.replace(",", "+"),
            speculates=way.label != PLAIN,
            mode=parlay.engine.mode,
            model=self.target.stem[:90],
            drafter=None if way.drafter is None else way.drafter.path.stem[:90],
            build=one_line(library.version(), 90),
        )

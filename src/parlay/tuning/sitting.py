"""A sitting: files that are loaded together, plain decoding, and the ways of drafting with them.

Opens the runtime for the bench's arms; knows nothing of who wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.bench.subjects.own import OwnArm
from parlay.bench.subjects.subject import ArmInfo, Ask, Subject
from parlay.engine.answer import Answer
from parlay.engine.start import FREE_PROPOSERS, MODEL
from parlay.llama import library
from parlay.parlay import Parlay
from parlay.reading.bounds import one_line
from parlay.tuning.candidate import Candidate

PLAIN = "plain"
_LABEL = 40


@dataclass(frozen=True, slots=True)
class SittingWay:
    """One way of drafting: what a table calls it, what a request asks for, what is loaded."""

    label: str
    proposers: str  # as a request names them
    drafter: Candidate | None = None

    @property
    def free(self) -> bool:
        return self.drafter is None


@dataclass(frozen=True, slots=True)
class Sitting:
    """Ways that can be raced against plain decoding without loading anything else."""

    ways: tuple[SittingWay, ...]
    drafter: Candidate | None = None

    @property
    def name(self) -> str:
        return "without a drafter" if self.drafter is None else label_of(self.drafter)


def sittings(found: Sequence[Candidate]) -> list[Sitting]:
    """The free proposers, then every drafter alone and beside suffix; the small ones first."""
    free = tuple(SittingWay(name, name) for name in FREE_PROPOSERS)
    usable = sorted((c for c in found if c.problem is None), key=lambda c: c.n_bytes)
    made, seen = [Sitting(free)], Counter(FREE_PROPOSERS)
    for candidate in usable:
        label = label_of(candidate)
        seen[label] += 1
        label = label if seen[label] == 1 else f"{label} ({seen[label]})"
        alone = SittingWay(label, MODEL, candidate)
        beside = SittingWay(f"suffix+{label}", f"suffix,{MODEL}", candidate)
        made.append(Sitting((alone, beside), candidate))
    return made


def label_of(candidate: Candidate) -> str:
    """Short, and told apart: a shipped drafter by its name, a file by its own."""
    name = candidate.name
    return name if len(name) <= _LABEL and "/" not in name else candidate.path.stem[:_LABEL]


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens sittings of one target."""

    target: Path
    raw: bool = False  # prompts are whole texts, with the template's marks in them
    options: Mapping[str, Any] = field(default_factory=dict)  # of the runtime

    @contextmanager
    def open(self, sitting: Sitting) -> Iterator[dict[str, Subject]]:
        """Plain decoding first, then the ways; the models are freed at the end."""
        files = [] if sitting.drafter is None else [str(sitting.drafter.path)]
        draft = ",".join(["suffix", *files] if files else FREE_PROPOSERS)
        with Parlay(self.target, draft=draft, **self.options) as parlay:
            arm = RawArm if self.raw else OwnArm
            yield {
                PLAIN: arm(parlay, self._info(parlay, SittingWay(PLAIN, "none")), "none"),
                **{w.label: arm(parlay, self._info(parlay, w), w.proposers) for w in sitting.ways},
            }

    def _info(self, parlay: Parlay, way: SittingWay) -> ArmInfo:
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


class RawArm(OwnArm):
    """Asks with texts as a request log keeps them: the template has been applied already."""

    def _prompt(self, ask: Ask) -> str:
        return str(ask.prompt.messages[0]["content"])

    def _answer(self, ask: Ask, draft: str | None, window: int | None, **options: Any) -> Answer:
        return super()._answer(ask, draft, window, raw=True, **options)

"""A scheduler on scripted models, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parlay.control.choice import Controller, FixedWindow
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import Cutting
from parlay.decoding.constraint import Constraint
from parlay.decoding.span import Span, nothing
from parlay.engine.drafts import Drafts
from parlay.engine.exact.prompts import Boundaries
from parlay.engine.exact.shapes import Composition, ExactClass, Scout
from parlay.engine.loop import Loop, Ready, nothing_to_do
from parlay.engine.plan import Planner
from parlay.engine.request import Mode, Request
from parlay.engine.sequence import Piece, Sequence, Sink
from parlay.engine.slots import Slots
from parlay.proposers.proposer import Proposer
from tests.scripted import ScriptedModel, ScriptedProposer, hashed_logits

N_VOCAB = 32
LOGITS = hashed_logits(N_VOCAB)


def exact_class(floor: int, limit: int = 0, *, prompts: bool = False) -> ExactClass:
    """A class that was probed at any length: one width, or all from one on."""
    return ExactClass(floor, limit or floor, prompts=prompts, places=frozenset(range(16)))


def whole_class(most: int) -> ExactClass:
    """Every pass with up to so many rows, and prompts' chunks."""
    return exact_class(1, most, prompts=True)


def agrees(found: ExactClass, placed: Seq[tuple[int, int]]) -> ExactClass:
    """Whatever is tried in the middle of answers is found to hold."""
    return found.with_places([length for _, length in placed])


ALL_EXACT = whole_class(64)


class Letters:
    """Every token is a letter."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def flush(self) -> str:
        return ""


class Rig:
    """Target, proposers and loop, with every piece kept."""

    def __init__(
        self,
        *,
        window: int = 4,
        script: Iterable[bool] = (),
        proposers: dict[str, Proposer] | None = None,
        slots: int = 1,
        context_size: int = 128,
        ends: frozenset[int] = frozenset(),
        exact: ExactClass = ALL_EXACT,
        mode: Mode = "exact",
        chunk: int = 8,
        widest_chunk: int = 0,
        n_call: int = 0,  # more than the batch: a GPU, which is handed several prompts at once
        unified: bool = False,
        controller: Controller | None = None,
        free: frozenset[str] = frozenset(),
        most_rows: int = 0,
        target: ScriptedModel | None = None,
        boundaries: Boundaries | None = None,
        scout: Scout = agrees,
        n_joined: int = 0,
        cutting: Cutting | None = None,
        prices: CostTable | None = None,
        n_batch: int = 64,
        ready: Ready = nothing_to_do,
        after_pass: Callable[[], None] = nothing,
    ) -> None:
        self.target = target or ScriptedModel(LOGITS, N_VOCAB, context_size)
        self.target.steady = n_call > 0
        if proposers is None:
            proposers = {"scripted": ScriptedProposer(LOGITS, script)}
        self.controller = controller or FixedWindow(window)
        for name in free:
            proposers[name].free = True
        self.drafts = Drafts(self.controller, proposers, context_size, 16, most_rows)
        cut = boundaries or Boundaries(chunk, self.target.context_size if exact.prompts else 0)
        places = Slots(self.target, slots, boundaries=cut)
        planner = Planner(
            self.target,
            places,
            Composition(exact, context_size, scout),
            cutting or Cutting(unified),
            mode=mode,
            chunk=chunk,
            n_batch=n_batch,
            n_call=n_call,
            widest_chunk=widest_chunk,
            n_joined=n_joined,
            prices=lambda: prices,
        )
        self.loop = Loop(
            self.target,
            places,
            self.drafts,
            planner,
            ends=ends,
            ready=ready,
            after_pass=after_pass,
        )
        self.slots = places
        self._ends = ends
        self.passes: list[tuple[int, int]] = []  # where those over one sequence began, their rows
        self._watch()
        self.pieces: dict[Sequence, list[Piece]] = {}

    def _watch(self) -> None:
        decode = self.target.decode

        def watched(spans: Seq[Span]) -> list[NDArray[np.float32]]:
            self.passes += [(s.start, len(s.tokens)) for s in spans if len(spans) == 1]
            return decode(spans)

        self.target.decode = watched  # type: ignore[method-assign]

    def add(self, request: Request, constraint: Constraint | None = None) -> Sequence:
        seq = self.sequence(replace(request, constraint=constraint), self._take)
        self.pieces[seq] = []
        self.loop.add(seq)
        return seq

    def sequence(self, request: Request, sink: Sink) -> Sequence:
        """An answer whose pieces go elsewhere; whoever makes it adds it."""
        return Sequence(request, Letters(), self._ends, sink)

    def _take(self, seq: Sequence, pieces: object) -> None:
        self.pieces[seq].extend(pieces)  # type: ignore[arg-type]

    def run(self, *requests: Request) -> list[Sequence]:
        """Add and run to the end."""
        sequences = [self.add(request) for request in requests]
        self.finish()
        return sequences

    def finish(self) -> None:
        """Step until nobody is left."""
        while not self.loop.idle:
            self.loop.step()

    def text(self, seq: Sequence) -> str:
        return "".join(piece.text for piece in self.pieces[seq])


def plain(request: Request, *, ends: frozenset[int] = frozenset(), context_size: int = 128) -> str:
    """What plain decoding says."""
    rig = Rig(proposers={}, ends=ends, context_size=context_size)
    return rig.text(rig.run(request)[0])

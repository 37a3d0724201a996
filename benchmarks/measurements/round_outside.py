"""Microseconds of a round outside llama.cpp, on real models: what `round_cost` counts on scripts.

A round's time less that of the target's pass, and so less what is done while a GPU computes it. If
the round waits for a draft model, it is also less the time of that one's passes since the target's
last one: on a thread of its own the draft model goes on, or comes to the end of a token that is of
no use, while the round learns, searches and chooses. So only that is outside in which neither model
computes. Where the draft was ready, or another one was chosen, nobody waited for its passes, and
they are left in. `own` is what the round's thread did, computed beside or not.

Kinds: `plain`; `suffix`; `drafter`, by the controller's windows; `ahead`, the same with the draft
model on a thread of its own; `resting`, with a draft model that is always wrong, so that the
controller lets it be. They answer in turn. How much of `own` is spent looking through rows of
logits, drafted or verified, is told apart; with --stages every part of it is, at the price of some
microseconds for each function that is watched.

python -m benchmarks.measurements.round_outside --target 14b-f16.gguf --drafter smollm2-q8_0.gguf \\
  --json out.json
python -m benchmarks.measurements.round_outside --tokens 48 --prompts 2 --kinds plain resting
python -m benchmarks.measurements.round_outside --target 14b-f16.gguf --drafter smollm2-q8_0.gguf \\
  --kinds plain suffix drafter ahead --stages --prompts 3 --json stages.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.proofs.ahead import Arm, resolve_drafter
from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.between import Between, Gaps
from benchmarks.shared.record import keep
from benchmarks.shared.stages import Stages
from parlay import Parlay
from parlay.bench.suite import load_suite
from parlay.control.betting.stopping import Stopping
from parlay.control.profit import ProfitController
from parlay.decoding import verification
from parlay.decoding.draft import Draft
from parlay.decoding.span import Span
from parlay.engine import bets
from parlay.engine.bets import Bets
from parlay.engine.scheduler import Scheduler
from parlay.engine.sequence import Sequence as Answer
from parlay.engine.start import MODEL, behind
from parlay.hub.resolving import resolve_model
from parlay.llama.batch import Batch
from parlay.llama.context import Context
from parlay.proposers import drafting
from parlay.proposers.ahead import DraftAhead
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.proposer import Ask

T = TypeVar("T")
KINDS = ("plain", "suffix", "drafter", "ahead", "resting")
DRAFTS = {"plain": "none", "suffix": "suffix"}  # the others leave it to the controller
INSIDE, MEANWHILE = "llama.cpp", "while a GPU computes"  # of no part in what is outside
# Functions that stand for a stage, in the order in which a round comes to them.
WATCHED = (
    (Scheduler, "_propose", "put the pass together"),
    (Bets, "place", "bets: the rest"),
    (Scheduler, "_learn", "hear of the last pass"),
    (Bets, "learn", "learn from the last pass"),
    (Bets, "_view", "look at the text for the controller"),
    (Bets, "_offers", "ask free proposers"),
    (ProfitController, "choose", "choose"),
    (Bets, "_drafts", "ask the draft model"),
    (DraftModel, "propose", "draft: the loop"),
    (Context, "start", "hand passes over, drafted ones too"),
    (Context, "fetch", "hand passes over, drafted ones too"),
    (drafting.Drafting, "add", "draft: the loop"),
    (drafting, "likeliest", "draft: rows of logits"),
    (drafting, "confidence", "draft: rows of logits"),
    (Stopping, "keep_going", "draft: go on or not"),
    (DraftAhead, "_call", "wait for the drafter's thread"),
    (bets, "bet_on", "bets: the rest"),
    (Scheduler, "_decode", "around the pass"),
    (Bets, "ahead", "send the drafter on"),
    (Context, "decode", "hand passes over, drafted ones too"),
    (Batch, "fill", "fill batches"),
    (Context, "_hand_over", INSIDE),
    (Context, "_logits", INSIDE),
    (Scheduler, "_meanwhile", MEANWHILE),
    (Scheduler, "_catch_up", "tell and count"),
    (Scheduler, "_settle", "settle: the rest"),
    (verification, "likeliest", "verify: rows of logits"),
    (Answer, "commit", "commit"),
    (Context, "truncate", "cut caches"),
    (Context, "length", "cut caches"),
)
_WAITED_S = 2e-5  # a fetch that takes longer has waited
_LEAST_US = 0.5  # a stage that is told
REST = "the rest of the step"
ORDER = tuple(dict.fromkeys((*(stage for _, _, stage in WATCHED), REST)))


@dataclass(frozen=True, slots=True)
class Step:
    """One round of one sequence."""

    us: float  # outside llama.cpp
    own_us: float  # of its thread, whether a draft model computes meanwhile or not
    rows_us: float  # of them, looking through rows of logits
    ms: float  # all of it
    n_drafted: int
    stages: Mapping[str, float]  # seconds
    gaps: Gaps | None  # where it waited for the draft model


class Meter:
    """Times every step of a scheduler. On the worker's thread, as all that it counts."""

    def __init__(self, parlay: Parlay, drafter: DraftModel, stages: Stages) -> None:
        self.steps: list[Step] = []
        self._stages = stages
        self.wrong = False  # whether every drafted token is replaced
        self._target, self._passes = parlay.engine.target, drafter.passes
        self._n_vocab = self._target.n_vocab
        self._waited_s, self._rows_s, self._spans = 0.0, 0.0, list[Span]()
        self._worker = 0
        for module in (verification, drafting):
            module.likeliest = self._reading(module.likeliest)  # type: ignore[attr-defined]
        drafting.confidence = self._reading(drafting.confidence)
        scheduler = parlay.engine._scheduler
        self._between = Between()
        self._step, self._decode = scheduler.step, self._target.decode
        self._draft, self._start, self._fetch = (
            drafter.passes.decode,
            drafter.passes.start,
            drafter.passes.fetch,
        )
        self._draft_s, self._begun = 0.0, list[float]()  # the last pass's time; when others began
        scheduler.step = self.step  # type: ignore[method-assign]
        self._target.decode = self.decode  # type: ignore[method-assign]
        self._passes.decode = self.draft  # type: ignore[method-assign]
        self._passes.start = self.start  # type: ignore[method-assign]
        self._passes.fetch = self.fetch  # type: ignore[method-assign]

    def step(self) -> None:
        self._waited_s, self._rows_s, self._spans = 0.0, 0.0, []
        self._worker = threading.get_ident()
        began, busy = time.perf_counter(), self._target.busy_s
        self._stages.begin()
        self._step()
        stages = self._stages.end()
        all_s = time.perf_counter() - began
        if len(self._spans) == 1 and self._spans[0].n_logits == len(self._spans[0].tokens):
            outside_s = all_s - (self._target.busy_s - busy)
            us, own_us = (
                1e6 * (outside_s - inside_s)
                for inside_s in (self._between.inside_s, self._waited_s)
            )
            n_drafted = len(self._spans[0].tokens) - self._spans[0].n_padding - 1
            rows_us, ms, gaps = 1e6 * self._rows_s, 1e3 * all_s, self._between.gaps
            self.steps.append(Step(us, own_us, rows_us, ms, n_drafted, stages, gaps))

    def _reading(self, look: Callable[..., T]) -> Callable[..., T]:
        """The same, timed where a round waits for it: a thread that drafts ahead does not count."""

        def timed(*given: Any) -> T:
            began = time.perf_counter()
            found = look(*given)
            if threading.get_ident() == self._worker:
                self._rows_s += time.perf_counter() - began
            return found

        return timed

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self._spans += spans
        began = time.perf_counter()
        found = self._decode(spans)
        self._between.verified(began, time.perf_counter())
        return found

    def draft(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """A pass of the draft model; what Python does before it is none of llama.cpp's."""
        busy, self._begun = self._passes.busy_s, []
        found = self._draft(spans)
        ended, self._draft_s = time.perf_counter(), self._passes.busy_s - busy
        self._between.drafted(ended - self._draft_s, ended)
        return found

    def start(self, spans: Sequence[Span]) -> None:
        self._begun.append(time.perf_counter())
        self._start(spans)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """Passes that were started run one after the other. When one ended is seen where it is
        waited for; else it takes as long as the last one that was."""
        busy, begun, self._begun = self._passes.busy_s, self._begun, []
        found = self._fetch(spans)
        ended, waited = time.perf_counter(), self._passes.busy_s - busy > _WAITED_S
        free = 0.0
        for began in begun:
            first, free = max(began, free), max(began, free) + self._draft_s
            self._between.drafted(first, min(free, ended))
        if waited:
            self._between.drafted(min(free, ended), ended)
            self._draft_s = (ended - begun[0]) / len(begun)
        return found

    def watch(self, drafter: DraftModel | DraftAhead) -> None:
        """Its passes are llama.cpp's time, as far as they are waited for."""
        propose = drafter.propose

        def timed(asks: Sequence[Ask], **how: bool) -> list[Draft]:
            began, busy = time.perf_counter(), self._passes.busy_s
            if isinstance(drafter, DraftModel):  # it is not asked for what is ready
                self._between.wait()
            found = propose(asks, **how)
            inside_s = min(time.perf_counter() - began, self._passes.busy_s - busy)
            self._waited_s = max(self._waited_s, inside_s)  # one asks another: it is the same
            return [self._spoiled(draft) for draft in found] if self.wrong else found

        drafter.propose = timed  # type: ignore[method-assign]

    def _spoiled(self, draft: Draft) -> Draft:
        return replace(draft, tokens=tuple((token + 1) % self._n_vocab for token in draft.tokens))


@dataclass(frozen=True, slots=True)
class Outside:
    """Medians over the rounds of one kind."""

    kind: str
    drafts: bool  # of rounds with a draft, or of those without
    us: float
    own_us: float
    rows_us: float  # of them, looking through rows of logits
    round_ms: float
    mean_us: float
    n_rounds: int
    drafted_per_round: float
    stages_us: Mapping[str, float] = field(default_factory=dict)  # means, where they were watched
    unwaited_us: Mapping[str, float] = field(default_factory=dict)  # where nobody waited for drafts
    gaps_us: Mapping[str, float] = field(default_factory=dict)  # of rounds that waited for drafts


def found_of(kind: str, steps: Sequence[Step]) -> list[Outside]:
    """Rounds with a draft and rounds without."""
    found = []
    for drafts in (True, False):
        own = [step for step in steps if (step.n_drafted > 0) == drafts]
        if own:
            us, own_us, rows_us, ms = (
                statistics.median(getattr(step, name) for step in own)
                for name in ("us", "own_us", "rows_us", "ms")
            )
            mean_us = statistics.fmean(step.us for step in own)
            drafted = statistics.fmean(step.n_drafted for step in own)
            waited = [step for step in own if step.gaps is not None]
            others = [step for step in own if step.gaps is None] if waited else []
            stages, unwaited = (
                {name: _mean_us(name, some) for name in ORDER} for some in (own, others)
            )
            n, gaps = len(own), _gaps_us(own)
            found.append(
                Outside(
                    kind, drafts, us, own_us, rows_us, ms, mean_us, n, drafted,
                    stages, unwaited, gaps,
                )
            )  # fmt: skip
    return found


def _gaps_us(steps: Sequence[Step]) -> dict[str, float]:
    """Medians; what is between two passes of the draft model, for each of its tokens."""
    gaps = [step.gaps for step in steps if step.gaps is not None]
    if not gaps:
        return {}
    amid = [gap.amid_s / (gap.n_passes - 1) for gap in gaps if gap.n_passes > 1]
    others = [step.us for step in steps if step.gaps is None]
    return {
        "before": 1e6 * statistics.median(gap.before_s for gap in gaps),
        "amid, each": 1e6 * statistics.median(amid) if amid else 0.0,
        "after": 1e6 * statistics.median(gap.after_s for gap in gaps),
        "passes": statistics.fmean(gap.n_passes for gap in gaps),
        "rounds": len(gaps),
        "all of it": statistics.median(step.us for step in steps if step.gaps is not None),
        "where nobody waited": statistics.median(others) if others else 0.0,
    }


def _mean_us(stage: str, steps: Sequence[Step]) -> float:
    """Of the middle half of the rounds: means add up, and no round that was disturbed counts."""
    spent = sorted(step.stages.get(stage, 0.0) for step in steps)
    quarter = len(spent) // 4
    return 1e6 * statistics.fmean(spent[quarter : len(spent) - quarter] or [0.0])


def measure(parlay: Parlay, args: argparse.Namespace, stages: Stages) -> list[Outside]:
    bare = behind(parlay.engine.bets.proposers[MODEL])
    assert isinstance(bare, DraftModel)
    arms = _arms(parlay, bare, args.kinds)
    meter, steps = Meter(parlay, bare, stages), {kind: list[Step]() for kind in arms}
    for drafter in {bare, *(arm.drafter for arm in arms.values())}:
        assert isinstance(drafter, DraftModel | DraftAhead)
        meter.watch(drafter)
    known = list(load_suite(args.suite).prompts)
    prompts = known[:: max(1, len(known) // (1 + args.prompts))][: 1 + args.prompts]
    end = time.monotonic() + args.seconds
    for i, prompt in enumerate(prompts):  # the first one warms up
        for kind, arm in arms.items():
            meter.wrong = kind == "resting"
            meter.steps.clear()
            arm(prompt, args.tokens)
            steps[kind] += meter.steps if i else []
        if i and time.monotonic() > end:
            break
    return [each for kind, own in steps.items() for each in found_of(kind, own)]


def _arms(parlay: Parlay, bare: DraftModel, kinds: Sequence[str]) -> dict[str, Arm]:
    """Each with a controller of its own, all by the same prices."""
    ahead, first = parlay.engine.bets.proposers[MODEL], parlay.engine.bets.controller
    assert isinstance(first, ProfitController)
    found = {}
    for kind in kinds:
        controller = ProfitController(first.costs.copy(), cutting=parlay.engine.cutting)
        drafter = ahead if kind == "ahead" else bare
        if kind == "ahead" and not isinstance(ahead, DraftAhead):
            print("no draft ahead: both models would share a CPU's cores", file=sys.stderr)
        else:
            window = 0 if kind == "plain" else None
            found[kind] = Arm(parlay, drafter, controller, DRAFTS.get(kind), window)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    args, stages = _arguments(argv), Stages(REST, MEANWHILE)
    for watched in WATCHED if args.stages else ():
        stages.watch(*watched)
    with Parlay(
        resolve_model(args.target),
        draft=f"suffix,{resolve_drafter(args.drafter)}",
        mode="faithful",
        context_size=args.context,
        threads=args.threads,
        draft_ahead="on" if args.force else "auto",
    ) as parlay:
        found = measure(parlay, args, stages)
    for each in found:
        print(told(each))
        if each.gaps_us:
            print(" ", ", ".join(f"{name} {us:.0f}" for name, us in each.gaps_us.items()))
        if args.stages:
            print(*staged(each), sep="\n")
    keep(args.json, found)


def told(found: Outside) -> str:
    drafted = f"{found.drafted_per_round:.1f} tokens drafted"
    return (
        f"{found.kind:8} {drafted if found.drafts else 'nothing drafted':20} {found.us:5.0f} us"
        f" outside llama.cpp (mean {found.mean_us:.0f}; own {found.own_us:.0f}, rows of logits"
        f" {found.rows_us:.0f}) in rounds of {found.round_ms:.2f} ms, {found.n_rounds} of them"
    )


def staged(found: Outside) -> Iterator[str]:
    """A line for each stage that took any time: in all, and where nobody waited for drafts."""
    for stage, us in found.stages_us.items():
        unwaited = found.unwaited_us[stage]
        if max(us, unwaited) >= _LEAST_US:
            yield f"  {us:7.0f} {unwaited:7.0f}  {stage}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--drafter", default="default", help="a GGUF file, or a shipped one")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--stages", action="store_true", help="tell every part of a round apart")
    parser.add_argument("--force", action="store_true", help="draft ahead on a CPU, too")
    parser.add_argument("--suite", default="core-60")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=30, help="no further prompt after so long")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=4096)
    return parsed(parser, argv)


if __name__ == "__main__":
    main()

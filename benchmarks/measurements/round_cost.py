"""What a round costs outside its models: microseconds of Python, by the number of sequences.

Models are scripted: a pass copies real rows of logits and claims its price, by the clock that the
scheduler looks at, so that all that is left is the scheduler's, the bets', the controller's, the
proposers' and the verification's own. With --wait it takes its price, as CUDA does: caches are cold
then, which makes the same code two to four times as slow. `drafter` has suffix
lookup and a draft model, `model` the model alone. In the kind `resting` a block drafter reads the
target's states and is always wrong, so that the controller lets it be.

python -m benchmarks.measurements.round_cost --sequences 1 8 16 32 --json out.json
python -m benchmarks.measurements.round_cost --sequences 16 --kinds suffix --profile
python -m benchmarks.measurements.round_cost --sequences 1 16 --kinds plain suffix --text chat \
  --prices gpu-8b-q5_0-streams --wait --repeats 5
python -m benchmarks.measurements.round_cost --sequences 1 --kinds suffix model --text again \
  --windows 0 3 8 15 --vocabulary 2048 --prices gpu-14b-f16 --draft-ms 0.1 --tokens 1200

The third says what the controller costs where nothing can be won: its rounds over plain ones.
--always: every round is searched, which tells what a search takes. The last one says what a round
costs by its drafted tokens: a text that comes again, so that every draft holds, and rows so short
that it takes no time to look through them.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.between import Between
from benchmarks.shared.record import keep
from parlay.control.prices.cost import CostTable, load_costs, shipped_costs
from parlay.control.prices.curve import MAX_ROWS
from parlay.control.prices.cutting import Cutting
from parlay.control.profit import ProfitController
from parlay.decoding.draft import Draft
from parlay.decoding.span import Span
from parlay.decoding.states import Fed, States
from parlay.engine import scheduler as scheduling
from parlay.engine.bets import Bets
from parlay.engine.exact.composition import Composition
from parlay.engine.exact.exactness import ExactClass
from parlay.engine.padding import Padding
from parlay.engine.request import Mode, Request
from parlay.engine.scheduler import Scheduler
from parlay.engine.sequence import Sequence as Answer
from parlay.engine.slots import Slots
from parlay.proposers.block import DFlashProposer
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.follower import Follower
from parlay.proposers.lookup import Lookup
from parlay.proposers.proposer import Ask, Proposer, Worth
from tests.scripted import ScriptedModel

CONTEXT = 2048
WORDS = 1500  # of the scripted text: so few that pairs of them come again
KINDS = ("plain", "suffix", "model", "drafter", "resting")
TEXTS = ("lines", "chat", "again")
BLOCK, WIDTH = 16, 5 * 5120  # of a block drafter: its tokens, and the states it reads of each


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one pass outside the models, all its sequences together."""

    kind: str
    mode: Mode
    n_sequences: int
    window: int  # the widest there may be
    n_passes: int
    us: float
    least_us: float  # of one in ten: a busy machine has little part in it
    cpu_us: float  # of the thread that runs the rounds; whoever else is on the machine has no part
    round_us: float  # models included
    drafted_per_round: float
    tokens_per_round: float


class Text:
    """What is said at every place: words at random and every second line once more; or, as in a
    chat, few words often and many seldom, so that what followed two of them says little; or the
    same few lines again and again, which no drafter gets wrong."""

    def __init__(self, seed: int, script: Script) -> None:
        rng = np.random.default_rng(seed)
        lines = rng.integers(1, WORDS, (CONTEXT // 8, 8))
        lines[1::4] = lines[::4]
        if script.text == "chat":
            most = script.n_vocab - 2  # the next one is what is said wrongly
            lines = np.minimum(rng.zipf(1.2, CONTEXT), most)
        if script.text == "again":
            lines = np.resize(lines[:5], lines.shape)
        self.tokens: list[int] = [int(token) for token in lines.ravel()]
        unsure = rng.random(CONTEXT) < (0.0 if script.text == "again" else 0.15)
        self.wrong: list[bool] = [bool(x) for x in unsure]


class Clock:
    """The time, and what scripted passes claim to have taken."""

    def __init__(self, *, wait: bool) -> None:
        self._wait = wait
        self._claimed = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self._claimed

    def spend(self, seconds: float) -> None:
        """Let so much time go by."""
        if not self._wait:
            self._claimed += seconds
            return
        time.sleep(seconds)


class Rows(ScriptedModel):
    """Passes that take their price and give rows as large as a real model's."""

    steady = True

    def __init__(
        self,
        clock: Clock,
        texts: Sequence[Text],
        price: Callable[[int, int], float],
        n_vocab: int,
        *,
        drafts: bool,
    ) -> None:
        super().__init__(lambda _history: np.empty(0, np.float32), n_vocab, CONTEXT)
        self._clock, self._texts, self._price, self._drafts = clock, texts, price, drafts
        self._base = np.random.default_rng(0).random(n_vocab, np.float32)
        self._out = np.empty((1024, n_vocab), np.float32)
        self._states = np.ones((1024, WIDTH), np.float32)
        self.cpu_s = 0.0  # of the script itself
        self._until = 0.0  # a pass that was only started takes so long
        self.follower: Follower | None = None  # is told the states of every pass
        self.told: Callable[[float, float], None] = lambda _began, _ended: None  # of every pass

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        began, cpu = self._clock(), time.thread_time()
        found = self._rows(spans)
        self.cpu_s += time.thread_time() - cpu
        self.meanwhile()
        price = self._price(len(spans), sum(len(span.tokens) for span in spans))
        self._clock.spend(max(0.0, price - (self._clock() - began)))
        self.busy_s += (ended := self._clock()) - began
        self.told(began, ended)
        if self.follower is not None:
            self.follower.follow(spans, [self._states[: len(s.tokens)].copy() for s in spans])
        return found

    def start(self, spans: Sequence[Span]) -> None:
        """As a GPU does: it takes its time from here on, whatever else is done."""
        began, cpu = max(self._clock(), self._until), time.thread_time()
        self._started = self._rows(spans)
        self.cpu_s += time.thread_time() - cpu
        self._until = began + self._price(len(spans), sum(len(span.tokens) for span in spans))
        self.told(began, self._until)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self._clock.spend(max(0.0, self._until - self._clock()))
        return super().fetch(spans)

    def _rows(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found, at = [], 0
        for span in spans:
            self.cache.setdefault(span.seq_id, []).extend(span.tokens)
            first = span.start + len(span.tokens) - span.n_padding - span.n_logits
            for i in range(span.n_logits):
                self._out[at + i] = self._base
                self._out[at + i, self._next(span.seq_id, first + i)] = 20.0
            found.append(self._out[at : at + span.n_logits])
            at += span.n_logits
        return found

    def _next(self, seq_id: int, position: int) -> int:
        text, at = self._texts[seq_id], (position + 1) % CONTEXT
        return text.tokens[at] + (self._drafts and text.wrong[at])


class Blocks(Rows):
    """A drafter that fills in blocks, all wrong."""

    layers = (0,)
    width = WIDTH

    def encode(self, states: States) -> States:
        return states

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        self.decode([Span(item.seq_id, item.start, (0,) * len(item.states), 0) for item in fed])
        return [(self._out[:0], item.states[:0]) for item in fed]

    def _next(self, seq_id: int, position: int) -> int:
        return (super()._next(seq_id, position) + 1) % self.n_vocab


class Searching(ProfitController):
    """Lets no round go without a search."""

    def due(self, n_texts: int) -> int:
        super().due(n_texts)
        return n_texts

    def rests(self) -> bool:
        return False


class Words:
    """Every token is a word."""

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    found = []
    ways = product(args.modes, args.sequences, args.windows, range(args.repeats), args.kinds)
    for mode, n, window, _, kind in ways:
        script = Script(
            args.text,
            args.prices,
            args.tokens,
            args.wait,
            args.always,
            window,
            args.vocabulary,
            args.draft_ms,
        )
        cost = measure(kind, mode, n, script, profile=args.profile)
        found.append(cost)
        print(
            f"{kind:8} {mode:9} {n:3} sequences, window {window:2}: {cost.us:7.0f} us a pass"
            f" outside the models ({cost.us / n:.0f} a sequence, {cost.cpu_us:.0f} of CPU,"
            f" {cost.least_us:.0f} in a quick one),"
            f" {cost.drafted_per_round:.2f} tokens drafted and"
            f" {cost.tokens_per_round:.2f} made in {cost.round_us:.0f} us a round",
            file=sys.stderr,
            flush=True,
        )
    for line in _over_plain(found):
        print(line)
    keep(args.json, found)


def _over_plain(found: Sequence[Cost]) -> Iterator[str]:
    """Rounds of the other kinds in plain ones of as many sequences, neighbours in time."""
    plain = [cost for cost in found if cost.kind == "plain"]
    for kind, n in product(KINDS[1:], sorted({cost.n_sequences for cost in found})):
        own = [cost for cost in found if (cost.kind, cost.n_sequences) == (kind, n)]
        base = [cost for cost in plain if cost.n_sequences == n]
        if own and base:
            ratios = [a.round_us / b.round_us for a, b in zip(own, base, strict=True)]
            each = f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"
            yield f"{kind}, {n} sequences: a round takes {each} of a plain one"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--modes", choices=("exact", "faithful"), nargs="+", default=["faithful"])
    parser.add_argument("--text", choices=TEXTS, default=TEXTS[0])
    parser.add_argument("--prices", help="a shipped table; absent: one that fits the sequences")
    parser.add_argument(
        "--windows", type=int, nargs="+", default=[16], help="the widest of a draft"
    )
    parser.add_argument("--draft-ms", type=float, default=0.6, help="of a draft model's token")
    parser.add_argument("--vocabulary", type=int, default=49152, help="words, at least 2,048")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=160, help="of each answer")
    parser.add_argument("--always", action="store_true", help="search in every round")
    parser.add_argument("--wait", action="store_true", help="passes take their time")
    parser.add_argument("--profile", action="store_true", help="which functions take it")
    return parsed(parser, argv)


@dataclass(frozen=True, slots=True)
class Script:
    """What is said, and in what time."""

    text: str
    prices: str | None
    n_tokens: int
    wait: bool
    always: bool = False
    window: int = 16
    n_vocab: int = 49152
    draft_ms: float = 0.6  # a draft model's pass over one sequence

    def draft_s(self, rows: int) -> float:
        """A draft model's pass."""
        return self.draft_ms / 1e3 * (1 + rows / 16)


def measure(kind: str, mode: Mode, n: int, script: Script, *, profile: bool = False) -> Cost:
    """Answers of n sequences at once, and what their passes took beside the models."""
    begun = begin(kind, mode, n, script)
    scheduler, answers = begun.scheduler, begun.answers
    profiler = cProfile.Profile() if profile else None
    steps = []
    if profiler:
        profiler.enable()
    while all(not answer.done for answer in answers):
        steps.append(_timed(begun))
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    scheduler.bets.close()
    return _cost(kind, mode, script.window, answers, steps)


@dataclass(frozen=True, slots=True)
class Begun:
    """Answers in their middle."""

    scheduler: Scheduler
    answers: list[Answer]
    clock: Clock
    models: Sequence[Rows]  # whose passes the rounds' thread makes, the target first
    between: Between  # the draft model's passes


def begin(kind: str, mode: Mode, n: int, script: Script) -> Begun:
    """Models and a scheduler for n answers, each of which has said something."""
    texts, costs = [Text(i, script) for i in range(n)], _prices(n, script, kind)
    clock = Clock(wait=script.wait)
    scheduling.perf_counter = clock  # type: ignore[attr-defined]
    target = Rows(
        clock,
        texts,
        lambda n, rows: costs.curve(1, n).steady[min(rows, MAX_ROWS)],
        script.n_vocab,
        drafts=False,
    )
    drafter = (Blocks if kind == "resting" else Rows)(
        clock, texts, lambda n, _rows: script.draft_s(n), script.n_vocab, drafts=True
    )
    proposers = _proposers(kind, target, drafter)
    controller = (Searching if script.always else ProfitController)(costs.copy())
    scheduler = _scheduler(target, proposers, controller, mode, n, script.window)
    answers = [_start(scheduler, text, script.n_tokens) for text in texts]
    while any(answer.n_generated < 2 for answer in answers):
        scheduler.step()
    between = Between()
    target.told, drafter.told = between.verified, between.drafted
    if "model" in proposers:
        _watch(between, proposers["model"])
    return Begun(scheduler, answers, clock, (target, drafter), between)


def _watch(between: Between, model: Proposer) -> None:
    """A round waits for a draft model that makes passes for it."""
    made = model.draft

    def waited(asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        between.wait()
        return made(asks, worth)

    model.draft = waited  # type: ignore[method-assign]


def _proposers(kind: str, target: Rows, drafter: Rows) -> dict[str, Proposer]:
    found: dict[str, Proposer] = {}
    limits = DraftLimits(frozenset(), target.n_vocab, 512)
    if kind not in ("plain", "resting", "model"):
        found["suffix"] = Lookup()
    if kind in ("drafter", "model"):
        found["model"] = DraftModel(drafter, limits)
    if isinstance(drafter, Blocks):
        target.follower = found["model"] = DFlashProposer(
            drafter, limits, block_size=BLOCK, mask=0, name="model"
        )
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one step."""

    all_s: float
    outside_s: float
    cpu_s: float


def _timed(begun: Begun) -> Step:
    clock, models = begun.clock, begun.models
    began, busy = clock(), models[0].busy_s
    cpu, script = time.thread_time(), sum(model.cpu_s for model in models)
    begun.scheduler.step()
    cpu_s = time.thread_time() - cpu - (sum(model.cpu_s for model in models) - script)
    all_s, inside_s = clock() - began, models[0].busy_s - busy + begun.between.inside_s
    return Step(all_s, all_s - inside_s, cpu_s)


def _cost(
    kind: str, mode: Mode, window: int, answers: Sequence[Answer], steps: Sequence[Step]
) -> Cost:
    """Medians, or means without the slowest: what the system does in between is not a round's."""
    rounds = [r for answer in answers for r in answer.rounds]
    drafted = statistics.fmean(r.n_drafted + r.n_dropped for r in rounds)
    made = statistics.fmean(r.n_generated for r in rounds)
    outside_s = sorted(step.outside_s for step in steps)
    us, least_us = 1e6 * statistics.median(outside_s), 1e6 * outside_s[len(steps) // 10]
    cpu_us = 1e6 * statistics.median(step.cpu_s for step in steps)
    usual = sorted(step.all_s for step in steps)[: len(steps) - len(steps) // 50]
    round_us = 1e6 * statistics.fmean(usual)
    n = len(answers)
    return Cost(kind, mode, n, window, len(steps), us, least_us, cpu_us, round_us, drafted, made)


def _prices(n: int, script: Script, kind: str) -> CostTable:
    """Of an H200: a 27B that answers one, an 8B that answers several, with a drafter of 0.6 ms."""
    name = script.prices or ("gpu-27b-q5_0" if n == 1 else "gpu-8b-q5_0-streams")
    path = next(path for path in shipped_costs() if path.stem == name)
    record = load_costs(path).to_dict()
    steady = {str(b): 1e3 * script.draft_s(b) for b in (1, 2, 4, 8, 16, 32, 64)}
    record["drafter"] = {"steady_ms": steady, "single_steps": True}
    if kind == "resting":
        block = {"steady_ms": {str(b): 1e3 * script.draft_s(b) for b in (2, BLOCK)}}
        record["drafter"] |= {"single_steps": False, "longest": BLOCK - 1, "block": block}
    return CostTable.from_dict(record)


def _scheduler(
    target: Rows,
    proposers: dict[str, Proposer],
    controller: ProfitController,
    mode: Mode,
    n: int,
    window: int,
) -> Scheduler:
    slots = Slots(target, n)
    bands = frozenset(range(16))
    together = frozenset((m, rows) for m in range(2, n + 1) for rows in range(1, 9))
    company = frozenset((m, band) for m in range(2, n + 1) for band in bands)
    found = ExactClass(frozenset(range(1, 18)), together, bands=bands, company=company)
    return Scheduler(
        target,
        slots,
        Bets(controller, proposers, frozenset({"suffix"}), CONTEXT, window),
        Composition(found, CONTEXT),
        Padding(target, slots, Cutting(), controller.prices),
        mode=mode,
        ends=frozenset(),
        chunk=512,
        n_batch=1024,
    )


def _start(scheduler: Scheduler, text: Text, n_tokens: int) -> Answer:
    request = Request(tuple(text.tokens[:200]), max_tokens=n_tokens)
    answer = Answer(request, Words(), frozenset(), lambda _answer, _pieces: None)
    scheduler.add(answer)
    return answer


if __name__ == "__main__":
    main()

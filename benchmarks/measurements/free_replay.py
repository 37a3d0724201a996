"""What free drafts would bring by recorded prices: every round counted, none timed.

    python -m benchmarks.measurements.free_replay --record texts.json      # once, with the model
    python -m benchmarks.measurements.free_replay --texts texts.json --prices gpu-14b-f16

A scripted target says again what the model said under its grammars (structured-24), or the edits
that were asked for (edits-16); scheduler, proposers and controller are the real ones. A pass takes
its price by a recorded table, a search and the rest of a round what the options say, by a clock of
their own: so the same code gives the same figures on every machine. Arms: as in `free_drafts`.
`lost`: tokens that came alone, by who could have drafted them and did not, or was not bet on.
`--drafter 0.8`: a draft model at the table's price is loaded, too, and is right so often.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.free_drafts import expected_by
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from benchmarks.shared.wanted_edits import wanted
from parlay import Parlay
from parlay.bench.suite import Prompt, load_suite
from parlay.control.prices.cost import CostTable, load_costs, shipped_costs
from parlay.control.prices.cutting import Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.profit import ProfitController
from parlay.decoding.draft import Draft
from parlay.decoding.masks import members
from parlay.decoding.round import Round
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span, common_prefix
from parlay.engine import bets as betting
from parlay.engine import scheduler as scheduling
from parlay.engine.bets import Bets
from parlay.engine.exact.composition import Composition
from parlay.engine.exact.exactness import ExactClass
from parlay.engine.padding import Padding
from parlay.engine.request import Request
from parlay.engine.scheduler import Scheduler
from parlay.engine.sequence import Sequence as Answer
from parlay.engine.slots import Slots
from parlay.engine.structured.grammar import Grammars
from parlay.hub.resolving import resolve_model
from parlay.llama.vocabulary import Detokenizer, Vocabulary
from parlay.llama.vocabulary_only import open_vocabulary
from parlay.proposers.lookup import Lookup
from parlay.proposers.prediction import PREDICTION, PredictionProposer
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.skeleton import SKELETON, SkeletonProposer
from tests.scripted import ScriptedModel

SUITES: Final = {"structured-24": SKELETON, "edits-16": PREDICTION}
CONTEXT: Final = 4096
WIDEST, MOST_ROWS = 16, 64  # as engines have them
FREE: Final = frozenset({"suffix", PREDICTION, SKELETON})
ARMS: Final = ("plain", "all", "free", "others", "wrong")
DRAFTER: Final = "model"
_EASY: Final = (0.2, 1.0, 2.5)  # powers of a drafter's share of right tokens: some are easier


@dataclass(frozen=True, slots=True)
class Said:
    """One answer as it came: tokens, the end among them if it was reached."""

    id: str
    suite: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, one: Mapping[str, Any]) -> Said:
        return cls(one["id"], one["suite"], tuple(one["prompt"]), tuple(one["tokens"]))


@dataclass(slots=True)
class Clock:
    """Time as it is told to go by."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class Charges:
    """Seconds of a round outside its pass."""

    search_s: float
    forced_s: float  # more, where a grammar forces something
    rest_s: float


class Saying(ScriptedModel):
    """Says a text again, each pass at its price."""

    steady = True

    def __init__(self, clock: Clock, costs: CostTable, charges: Charges, n_vocab: int) -> None:
        super().__init__(lambda _history: np.empty(0, np.float32), n_vocab, CONTEXT)
        self._clock, self._costs, self._charges = clock, costs, charges
        self._out = np.zeros((CONTEXT, n_vocab), np.float32)
        self._last, self._settled = 1, True
        self.text: tuple[int, ...] = ()

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        (span,) = spans
        rows = len(span.tokens)
        self.meanwhile()
        if rows <= MOST_ROWS:  # no prompt
            pass_s = self._pass_s(rows, span.start)
            self._clock.spend(pass_s + self._charges.rest_s)
            self.busy_s += pass_s
        self.cache.setdefault(span.seq_id, []).extend(span.tokens)
        first = span.start + rows - span.n_padding - span.n_logits
        self._out[: span.n_logits] = 0.0
        for i in range(span.n_logits):
            if first + i + 1 < len(self.text):
                self._out[i, self.text[first + i + 1]] = 20.0
        return [self._out[: span.n_logits]]

    def _pass_s(self, rows: int, n_context: int) -> float:
        curve, changed = self._costs.curve(n_context, 1), rows != self._last
        settling_s = 0.0 if changed or self._settled else curve.settling_s
        self._last, self._settled = rows, not changed
        return curve.of(rows, changed) + settling_s


class Drafter(Proposer):
    """Drafts the text that will be said, right as often as it should be; takes a drafter's time."""

    name, continues = DRAFTER, True

    def __init__(self, clock: Clock, cost: DrafterCost, right: float) -> None:
        self._clock, self._cost, self._right = clock, cost, right
        self._read: list[int] = []  # what its cache would hold
        self.text: tuple[int, ...] = ()

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        return [self._draft(ask, worth) for ask in asks]

    def _draft(self, ask: Ask, worth: Worth | None) -> Draft:
        said = list(ask.tokens)
        n_missing = max(1, len(said) - common_prefix(self._read, said))
        self._clock.spend(self._cost.catch_up_s(n_missing))
        sure: list[float] = []
        follows = said == list(self.text[: len(said)])
        while len(sure) < ask.window:
            if sure and worth is not None and ask.seq_id not in worth({ask.seq_id: sure}):
                break
            if sure:
                self._clock.spend(self._cost.step_s())
            token, likely = self._next(said, follows, ask)
            follows = follows and [token] == list(self.text[len(said) : len(said) + 1])
            said.append(token)
            sure.append(likely)
        self._read = said[:-1]
        return Draft(tuple(said[len(ask.tokens) :]), DRAFTER, tuple(sure))

    def _next(self, said: Sequence[int], follows: bool, ask: Ask) -> tuple[int, float]:
        """A wrong token is one that the grammar lets come: drafters obey it."""
        at = len(said)
        chance = np.random.default_rng((len(self.text), at))
        likely = self._right ** _EASY[chance.integers(len(_EASY))]
        right = follows and at < len(self.text) and chance.random() < likely
        if right:
            return self.text[at], likely
        held = ask.constraint
        may = None if held is None else held.allowed(said[len(ask.tokens) - ask.n_ahead :])
        return (int(said[-1]) if may is None else members(may)[0]), likely

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self._read = []


class Searching(Bets):
    """Bets whose search takes a given time, where there is one."""

    clock: Clock
    charges: Charges

    def _offers(self, names: Sequence[str], *args: Any) -> Mapping[str, Draft]:
        found = super()._offers(names, *args)
        if names:
            forced = SKELETON in found and found[SKELETON].tokens
            self.clock.spend(self.charges.search_s + (self.charges.forced_s if forced else 0.0))
        return found


@dataclass(slots=True)
class Counted:
    """What the rounds of one answer came to."""

    n_tokens: int
    seconds: float
    rounds: list[Round]
    lost: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.n_tokens / self.seconds

    def told(self, plain: Counted) -> dict[str, Any]:
        n = len(self.rounds)
        return {
            "over_plain": round(self.rate / plain.rate, 3),
            "tokens": self.n_tokens,
            "rounds": n,
            "tokens_per_round": round(self.n_tokens / n, 2),
            "drafted": sum(r.n_drafted for r in self.rounds),
            "accepted": sum(r.n_accepted for r in self.rounds),
            "alone": sum(r.n_generated == 1 for r in self.rounds),
            "lost": dict(self.lost.most_common()),
        }


class Rig:
    """Scheduler, proposers and a controller that keeps what it learns from answer to answer."""

    def __init__(
        self, vocabulary: Vocabulary, costs: CostTable, charges: Charges, right: float | None = None
    ) -> None:
        """`right`: of a draft model's tokens; None: there is none."""
        self.clock = Clock()
        self._vocabulary, self._grammars = vocabulary, Grammars(vocabulary)
        self._target = Saying(self.clock, costs, charges, vocabulary.size)
        self.controller = ProfitController(costs.copy())
        proposers: dict[str, Proposer] = {
            PREDICTION: PredictionProposer(),
            SKELETON: SkeletonProposer(),
            "suffix": Lookup(),
        }
        self._drafter = None
        if right is not None and costs.drafter is not None:
            self._drafter = proposers[DRAFTER] = Drafter(self.clock, costs.drafter, right)
        bets = Searching(self.controller, proposers, FREE, CONTEXT, WIDEST, MOST_ROWS)
        bets.clock, bets.charges = self.clock, charges
        slots = Slots(self._target, 1)
        self._scheduler = Scheduler(
            self._target,
            slots,
            bets,
            Composition(ExactClass(frozenset({1}), frozenset()), CONTEXT),
            Padding(self._target, slots, Cutting(), self.controller.prices),
            mode="faithful",
            ends=vocabulary.ends,
            chunk=512,
            n_batch=CONTEXT,
        )

    def names(self, arm: str, suite: str) -> tuple[str, ...]:
        """The proposers of an arm."""
        free = SUITES[suite]
        if arm == "plain":
            return ()
        if arm in ("free", "wrong"):
            return (free,)
        loaded = ("suffix",) if self._drafter is None else ("suffix", DRAFTER)
        return (*loaded, free) if arm == "all" else loaded

    def play(self, said: Said, prompt: Prompt, names: Sequence[str], expected: str) -> Counted:
        """One answer from its first token on."""
        self._target.text = (*said.prompt, *said.tokens)
        if self._drafter is not None:
            self._drafter.text = self._target.text
        held = None
        if prompt.json_schema is not None:
            held = self._grammars.constraint(self._grammars.json_schema(prompt.json_schema))
        request = Request(
            said.prompt,
            max_tokens=len(said.tokens) + (said.tokens[-1] in self._vocabulary.ends) * 64,
            sampling=Sampling(temperature=0.0),
            proposers=tuple(names),
            expected=tuple(self._vocabulary.continuation(expected) if expected else ()),
            constraint=held,
        )
        answer = Answer(request, Detokenizer(self._vocabulary), self._vocabulary.ends, _nobody)
        seconds = self._run(answer)
        assert tuple(answer.tokens[len(said.prompt) :]) == said.tokens, f"{said.id} differs"
        rounds = list(answer.rounds)
        return Counted(answer.n_generated - 1, seconds, rounds, _lost(rounds))

    def _run(self, answer: Answer) -> float:
        """Seconds from the first token to the last."""
        with ExitStack() as patched:
            for module in (scheduling, betting):  # whatever books seconds books the clock's
                patched.enter_context(patch.object(module, "perf_counter", self.clock))
            self._scheduler.add(answer)
            while not answer.n_generated:
                self._scheduler.step()
            began = self.clock()
            while not answer.done:
                self._scheduler.step()
        return self.clock() - began


def _lost(rounds: Sequence[Round]) -> Counter[str]:
    """Rounds of one token: who could have drafted it and was not bet on, or that nobody could."""
    found: Counter[str] = Counter()
    for r in rounds:
        if r.n_generated > 1:
            continue
        right = sorted(name for name, n in r.agreed.items() if n)
        offered = "" if not r.agreed else " of those who offered"
        why = f"bet on {r.proposer}" if r.n_drafted else str(r.fallback).rpartition(".")[2].lower()
        found[f"{'+'.join(right) or 'nobody' + offered}, {why}"] += 1
    return found


def _nobody(_answer: Answer, _pieces: object) -> None:
    """Nobody reads it."""


def main() -> None:
    args = _arguments()
    if args.record:
        args.record.write_text(json.dumps(record(args.model, args.tokens)), "utf-8")
        return
    texts = [Said.of(one) for one in json.loads(args.texts.read_text("utf-8"))]
    found = {}
    with open_vocabulary(resolve_model(args.model)) as vocabulary:
        for name in args.prices:
            found[name] = replay(vocabulary, _prices(name), texts, args)
    keep(args.json, found)


def _prices(name: str) -> CostTable:
    """A table by its file, or one that is shipped by its name."""
    shipped = {path.stem: path for path in shipped_costs()}
    return load_costs(shipped.get(name, Path(name)))


def replay(
    vocabulary: Vocabulary, costs: CostTable, texts: Sequence[Said], args: argparse.Namespace
) -> dict[str, Any]:
    """All texts of every arm under one table."""
    charges, found = Charges(*(us / 1e6 for us in args.outside_us)), {}
    for suite in SUITES:
        arms = [a for a in args.arms if a != "wrong" or suite == "edits-16"]
        rigs = {arm: Rig(vocabulary, costs, charges, args.drafter) for arm in ("plain", *arms)}
        rows = {
            said.id: _row(rigs, said, load_suite(suite).prompts)
            for said in texts
            if said.suite == suite
        }
        if rows:
            found[suite] = {"prompts": rows, "arms": {arm: _all(rows, arm) for arm in arms}}
            for arm, one in found[suite]["arms"].items():
                print(f"{costs.name}: {suite} {arm}: {json.dumps(one)}", flush=True)
    return found


def _row(rigs: Mapping[str, Rig], said: Said, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """One text in every arm."""
    prompt = next(prompt for prompt in prompts if prompt.id == said.id)
    played = {
        arm: rig.play(said, prompt, rig.names(arm, said.suite), expected_by(arm, prompt, prompts))
        for arm, rig in rigs.items()
    }
    row = {arm: one.told(played["plain"]) for arm, one in played.items() if arm != "plain"}
    each = (
        f"{arm} {one['over_plain']:.2f} ({one['tokens_per_round']:.2f} tokens a round, "
        f"{one['accepted']} of {one['drafted']})"
        for arm, one in row.items()
    )
    print(f"{said.id:18} {', '.join(each)}", flush=True)
    return row


def _all(rows: Mapping[str, Mapping[str, Any]], arm: str) -> dict[str, Any]:
    """The geometric mean over prompts, and sums."""
    ones = [row[arm] for row in rows.values()]
    mean = math.exp(sum(math.log(one["over_plain"]) for one in ones) / len(ones))
    sums = {
        name: sum(one[name] for one in ones)
        for name in ("tokens", "rounds", "drafted", "accepted", "alone")
    }
    lost: Counter[str] = Counter()
    for one in ones:
        lost.update(one["lost"])
    return {
        "over_plain": round(mean, 3),
        "tokens_per_round": round(sums["tokens"] / sums["rounds"], 3),
        **sums,
        "lost": dict(lost.most_common()),
    }


def record(model: str, tokens: int) -> list[dict[str, Any]]:
    """What the model says to structured-24, and the edits of edits-16 as its tokens."""
    with Parlay(model, draft="suffix", context_size=CONTEXT) as parlay:
        return [
            {
                "id": prompt.id,
                "suite": suite,
                "prompt": parlay.tokens(prompt.messages),
                "tokens": _told(parlay, prompt, tokens),
            }
            for suite in SUITES
            for prompt in load_suite(suite).prompts
        ]


def _told(parlay: Parlay, prompt: Prompt, tokens: int) -> list[int]:
    vocabulary = parlay.engine.model.vocabulary
    if prompt.prediction is not None:
        edit = wanted(prompt.id, prompt.prediction)
        return [*vocabulary.continuation(edit), vocabulary.eos][:tokens]
    n = min(tokens, prompt.max_tokens or tokens)
    stream = parlay.stream(
        prompt.messages,
        json_schema=prompt.json_schema,
        draft="none",
        max_tokens=n,
        temperature=0.0,
    )
    assert stream.answer.finish_reason != "error" and stream.sequence is not None
    return stream.sequence.tokens[len(stream.sequence.request.prompt) :]


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default", help="whose vocabulary, or texts")
    parser.add_argument("--record", type=Path, help="have the model say the texts, into this file")
    parser.add_argument("--texts", type=Path, default=Path("texts.json"), help="recorded so")
    parser.add_argument("--tokens", type=int, default=192, help="of each answer, at most")
    parser.add_argument("--prices", nargs="+", default=["gpu-27b-q5_0", "gpu-14b-f16"])
    parser.add_argument("--drafter", type=float, help="a draft model that is right so often")
    parser.add_argument("--arms", nargs="+", choices=ARMS[1:], default=["all"])
    parser.add_argument(
        "--outside-us",
        type=float,
        nargs=3,
        default=(250.0, 430.0, 230.0),
        metavar=("SEARCH", "FORCED", "REST"),
        help="of a round: to search, more where a grammar forces something, all the rest",
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Exactness on this device: the classes of passes, texts compared with plain decoding, the price.

  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH           the texts, then the speed
  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH --texts   the texts only
  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH --speed   the speed only
  python -m benchmarks.proofs.exact_classes MODEL --classes                the classes only
  python -m benchmarks.proofs.exact_classes default --drafter default --prompts 4 --tokens 32

The reference is an engine without proposers, each prompt asked alone of a cold cache. Compared with
it: no proposer, suffix, the draft model at each window of the class, the controller; alone and as
one of --slots; cold, warm (asked again) and as a second turn; greedy and drawn with a seed. Every
prompt meets each of these, not all of them at once: benchmarks/shared/text_cases.py says how they
are spread, and --rounds 2 adds the other half. The speed is that of exact mode over faithful mode
and over plain decoding, all in one engine, interleaved prompt by prompt, and all say the same text.
--seconds ends it early, and what is left is counted. --out holds what is known after every case:
the same command again goes on from there, whatever ended the one before. Ends with 1 if a text that
says exact differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, recorded, shown
from benchmarks.shared.text_cases import COLD, DRAWN, GREEDY, SECOND, Case, chains, way_of
from benchmarks.shared.told import told
from parlay import Answer, Parlay
from parlay.bench.suite import load_suite
from parlay.engine.start import MODEL
from parlay.hub.resolving import resolve_model
from parlay.models import SHIPPED_DRAFTERS
from parlay.parlay import Stream

Messages = list[dict[str, Any]]
Options = dict[str, Any]
Kind = tuple[str, str, str, str]  # arm, company, turn, way
WAYS: dict[str, Options] = {
    GREEDY: {"temperature": 0.0},
    DRAWN: {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
NEXT = {"role": "user", "content": "Say that again in one short sentence."}
# Of the time for texts, at most this part goes to what they are compared with.
_REFERENCE = 0.5


@dataclass(frozen=True)
class Outcome:
    """One answer beside the reference's."""

    arm: str
    company: str
    turn: str
    way: str
    same: bool
    exact: bool
    drafted: int
    accepted: int

    @property
    def kind(self) -> Kind:
        return self.arm, self.company, self.turn, self.way


@dataclass
class Results:
    """What is known so far, kept on disk as it grows."""

    path: Path | None
    asked: Options  # what the texts depend on; a file of another question is not gone on with
    deadline: float = float("inf")
    facts: Options = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)  # the reference's texts
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)  # by mode

    @classmethod
    def of(cls, path: Path | None, asked: Options) -> Results:
        """With what an earlier run left there."""
        made = cls(path, asked)
        if path is None or not path.exists():
            return made
        kept = json.loads(path.read_text("utf-8"))
        if kept.get("asked") != asked:
            sys.exit(f"{path} holds answers to {kept.get('asked')}, not {asked}: name another file")
        made.facts, made.plain, made.rates = kept["facts"], kept["plain"], kept["rates"]
        made.outcomes = {name: Outcome(**each) for name, each in kept["outcomes"].items()}
        say(f"{path}: {len(made.outcomes)} answers are there already")
        return made

    @property
    def late(self) -> bool:
        return time.time() > self.deadline

    @property
    def wrong(self) -> int:
        return sum(each.exact and not each.same for each in self.outcomes.values())

    def save(self, **facts: Any) -> None:
        self.facts |= facts
        if self.path is None:
            return
        whole = {
            "facts": self.facts,
            "asked": self.asked,
            "lines": list(lines(self.outcomes.values())),
            "plain": self.plain,
            "rates": self.rates,
            "outcomes": {name: asdict(each) for name, each in self.outcomes.items()},
        }
        part = self.path.with_suffix(".part")  # whoever ends us here leaves the last whole file
        part.write_text(json.dumps(whole, indent=1), "utf-8")
        part.replace(self.path)


def lines(found: Iterable[Outcome]) -> Iterator[str]:
    """A line for each kind of case: how many texts are equal, and how many say that they are."""
    kinds: dict[Kind, list[Outcome]] = defaultdict(list)
    for each in found:
        kinds[each.kind].append(each)
    for kind, own in sorted(kinds.items()):
        yield (
            f"{', '.join(kind)}: {sum(e.same for e in own)} equal of {len(own)},"
            f" {sum(e.exact for e in own)} say exact,"
            f" {sum(e.accepted for e in own)} accepted of {sum(e.drafted for e in own)} drafted"
        )


def summary(found: Sequence[Outcome]) -> Iterator[str]:
    """As in docs/explanation/exactness.md: texts that are equal, by what proposed them."""
    arms = sorted({each.arm for each in found})
    yield f"| | {' | '.join(arms)} |"
    yield "|---" * (1 + len(arms)) + "|"
    for what in ("company", "turn", "way"):
        for value in sorted({str(getattr(each, what)) for each in found}):
            own = [each for each in found if getattr(each, what) == value]
            cells = [[each.same for each in own if each.arm == arm] for arm in arms]
            yield f"| {value} | {' | '.join(f'{sum(c)} of {len(c)}' for c in cells)} |"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prompts(n: int) -> list[Messages]:
    """A spread over the suite, tools left out."""
    every = [list(p.messages) for p in load_suite("core-60").prompts if not p.tools]
    return every[:: max(1, len(every) // n)][:n]


def opened(args: argparse.Namespace, draft: str, slots: int, **options: Any) -> Parlay:
    size, threads = args.context, args.threads
    return Parlay(
        args.target, draft=draft, slots=slots, context_size=size, threads=threads, **options
    )


def forget(parlay: Parlay) -> None:
    """Empty the slots: the next prompt is read cold."""
    erased, slots = threading.Event(), parlay.engine.slots

    def erase() -> None:
        for slot in slots.all:
            slots.erase(slot.seq_id, slot.owner)
        erased.set()

    parlay.engine.call(erase)
    erased.wait()


# -- the texts ------------------------------------------------------------------------------------


class Texts:
    """The proof for one class, round by round."""

    def __init__(self, args: argparse.Namespace, results: Results, name: str) -> None:
        self._args = args
        self._results = results
        self._options: Options = {"mode": "exact", "exact_class": name, "prompt_cache_mb": 0}

    def run(self, round_: int, until: float) -> None:
        """As much of a round as there is time for."""
        results = self._results
        results.deadline = time.time() + _REFERENCE * (until - time.time())
        self._read(round_)
        results.deadline = until
        with opened(self._args, self._args.draft, self._args.slots, **self._options) as parlay:
            found = parlay.engine.chosen.found
            arms = arms_of([found.limit - 1], self._args)
            results.save(arms=list(arms), classes=[found.to_dict()])
            n = len(self._args.texts)
            for chain in chains(n, list(arms), self._args.slots, round_):
                if not results.late:
                    self._follow(parlay, chain, round_, arms)

    def _read(self, round_: int) -> None:
        """The reference: without proposers, alone, from cold caches."""
        n = len(self._args.texts)
        missing = [p for p in range(n) if _key(p, way_of(p, round_), SECOND) not in self._plain]
        if not missing:
            return
        with opened(self._args, "none", self._args.slots, **self._options) as parlay:
            for prompt in missing:
                if self._results.late:
                    return
                way = way_of(prompt, round_)
                for turn in (COLD, SECOND):
                    forget(parlay)
                    answer = self._asked(parlay, prompt, turn, way, {"draft": "none"}).answer
                    self._plain[_key(prompt, way, turn)] = answer.text
                self._results.save()

    @property
    def _plain(self) -> dict[str, str]:
        return self._results.plain

    def _asked(self, parlay: Parlay, prompt: int, turn: str, way: str, options: Options) -> Stream:
        text, limit = self._args.texts[prompt], self._args.tokens
        if turn == SECOND:
            said = {"role": "assistant", "content": self._plain[_key(prompt, way, COLD)]}
            text, limit = [*text, said, NEXT], self._args.second_tokens
        return parlay.stream(text, max_tokens=limit, **WAYS[way], **options)

    def _follow(
        self, parlay: Parlay, chain: Sequence[Case], round_: int, arms: dict[str, Options]
    ) -> None:
        """A chain that was cut is begun again: its later turns go on from the earlier ones."""
        own = [p for p in chain[0].prompts if _key(p, way_of(p, round_), SECOND) in self._plain]
        if not own or all(
            _name(case, p, round_) in self._results.outcomes for case in chain for p in own
        ):
            return
        forget(parlay)
        for case in chain:
            streams = {
                p: self._asked(parlay, p, case.turn, way_of(p, round_), arms[case.arm]) for p in own
            }
            for p, stream in streams.items():
                self._results.outcomes[_name(case, p, round_)] = self._compared(
                    case, p, round_, stream.answer
                )
        self._results.save()

    def _compared(self, case: Case, prompt: int, round_: int, answer: Answer) -> Outcome:
        way, counts = way_of(prompt, round_), answer.speculation
        turn = SECOND if case.turn == SECOND else COLD
        same = answer.text == self._plain[_key(prompt, way, turn)]
        return Outcome(
            case.arm,
            case.company,
            case.turn,
            way,
            same,
            answer.exact,
            counts.n_drafted,
            counts.n_accepted,
        )


def _key(prompt: int, way: str, turn: str) -> str:
    return f"{prompt}, {way}, {turn}"


def _name(case: Case, prompt: int, round_: int) -> str:
    return f"{round_}: {prompt}, {case.arm}, {case.company}, {case.turn}"


def arms_of(widest: Sequence[int], args: argparse.Namespace) -> dict[str, Options]:
    """Who proposes, and what a request says to have it so; `widest`: windows of the class, and of
    the one of texts that repeat themselves."""
    windows = range(1, min(widest[0], args.widest) + 1) if args.drafter is not None else ()
    return {
        "controller": {},
        **{f"model at {n}": {"draft": MODEL, "window": n} for n in windows},
        "suffix": {"draft": "suffix", "window": max(widest)},
        "none": {"draft": "none"},
    }


def texts(args: argparse.Namespace, results: Results, until: float) -> str:
    """All rounds; returns the class."""
    name = args.exact_class or results.facts.get("class") or chosen_class(args)
    results.save(**{"class": name})
    proof = Texts(args, results, name)
    for round_ in range(args.rounds):
        if not (round_ and results.late):
            proof.run(round_, until)
    n_wanted = args.rounds * n_cases(results.facts["arms"], args)
    results.save(left=n_wanted - len(results.outcomes))
    return name


def n_cases(arms: Sequence[str], args: argparse.Namespace) -> int:
    every = chains(len(args.texts), arms, args.slots, 0)
    return sum(len(case.prompts) for chain in every for case in chain)


def chosen_class(args: argparse.Namespace) -> str:
    """What an engine with these proposers chooses by price."""
    with opened(args, args.draft, args.slots, mode="exact") as parlay:
        return parlay.engine.exact_name


# -- the speed ------------------------------------------------------------------------------------

MODES: dict[str, Options] = {
    "exact": {"mode": "exact", "temperature": 0.0},
    "faithful": {"mode": "faithful", "temperature": 0.0},
    "plain": {"mode": "faithful", "draft": "none", "temperature": 0.0},
}


def speed(args: argparse.Namespace, results: Results, name: str | None) -> Options:
    """Each prompt in every mode, one after the other, in turns. All say the same, since their own
    texts part, and where one happens to repeat itself is no price of exactness. Before it counts,
    all is said once in exact mode: a class is tried once after texts so long, and that is kept."""
    rates = {mode: results.rates.setdefault(mode, []) for mode in MODES}
    done = min(map(len, rates.values()))
    with opened(args, args.draft, 1, mode="exact", exact_class=name) as parlay:
        said = {i: _said(parlay, args.texts[i], args.tokens) for i in range(done, len(args.texts))}
        for i, tokens in said.items():
            _rate(parlay, args.texts[i], tokens, "exact")
        for i, tokens in said.items():
            if results.late:
                say(f"speed: {len(args.texts) - i} prompts left")
                break
            for mode in [*MODES, *MODES][i % 3 : i % 3 + 3]:
                rates[mode][i:] = [_rate(parlay, args.texts[i], tokens, mode)]
            results.save()
        found = {"class": parlay.engine.exact_name, "four_rows": _four_rows(parlay)}
    n = min(map(len, rates.values()))
    pairs = (("exact", "faithful"), ("exact", "plain"), ("faithful", "plain"))
    if n < 2:
        return found
    ratios = {f"{a} over {b}": ratio_of_prompts(rates[a][:n], rates[b][:n]) for a, b in pairs}
    for what, ratio in ratios.items():
        say(f"speed in class {found['class']}, {what}: {shown(ratio)}")
    return {**found, **{w: recorded(r) for w, r in ratios.items()}}


def _said(parlay: Parlay, text: Messages, n: int) -> Sequence[int]:
    """What plain decoding says by itself."""
    return parlay.generate(text, max_tokens=n, **MODES["plain"]).tokens


def _rate(parlay: Parlay, text: Messages, said: Sequence[int], mode: str) -> float:
    """Tokens per second of an answer that is told."""
    with told(parlay, said, len(parlay.tokens(text))):
        return parlay.generate(text, max_tokens=len(said), **MODES[mode]).tokens_per_second


def _four_rows(parlay: Parlay) -> float | None:
    """A pass over four rows, over one of one row: what the goal depends on."""
    prices = parlay.engine.prices
    if prices is None:
        return None
    steady = prices.curve(256, 1).steady
    return round(steady[4] / steady[1], 3)


def show_classes(args: argparse.Namespace) -> Options:
    """Every class, with what its plain passes cost over one of one row."""
    with opened(args, args.draft, args.slots, mode="exact") as parlay:
        chosen, prices = parlay.engine.chosen, parlay.engine.prices
        found = chosen.found
        steady = None if prices is None else prices.curve(256, 1).steady
        price = "" if steady is None else f", plain {steady[found.floor] / steady[1]:.2f}"
        say(f"{found.name}{price}: {json.dumps(found.to_dict())}")
        return {"chosen": found.name, "classes": [found.to_dict()]}


def parsed() -> argparse.Namespace:
    ap = parser_of(__doc__)
    ap.add_argument("model")
    ap.add_argument("--drafter", help="a draft model's file, or a shipped one's name")
    only = ap.add_mutually_exclusive_group()
    only.add_argument("--classes", action="store_true", help="look for the classes, and stop")
    only.add_argument("--speed", action="store_true", help="measure the speed, and stop")
    only.add_argument("--texts", action="store_true", help="compare texts, and stop")
    ap.add_argument("--exact-class", help="run in this class instead of the cheapest")
    ap.add_argument("--prompts", type=int, default=20)
    ap.add_argument("--tokens", type=int, default=96)
    ap.add_argument("--second-tokens", type=int, default=32, help="of a second turn's answer")
    ap.add_argument("--rounds", type=int, default=1, choices=(1, 2), help="2: both ways of drawing")
    ap.add_argument("--widest", type=int, default=16, help="window of the draft model at most")
    ap.add_argument("--slots", type=int, default=4, help="how many are asked at once")
    ap.add_argument("--threads", type=int, default=0, help="of the CPU; 0: as ever")
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--seconds", type=float, default=float("inf"), help="for all of it, about")
    ap.add_argument("--out", type=Path, help="everything as JSON; what is there is gone on with")
    args = ap.parse_args()
    if args.drafter in SHIPPED_DRAFTERS:
        args.drafter = str(SHIPPED_DRAFTERS[args.drafter])
    args.draft = "suffix" if args.drafter is None else f"suffix,{args.drafter}"
    args.target, only_texts = resolve_model(args.model), args.texts
    args.only_texts, args.texts = only_texts, prompts(args.prompts)
    return args


def question(args: argparse.Namespace) -> Options:
    """What the answers depend on, the class apart."""
    drafter = None if args.drafter is None else Path(args.drafter).name
    return {
        "model": args.target.name,
        "drafter": drafter,
        "prompts": len(args.texts),
        "tokens": [args.tokens, args.second_tokens],
        "context": args.context,
        "slots": args.slots,
    }


def main() -> None:
    args, started = parsed(), time.time()
    results = Results.of(args.out, question(args))
    name = args.exact_class
    if args.classes:
        results.save(**show_classes(args))
    elif not args.speed:
        name = texts(args, results, started + args.seconds)
        tell(args, results)
    if not (args.classes or args.only_texts):
        results.deadline = started + args.seconds
        results.save(speed=speed(args, results, name))
    results.save(seconds=round(time.time() - started, 1))
    sys.exit(1 if results.wrong else 0)


def tell(args: argparse.Namespace, results: Results) -> None:
    """The lines, the table, and how much is left."""
    found, model = list(results.outcomes.values()), args.target.stem
    for line in lines(found):
        print(f"{model}, class {results.facts['class']}: {line}")
    print("\n".join(summary(found)))
    print(
        f"{model}: {sum(each.same for each in found)} of {len(found)} texts equal,"
        f" {sum(each.exact for each in found)} say exact, {results.wrong} of these differ;"
        f" {results.facts['left']} left",
        flush=True,
    )


if __name__ == "__main__":
    main()

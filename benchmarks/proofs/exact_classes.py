"""Exactness on this device: the classes of passes, every text of a matrix compared, and its price.

  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH           the texts, then the speed
  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH --speed   the speed only
  python -m benchmarks.proofs.exact_classes MODEL --classes                the classes only
  python -m benchmarks.proofs.exact_classes default --drafter default --prompts 4 --tokens 32

The reference is an engine without proposers, each prompt asked of a cold cache. Compared with it:
no proposer, suffix, the draft model at each window of the class, the controller; alone and as one
of four; cold, warm (asked again) and as a second turn; greedy and drawn with a seed. The speed is
that of exact mode over faithful mode and over plain decoding, all in one engine, interleaved prompt
by prompt. --seconds ends it early, and what is left is named. --out holds what is known after every
answer: the same command again goes on from there, whatever ended the one before. Ends with 1 if a
text that says exact differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, recorded, shown
from parlay import Answer, Parlay
from parlay.bench.suite import load_suite
from parlay.hub.resolving import resolve_model
from parlay.models import SHIPPED_DRAFTERS
from parlay.runtime.loading import MODEL

Messages = list[dict[str, Any]]
Options = dict[str, Any]
WAYS: dict[str, Options] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
NEXT = {"role": "user", "content": "Say that again in one short sentence."}
COLD, WARM, SECOND = "cold", "warm", "second turn"


@dataclass(frozen=True)
class Outcome:
    """One answer beside the reference's."""

    same: bool
    exact: bool
    drafted: int
    accepted: int
    seconds: float  # of those asked together


@dataclass(frozen=True)
class Row:
    """One row of the matrix: what is asked of every prompt."""

    slots: int
    what: str
    turn: str
    way: str
    options: Options

    @property
    def name(self) -> str:
        return f"{self.slots} x {self.what}, {self.turn}, {self.way}"


@dataclass(frozen=True)
class Line:
    """What came of a row so far."""

    slots: int
    what: str
    turn: str
    way: str
    texts: int
    differ: int
    differ_and_say_exact: int
    say_exact: int
    drafted: int
    accepted: int
    seconds: float

    @classmethod
    def of(cls, row: Row, found: Sequence[Outcome]) -> Line:
        different = [each for each in found if not each.same]
        return cls(
            row.slots,
            row.what,
            row.turn,
            row.way,
            texts=len(found),
            differ=len(different),
            differ_and_say_exact=sum(each.exact for each in different),
            say_exact=sum(each.exact for each in found),
            drafted=sum(each.drafted for each in found),
            accepted=sum(each.accepted for each in found),
            seconds=round(sum(each.seconds for each in found) / row.slots, 2),
        )

    def __str__(self) -> str:
        return (
            f"{self.slots} x {self.what:16} {self.turn:12} {self.way:6} {self.differ:3} of"
            f" {self.texts} differ, {self.say_exact} say exact, {self.drafted} drafted,"
            f" {self.accepted} accepted, {self.seconds:.1f} s"
        )


@dataclass
class Results:
    """What is known so far, kept on disk as it grows."""

    path: Path | None
    asked: Options  # what the texts depend on; a file of another question is not gone on with
    deadline: float = float("inf")
    facts: Options = field(default_factory=dict)
    plain: dict[str, list[str]] = field(default_factory=dict)  # the reference's texts
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)  # by row
    rates: dict[str, list[float]] = field(default_factory=dict)  # by mode
    rows: dict[str, Row] = field(default_factory=dict)  # those that this run knows of
    left: dict[str, int] = field(default_factory=dict)  # answers of rows that are not all there

    @classmethod
    def of(cls, path: Path | None, asked: Options) -> Results:
        """With what an earlier run left there."""
        made = cls(path, asked)
        if path is None or not path.exists():
            return made
        kept = json.loads(path.read_text("utf-8"))
        if kept.get("asked") != asked:
            sys.exit(f"{path} holds answers to {kept.get('asked')}, not {asked}: name another file")
        made.facts = {key: kept[key] for key in kept if key.startswith("slots_")}
        made.plain, made.rates = kept["plain"], kept["rates"]
        for name, found in kept["outcomes"].items():
            made.outcomes[name] = [Outcome(**each) for each in found]
        say(f"{path}: {sum(map(len, made.outcomes.values()))} answers are there already")
        return made

    @property
    def late(self) -> bool:
        return time.time() > self.deadline

    @property
    def lines(self) -> list[Line]:
        return [Line.of(row, self.outcomes[name]) for name, row in self.rows.items()]

    @property
    def wrong(self) -> int:
        every = (each for found in self.outcomes.values() for each in found)
        return sum(each.exact and not each.same for each in every)

    def class_of(self, slots: int) -> str | None:
        """The class that an earlier run was in."""
        name: str | None = self.facts.get(f"slots_{slots}", {}).get("class")
        return name

    def save(self, **facts: Any) -> None:
        self.facts |= facts
        if self.path is None:
            return
        whole = {
            **self.facts,
            "asked": self.asked,
            "matrix": [asdict(line) for line in self.lines],
            "left": self.left,
            "plain": self.plain,
            "rates": self.rates,
            "outcomes": {name: [asdict(o) for o in got] for name, got in self.outcomes.items()},
        }
        part = self.path.with_suffix(".part")  # whoever ends us here leaves the last whole file
        part.write_text(json.dumps(whole, indent=1), "utf-8")
        part.replace(self.path)


def summary(lines: Sequence[Line]) -> Iterator[str]:
    """As in docs/explanation/exactness.md: texts that differ, by what proposed them."""
    kinds = {
        "none": "no proposer",
        "suffix": "suffix",
        "model": "drafter",
        "controller": "controller",
    }
    yield f"| | {' | '.join(kinds.values())} |"
    yield "|---" * (1 + len(kinds)) + "|"
    for slots in sorted({line.slots for line in lines}):
        cells = []
        for kind in kinds:
            own = [line for line in lines if line.slots == slots and line.what.startswith(kind)]
            cells.append(f"{sum(o.differ for o in own)} of {sum(o.texts for o in own)}")
        yield f"| {'alone' if slots == 1 else f'as one of {slots}'} | {' | '.join(cells)} |"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prompts(n: int) -> list[Messages]:
    """A spread over the suite, tools left out."""
    every = [list(p.messages) for p in load_suite("core-60").prompts if not p.tools]
    return every[:: max(1, len(every) // n)][:n]


def opened(args: argparse.Namespace, draft: str, slots: int, **options: Any) -> Parlay:
    size = args.context
    return Parlay(args.target, draft=draft, slots=slots, context_size=size, **options)


def forget(parlay: Parlay) -> None:
    """Empty the slots: the next prompt is read cold."""
    erased, slots = threading.Event(), parlay.engine.slots

    def erase() -> None:
        for slot in slots.all:
            slots.erase(slot.seq_id, slot.owner)
        erased.set()

    parlay.engine.call(erase)
    erased.wait()


def ask(parlay: Parlay, texts: Sequence[Messages], together: int, options: Options) -> list[Answer]:
    found: list[Answer] = []
    for i in range(0, len(texts), together):
        streams = [parlay.stream(text, **options) for text in texts[i : i + together]]
        found += [stream.answer for stream in streams]
    return found


def second_turns(texts: Sequence[Messages], plain: Sequence[str]) -> list[Messages]:
    return [
        [*text, {"role": "assistant", "content": said}, NEXT]
        for text, said in zip(texts, plain, strict=True)
    ]


def reference(args: argparse.Namespace, results: Results, name: str, slots: int) -> None:
    """Without proposers and alone, from cold caches; the second turn goes on from the first."""
    n = len(args.texts)
    wanted = [f"{slots}, {way}, {turn}" for way in args.ways for turn in (COLD, SECOND)]
    if all(len(results.plain.get(key, ())) == n for key in wanted):
        return
    options: Options = {"mode": "exact", "exact_class": name, "prompt_cache_mb": 0}
    with opened(args, "none", slots, **options) as parlay:
        for way, how in args.ways.items():
            first = {**how, "draft": "none", "max_tokens": args.tokens}
            said = _read_cold(parlay, results, f"{slots}, {way}, {COLD}", args.texts, first)
            second = {**first, "max_tokens": args.second_tokens}
            turns = second_turns(args.texts[: len(said)], said)
            _read_cold(parlay, results, f"{slots}, {way}, {SECOND}", turns, second)


def _read_cold(
    parlay: Parlay, results: Results, key: str, texts: Sequence[Messages], options: Options
) -> list[str]:
    """Each alone, in an engine that has forgotten the others; those that are missing."""
    said = results.plain.setdefault(key, [])
    for text in texts[len(said) :]:
        if results.late:
            break
        forget(parlay)
        said.append(ask(parlay, [text], 1, options)[0].text)
        results.save()
    return said


# -- the texts ------------------------------------------------------------------------------------


def matrix(args: argparse.Namespace, results: Results, slots: int) -> str:
    """One number of slots through all of it; returns the class."""
    pinned = args.exact_class or results.class_of(slots)
    with opened(args, args.draft, slots, mode="exact", exact_class=pinned) as parlay:
        engine = parlay.engine
        name, cost = engine.exact.name, engine.chosen.cost
        say(f"{slots} slots: class {name}, estimated to cost {100 * (cost or 0):.1f} %")
        found = {"class": name, "cost_percent": round(100 * (cost or 0), 2)}
        results.save(**{f"slots_{slots}": {**found, **engine.exact.to_dict()}})
        began = time.time()
        reference(args, results, name, slots)
        say(f"reference: {time.time() - began:.1f} s")
        warm = Warm(parlay, args, slots)
        for row in rows(args, slots, max(engine.exact.widths) - 1):
            warm.fill(row, results)
        results.save(**{f"slots_{slots}": {**found, **engine.exact.to_dict()}})
    return name


def rows(args: argparse.Namespace, slots: int, widest: int) -> Iterator[Row]:
    """What is run, the likeliest to fail first."""
    for what, turn, options in _kinds(args, slots, widest):
        for way, how in args.ways.items():
            yield Row(slots, what, turn, way, {"max_tokens": args.tokens, **how, **options})


def _kinds(args: argparse.Namespace, slots: int, widest: int) -> Iterator[tuple[str, str, Options]]:
    """Without proposers, alone and cold is the reference itself."""
    for turn in (COLD, WARM, SECOND):
        yield "controller", turn, {}
    for window in range(1, min(widest, args.widest) + 1) if args.drafter is not None else ():
        yield f"model, window {window}", COLD, {"draft": MODEL, "window": window}
    yield "suffix", COLD, {"draft": "suffix", "window": min(4, widest)}
    for turn in (COLD, WARM, SECOND) if slots > 1 else (WARM, SECOND):
        yield "none", turn, {"draft": "none"}


class Warm:
    """An engine, and which prompts it has read: a warm one finds what an earlier row left."""

    def __init__(self, parlay: Parlay, args: argparse.Namespace, slots: int) -> None:
        self._parlay, self._args, self._slots = parlay, args, slots
        self._read: set[int] = set()

    def fill(self, row: Row, results: Results) -> None:
        """Ask what the row lacks, as many at once as there are slots."""
        found, wanted = results.outcomes.setdefault(row.name, []), self._wanted(row, results)
        results.rows[row.name] = row
        if row.turn == COLD:
            forget(self._parlay)
            self._read.clear()
        before = len(found)
        for first in range(before, len(wanted), self._slots):
            if results.late:
                break
            found += self._compare(row, first, wanted[first : first + self._slots])
            results.save()
        n_left = len(self._args.texts) - len(found)
        results.left |= {row.name: n_left} if n_left else {}
        if len(found) > before:
            say(str(Line.of(row, found)))

    def _wanted(self, row: Row, results: Results) -> list[tuple[Messages, str]]:
        """By prompt: what is asked, and what the reference said, as far as it came."""
        said = results.plain.get(f"{row.slots}, {row.way}, {COLD}", [])
        texts = self._args.texts[: len(said)]
        if row.turn == SECOND:
            texts = second_turns(texts, said)
            said = results.plain.get(f"{row.slots}, {row.way}, {SECOND}", [])
        return list(zip(texts, said, strict=False))

    def _compare(
        self, row: Row, first: int, wanted: Sequence[tuple[Messages, str]]
    ) -> list[Outcome]:
        places = range(first, first + len(wanted))
        if row.turn != COLD and not self._read.issuperset(places):  # an earlier run has read them
            ask(self._parlay, [self._args.texts[i] for i in places], self._slots, row.options)
        self._read.update(places)
        limit = self._args.second_tokens if row.turn == SECOND else self._args.tokens
        began, options = time.time(), {**row.options, "max_tokens": limit}
        answers = ask(self._parlay, [text for text, _ in wanted], self._slots, options)
        seconds = round(time.time() - began, 3)
        return [
            Outcome(
                answer.text == said,
                answer.exact,
                answer.speculation.n_drafted,
                answer.speculation.n_accepted,
                seconds,
            )
            for answer, (_, said) in zip(answers, wanted, strict=True)
        ]


# -- the speed ------------------------------------------------------------------------------------

MODES: dict[str, Options] = {
    "exact": {"mode": "exact"},
    "faithful": {"mode": "faithful"},
    "plain": {"mode": "faithful", "draft": "none"},
}


def speed(args: argparse.Namespace, results: Results, name: str | None) -> Options:
    """Each prompt in every mode, one after the other, in turns; the first two are a warm-up."""
    rates = {mode: results.rates.setdefault(mode, []) for mode in MODES}
    done = min(map(len, rates.values()))
    with opened(args, args.draft, 1, mode="exact", exact_class=name) as parlay:
        for i, text in enumerate((*args.texts[:2], *args.texts[done:]), done - 2):
            if results.late:
                results.left["speed"] = len(args.texts) - max(i, 0)
                break
            for mode in [*MODES, *MODES][i % 3 : i % 3 + 3]:
                answer = parlay.generate(text, max_tokens=args.tokens, **MODES[mode])
                if i >= done:
                    rates[mode][i:] = [answer.tokens_per_second]
            results.save()
        found = {"class": parlay.engine.exact.name, "four_rows": _four_rows(parlay)}
    n = min(map(len, rates.values()))
    pairs = (("exact", "faithful"), ("exact", "plain"), ("faithful", "plain"))
    if n < 2:
        return found
    ratios = {f"{a} over {b}": ratio_of_prompts(rates[a][:n], rates[b][:n]) for a, b in pairs}
    for what, ratio in ratios.items():
        say(f"speed in class {found['class']}, {what}: {shown(ratio)}")
    return {**found, **{w: recorded(r) for w, r in ratios.items()}}


def _four_rows(parlay: Parlay) -> float | None:
    """A pass over four rows, over one of one row: what the goal depends on."""
    prices = parlay.engine.prices
    if prices is None:
        return None
    steady = prices.curve(256, 1).steady
    return round(steady[4] / steady[1], 3)


def show_classes(args: argparse.Namespace) -> Options:
    """Every class, with what its plain passes cost over one of one row."""
    with opened(args, args.draft, args.slots[-1], mode="exact") as parlay:
        chosen, prices = parlay.engine.chosen, parlay.engine.prices
        for found in chosen.classes:
            steady = None if prices is None else prices.curve(256, 1).steady
            price = "" if steady is None else f", plain {steady[found.floor] / steady[1]:.2f}"
            say(f"{found.name}{price}: {json.dumps(found.to_dict())}")
        return {"chosen": chosen.found.name, "classes": [c.to_dict() for c in chosen.classes]}


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
    ap.add_argument("--second-tokens", type=int, default=48, help="of a second turn's answer")
    ap.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    ap.add_argument("--widest", type=int, default=16, help="window of the draft model at most")
    ap.add_argument("--slots", type=int, nargs="*", default=[1, 4])
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--seconds", type=float, default=float("inf"), help="for all of it, about")
    ap.add_argument("--out", type=Path, help="everything as JSON; what is there is gone on with")
    args = ap.parse_args()
    if args.drafter in SHIPPED_DRAFTERS:
        args.drafter = str(SHIPPED_DRAFTERS[args.drafter])
    args.draft = "suffix" if args.drafter is None else f"suffix,{args.drafter}"
    args.ways = {way: WAYS[way] for way in args.ways}
    args.target, only_texts = resolve_model(args.model), args.texts
    args.only_texts, args.texts = only_texts, prompts(args.prompts)
    return args


def question(args: argparse.Namespace) -> Options:
    """What the answers depend on, slots and class apart."""
    drafter = None if args.drafter is None else Path(args.drafter).name
    return {
        "model": args.target.name,
        "drafter": drafter,
        "prompts": len(args.texts),
        "tokens": [args.tokens, args.second_tokens],
        "context": args.context,
    }


def main() -> None:
    args, started = parsed(), time.time()
    results = Results.of(args.out, question(args))
    name = args.exact_class
    if args.classes:
        results.save(**show_classes(args))
    elif not args.speed:
        for i, slots in enumerate(args.slots, 1):  # each gets its part of the time
            results.deadline = started + args.seconds * i / len(args.slots)
            found = matrix(args, results, slots)
            name = found if slots == 1 else name
    if not (args.classes or args.only_texts):
        results.deadline = started + args.seconds
        results.save(speed=speed(args, results, name))
    results.save(seconds=round(time.time() - started, 1))
    if not args.speed and not args.classes:
        tell(results)
    sys.exit(1 if results.wrong else 0)


def tell(results: Results) -> None:
    """The table, and what is left of it."""
    print("\n".join(summary(results.lines)))
    for name, n in results.left.items():
        say(f"left: {name}: {n}")
    n = sum(line.texts for line in results.lines)
    say(f"{results.wrong} of {n} texts differ that say exact; {sum(results.left.values())} left")


if __name__ == "__main__":
    main()

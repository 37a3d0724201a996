"""Exactness on this device: the classes of passes, every text of a matrix compared, and its price.

  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH           the texts, then the speed
  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH --speed   the speed only
  python -m benchmarks.proofs.exact_classes MODEL --classes                the classes only
  python -m benchmarks.proofs.exact_classes default --drafter default --prompts 4 --tokens 32

The reference is an engine without proposers, each prompt asked of a cold cache. Compared with it:
no proposer, suffix, the draft model at each window of the class, the controller; alone and as one
of four; cold, warm (asked again) and as a second turn; greedy and drawn with a seed. The speed is
that of exact mode over faithful mode and over plain decoding, all in one engine, interleaved prompt
by prompt. --seconds ends the matrix early: what was not run is named. --out holds what is known so
far after every row. Ends with 1 if a text that says exact differs.
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
class Line:
    """One row of the matrix."""

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
    deadline: float
    facts: Options = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def late(self) -> bool:
        return time.time() > self.deadline

    @property
    def wrong(self) -> int:
        return sum(line.differ_and_say_exact for line in self.lines)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        say(str(line))
        self.save()

    def save(self, **facts: Any) -> None:
        self.facts |= facts
        whole = {**self.facts, "matrix": list(map(asdict, self.lines)), "left_out": self.left_out}
        if self.path is not None:
            self.path.write_text(json.dumps(whole, indent=1), "utf-8")


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


def cold(parlay: Parlay, texts: Sequence[Messages], options: Options) -> list[str]:
    """Each alone, in an engine that has forgotten the others."""
    found = []
    for text in texts:
        forget(parlay)
        found += [answer.text for answer in ask(parlay, [text], 1, options)]
    return found


def second_turns(texts: Sequence[Messages], plain: Sequence[str]) -> list[Messages]:
    return [
        [*text, {"role": "assistant", "content": said}, NEXT]
        for text, said in zip(texts, plain, strict=True)
    ]


Plain = dict[tuple[str, str], list[str]]  # the reference's texts, by way and turn


def reference(args: argparse.Namespace, name: str, slots: int) -> Plain:
    """Without proposers and alone, from cold caches; the second turn goes on from the first."""
    found: Plain = {}
    options: Options = {"mode": "exact", "exact_class": name, "prompt_cache_mb": 0}
    with opened(args, "none", slots, **options) as parlay:
        for way, how in args.ways.items():
            first = {**how, "draft": "none", "max_tokens": args.tokens}
            found[way, COLD] = cold(parlay, args.texts, first)
            turns = second_turns(args.texts, found[way, COLD])
            second = {**first, "max_tokens": args.second_tokens}
            found[way, SECOND] = cold(parlay, turns, second)
    return found


# -- the texts ------------------------------------------------------------------------------------


def matrix(args: argparse.Namespace, results: Results, slots: int) -> str:
    """One number of slots through all of it; returns the class."""
    with opened(args, args.draft, slots, mode="exact", exact_class=args.exact_class) as parlay:
        engine = parlay.engine
        name, cost = engine.exact.name, engine.chosen.cost
        say(f"{slots} slots: class {name}, estimated to cost {100 * (cost or 0):.1f} %")
        began = time.time()
        plain = reference(args, name, slots)
        say(f"reference: {time.time() - began:.1f} s")
        found = {"class": name, "cost_percent": round(100 * (cost or 0), 2)}
        results.save(**{f"slots_{slots}": {**found, **engine.exact.to_dict()}})
        for what, turn, options in rows(args, slots, max(engine.exact.widths) - 1):
            for way, how in args.ways.items():
                if results.late:
                    results.left_out.append(f"{slots} x {what}, {turn}, {way}")
                    continue
                asked = {"max_tokens": args.tokens, **how, **options}
                results.add(compared(parlay, args, slots, (what, turn, way), asked, plain))
        results.save(**{f"slots_{slots}": {**found, **engine.exact.to_dict()}})
    return name


def rows(args: argparse.Namespace, slots: int, widest: int) -> Iterator[tuple[str, str, Options]]:
    """What is run, the likeliest to fail first; without proposers, alone and cold is the reference
    itself."""
    for turn in (COLD, WARM, SECOND):
        yield "controller", turn, {}
    for window in range(1, min(widest, args.widest) + 1) if args.drafter is not None else ():
        yield f"model, window {window}", COLD, {"draft": MODEL, "window": window}
    yield "suffix", COLD, {"draft": "suffix", "window": min(4, widest)}
    for turn in (COLD, WARM, SECOND) if slots > 1 else (WARM, SECOND):
        yield "none", turn, {"draft": "none"}


def compared(
    parlay: Parlay,
    args: argparse.Namespace,
    slots: int,
    row: tuple[str, str, str],
    options: Options,
    plain: Plain,
) -> Line:
    """All prompts of one row; a warm one and a second turn find what the row before it left."""
    what, turn, way = row
    began, texts, wanted = time.time(), args.texts, plain[way, COLD]
    if turn == COLD:
        forget(parlay)
    if turn == SECOND:
        texts, wanted = second_turns(texts, wanted), plain[way, SECOND]
        options = {**options, "max_tokens": args.second_tokens}
    answers = ask(parlay, texts, slots, options)
    different = [a for a, b in zip(answers, wanted, strict=True) if a.text != b]
    return Line(
        slots,
        what,
        turn,
        way,
        texts=len(answers),
        differ=len(different),
        differ_and_say_exact=sum(a.exact for a in different),
        say_exact=sum(a.exact for a in answers),
        drafted=sum(a.speculation.n_drafted for a in answers),
        accepted=sum(a.speculation.n_accepted for a in answers),
        seconds=round(time.time() - began, 2),
    )


# -- the speed ------------------------------------------------------------------------------------

MODES: dict[str, Options] = {
    "exact": {"mode": "exact"},
    "faithful": {"mode": "faithful"},
    "plain": {"mode": "faithful", "draft": "none"},
}


def speed(args: argparse.Namespace, name: str | None) -> Options:
    """Each prompt in every mode, one after the other, in turns; the first two are a warm-up."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    with opened(args, args.draft, 1, mode="exact", exact_class=name) as parlay:
        for i, text in enumerate((*args.texts[:2], *args.texts)):
            for mode in [*MODES, *MODES][i % 3 : i % 3 + 3]:
                answer = parlay.generate(text, max_tokens=args.tokens, **MODES[mode])
                rates[mode].append(answer.tokens_per_second)
        found = {"class": parlay.engine.exact.name, "four_rows": _four_rows(parlay)}
    kept = {mode: values[2:] for mode, values in rates.items()}
    pairs = (("exact", "faithful"), ("exact", "plain"), ("faithful", "plain"))
    ratios = {f"{a} over {b}": ratio_of_prompts(kept[a], kept[b]) for a, b in pairs}
    for what, ratio in ratios.items():
        say(f"speed in class {found['class']}, {what}: {shown(ratio)}")
    return {**found, "tokens_per_s": kept, **{w: recorded(r) for w, r in ratios.items()}}


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
    ap.add_argument("--slots", type=int, nargs="*", default=[4, 1])
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--seconds", type=float, default=float("inf"), help="for the texts, about")
    ap.add_argument("--out", type=Path, help="write everything as JSON")
    args = ap.parse_args()
    if args.drafter in SHIPPED_DRAFTERS:
        args.drafter = str(SHIPPED_DRAFTERS[args.drafter])
    args.draft = "suffix" if args.drafter is None else f"suffix,{args.drafter}"
    args.ways = {way: WAYS[way] for way in args.ways}
    args.target, only_texts = resolve_model(args.model), args.texts
    args.only_texts, args.texts = only_texts, prompts(args.prompts)
    return args


def main() -> None:
    args, started = parsed(), time.time()
    results = Results(args.out, started, {"model": args.target.name})
    name = args.exact_class
    if args.classes:
        results.save(**show_classes(args))
    elif not args.speed:
        for i, slots in enumerate(args.slots, 1):  # each gets its part of the time
            results.deadline = started + args.seconds * i / len(args.slots)
            found = matrix(args, results, slots)
            name = found if slots == 1 else name
    if not (args.classes or args.only_texts):
        results.save(speed=speed(args, name))
    results.save(seconds=round(time.time() - started, 1))
    if not args.speed and not args.classes:
        n, left = sum(line.texts for line in results.lines), len(results.left_out)
        say(f"{results.wrong} of {n} texts differ that say exact; {left} rows left out")
        print("\n".join(summary(results.lines)))
    sys.exit(1 if results.wrong else 0)


if __name__ == "__main__":
    main()

"""Exactness on this device: the classes of passes, every text of a matrix compared, and its price.

  python -m benchmarks.proofs.exact_classes MODEL --drafter PATH  alone and as one of four, all ways
  python -m benchmarks.proofs.exact_classes MODEL --classes       the classes and their prices only
  python -m benchmarks.proofs.exact_classes default --drafter default --prompts 4 --tokens 32

The reference is an engine without proposers, each prompt asked of a cold cache. Compared with it:
suffix, the draft model at each window of the class, the controller; alone and as one of four; cold,
warm (asked again) and as a second turn; greedy and drawn with a seed. Then the speed of exact mode
over faithful mode, both with the controller, interleaved prompt by prompt. Ends with 1 if a text
that says exact differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.shared.ratios import ratio_of_prompts, recorded, shown
from parlay import Answer, Parlay
from parlay.bench.suite import load_suite
from parlay.hub.resolving import resolve_model
from parlay.models import SHIPPED_DRAFTERS
from parlay.runtime.loading import MODEL

Messages = list[dict[str, Any]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
NEXT = {"role": "user", "content": "Say that again in one short sentence."}


@dataclass
class Found:
    """Counts of one run of the matrix."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, way: str, texts: Sequence[Answer], plain: Sequence[str]) -> None:
        different = [a for a, b in zip(texts, plain, strict=True) if a.text != b]
        line = {
            "what": what,
            "way": way,
            "texts": len(texts),
            "differ": len(different),
            "differ_and_say_exact": sum(a.exact for a in different),
            "say_exact": sum(a.exact for a in texts),
            "drafted": sum(a.speculation.n_drafted for a in texts),
        }
        self.lines.append(line)
        print(
            f"{what:34} {way:6} {line['differ']:3} of {line['texts']} differ,"
            f" {line['say_exact']} say exact, {line['drafted']} drafted",
            flush=True,
        )

    @property
    def wrong(self) -> int:
        return sum(int(line["differ_and_say_exact"]) for line in self.lines)


def prompts(n: int) -> list[Messages]:
    """A spread over the suite, tools left out."""
    every = [list(p.messages) for p in load_suite("core-60").prompts if not p.tools]
    return every[:: max(1, len(every) // n)][:n]


@contextmanager
def opened(args: argparse.Namespace, draft: str, slots: int, **options: Any) -> Iterator[Parlay]:
    size = args.context
    with Parlay(args.target, draft=draft, slots=slots, context_size=size, **options) as parlay:
        yield parlay


def forget(parlay: Parlay) -> None:
    """Empty the slots: the next prompt is read cold."""
    erased, slots = threading.Event(), parlay.engine.slots

    def erase() -> None:
        for slot in slots.all:
            slots.erase(slot.seq_id, slot.owner)
        erased.set()

    parlay.engine.call(erase)
    erased.wait()


def ask(parlay: Parlay, texts: Sequence[Messages], together: int, **options: Any) -> list[Answer]:
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


def reference(args: argparse.Namespace, name: str, slots: int) -> dict[str, list[str]]:
    """Texts without proposers, from cold caches; the second turn goes on from the first."""
    found = {}
    options: dict[str, Any] = {"mode": "exact", "exact_class": name, "prompt_cache_mb": 0}
    with opened(args, "none", slots, **options) as parlay:
        for way, how in WAYS.items():
            asked = {"max_tokens": args.tokens, **how}
            found[way] = [a.text for a in _cold(parlay, args.texts, asked)]
            turns = second_turns(args.texts, found[way])
            found[f"{way} second turn"] = [a.text for a in _cold(parlay, turns, asked)]
    return found


def _cold(parlay: Parlay, texts: Sequence[Messages], options: dict[str, Any]) -> list[Answer]:
    answers = []
    for text in texts:
        forget(parlay)
        answers += ask(parlay, [text], 1, draft="none", **options)
    return answers


def matrix(args: argparse.Namespace, found: Found, slots: int) -> str:
    """One number of slots through all of it; returns the class."""
    draft = "suffix" if args.drafter is None else f"suffix,{args.drafter}"
    options: dict[str, Any] = {"mode": "exact", "exact_class": args.exact_class}
    with opened(args, draft, slots, **options) as parlay:
        engine = parlay.engine
        name, cost = engine.exact.name, engine.chosen.cost
        others = ", ".join(c.name for c in engine.chosen.classes)
        print(
            f"{slots} slots: class {name} of {others}; costs {100 * (cost or 0):.1f} %", flush=True
        )
        print(json.dumps(engine.exact.to_dict()), flush=True)
        plain = reference(args, name, slots)
        for what, ways in _arms(args, max(engine.exact.widths) - 1):
            for way, how in WAYS.items():
                _compare(
                    parlay, args, found, f"{slots} x {what}", way, {**how, **ways}, plain, slots
                )
    return name


def _arms(args: argparse.Namespace, widest: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "none", {"draft": "none"}
    yield "suffix", {"draft": "suffix", "window": min(4, widest)}
    if args.drafter is not None:
        for window in range(1, min(widest, args.widest) + 1):
            yield f"model, window {window}", {"draft": MODEL, "window": window}
    yield "controller", {}


def _compare(
    parlay: Parlay,
    args: argparse.Namespace,
    found: Found,
    what: str,
    way: str,
    how: dict[str, Any],
    plain: dict[str, list[str]],
    together: int,
) -> None:
    options = {"max_tokens": args.tokens, **how}
    forget(parlay)
    found.add(f"{what}", way, ask(parlay, args.texts, together, **options), plain[way])
    if what.endswith(("none", "controller")):
        found.add(f"{what}, warm", way, ask(parlay, args.texts, together, **options), plain[way])
        turns = second_turns(args.texts, plain[way])
        after = plain[f"{way} second turn"]
        found.add(f"{what}, second turn", way, ask(parlay, turns, together, **options), after)


def speed(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Tokens per second of exact over faithful, each prompt with both."""
    draft = "suffix" if args.drafter is None else f"suffix,{args.drafter}"
    rates: dict[str, list[float]] = {"exact": [], "faithful": [], "plain": []}
    with opened(args, draft, 1, mode="exact", exact_class=name) as parlay:
        for text in (*args.texts[:2], *args.texts):  # the first two are a warm-up
            for mode in ("exact", "faithful"):
                answer = parlay.generate(text, max_tokens=args.tokens, mode=mode)
                rates[mode].append(answer.tokens_per_second)
            one = parlay.generate(text, max_tokens=args.tokens, mode="faithful", draft="none")
            rates["plain"].append(one.tokens_per_second)
    means = {mode: _mean(values[2:]) for mode, values in rates.items()}
    over = ratio_of_prompts(rates["exact"][2:], rates["faithful"][2:])
    print(
        f"controller: exact {means['exact']:.1f} tok/s, faithful {means['faithful']:.1f},"
        f" plain {means['plain']:.1f}; exact over faithful {shown(over)}",
        flush=True,
    )
    return {**means, "exact_over_faithful": recorded(over)}


def _mean(values: Sequence[float]) -> float:
    return exp(sum(log(v) for v in values if v > 0) / max(1, sum(v > 0 for v in values)))


def show_classes(args: argparse.Namespace) -> dict[str, Any]:
    with opened(args, "suffix", args.slots[-1], mode="exact") as parlay:
        chosen, table = parlay.engine.chosen, parlay.engine.prices
        curve = None if table is None else table.curve(256, 1)
        for found in chosen.classes:
            price = (
                ""
                if curve is None
                else f", plain {curve.steady[found.floor] / curve.steady[1]:.2f}"
            )
            print(f"{found.name}{price}: {json.dumps(found.to_dict())}", flush=True)
        return {"chosen": chosen.found.name, "classes": [c.to_dict() for c in chosen.classes]}


def parsed() -> argparse.Namespace:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--drafter", help="a draft model's file, or a shipped one's name")
    ap.add_argument("--classes", action="store_true", help="look for the classes, and stop")
    ap.add_argument("--exact-class", help="run in this class instead of the cheapest")
    ap.add_argument("--prompts", type=int, default=20)
    ap.add_argument("--tokens", type=int, default=96)
    ap.add_argument("--widest", type=int, default=16, help="window of the draft model at most")
    ap.add_argument("--slots", type=int, nargs="*", default=[1, 4])
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--out", type=Path, help="write everything as JSON")
    args = ap.parse_args()
    args.target = resolve_model(args.model)
    args.texts = prompts(args.prompts)
    if args.drafter in SHIPPED_DRAFTERS:
        args.drafter = str(SHIPPED_DRAFTERS[args.drafter])
    return args


def main() -> None:
    args, started = parsed(), time.time()
    result: dict[str, Any] = {"model": args.target.name}
    found = Found()
    if args.classes:
        result |= show_classes(args)
    else:
        names = [matrix(args, found, slots) for slots in args.slots]
        result |= {"classes": names, "matrix": found.lines, "speed": speed(args, names[0])}
        print(f"{found.wrong} texts differ that say exact; {time.time() - started:.0f} s")
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1), "utf-8")
    sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()

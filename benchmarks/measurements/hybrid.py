"""What speculation on a hybrid costs and brings: rollback, turns, memory, beside llama-server.

    python -m benchmarks.measurements.hybrid --preset 27b --folder /dev/shm \
        --server llama-server --json out.json

Writes its own stand-in (benchmarks/models/stand_ins.py) unless --model names one. Parts (--parts):

  speed    the same prompts answered by Parlay plain, by Parlay's controller with suffix drafts, and
           by llama.cpp's server plain and with ngram-mod (--server, or LLAMA_SERVER)
  rounds   drafts out of its own recorded text, each token right with a given chance: what a round
           with a rejection takes over its pass
  turn     the second turn of a long conversation, the same again, and an edited last message,
           against reading just the new tokens
  memory   what was allocated on the GPU against the plan
  passes   milliseconds of a pass by its rows and by how many snapshots it leaves behind, and of
           copying the state and putting it back; what the controller's prices are made of
  windows  the same prompts at fixed windows, and what each round of the controller was and took

About six minutes for the 27b on an H200, one for --preset tiny on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from benchmarks.models import stand_ins
from benchmarks.models.expand import TYPES
from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_prompts, recorded
from parlay.bench.peer import PeerSettings
from parlay.decoding.round import Round
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answering
from parlay.engine.settings import EngineSettings
from parlay.engine.start import wanted_files
from parlay.hub.resolving import resolve_model
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.limits import load_list, plan_here
from tests.scripted import RecordedProposer

GREEDY = Sampling(temperature=0.0)
TOPICS = (
    "Write a Python function that reads a CSV file and returns the mean of each column.",
    "Tell the story of a lighthouse keeper who finds a letter in a bottle.",
    "Explain step by step how a bicycle stays upright while it is ridden.",
    "List what two small children need for a weekend in the mountains, and why.",
)
RIGHT, WINDOWS = (0.6, 0.8, 0.95), (3, 7)


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        model = args.model or Path(folder) / "hybrid.gguf"
        if args.model is None:
            shape = stand_ins.HYBRIDS[args.preset]
            stand_ins.write(shape, resolve_model("default"), model, args.type)
        found: dict[str, Any] = {"model": model.name, "preset": args.preset, "type": args.type}
        for name in args.parts:
            _say(f"{name} ...")
            found[name] = _PARTS[name](model, args)
            _say(json.dumps(found[name]))
            if args.json:  # after each part: a run that is cut keeps what it has
                args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


# -- an engine, asked and timed ----------------------------------------------------------------


def settings(model: Path, args: argparse.Namespace, *draft: str, n: int = 8192) -> EngineSettings:
    context = ContextSettings(n, threads=args.threads, prompt_cache_bytes=4 << 30)
    return EngineSettings(model, draft, mode="faithful", context=context)


def ask(engine: Engine, prompt: Sequence[int], n: int, **options: Any) -> Answering:
    """One answer, waited for."""
    ended = threading.Event()

    def take(seq: Answering, _pieces: Sequence[Piece]) -> None:
        if seq.retired:
            ended.set()

    seq = engine.submit(Request(tuple(prompt), n, GREEDY, **options), take)
    ended.wait()
    if seq.error is not None:
        raise seq.error
    return seq


def prompts(engine: Engine) -> list[list[int]]:
    vocabulary = engine.model.vocabulary
    return [vocabulary.tokenize(text, bos=True, special=False) for text in TOPICS]


def seconds(round_: Round) -> float:
    timing = round_.timing
    return timing.draft_s + timing.verify_s + timing.overhead_s


def rate(seq: Answering) -> float:
    """Tokens per second after the first."""
    return (seq.n_generated - 1) / sum(seconds(r) for r in seq.rounds)


# -- speed -------------------------------------------------------------------------------------


def speed(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second by subject, and their ratios."""
    rates: dict[str, list[float]] = {}
    made: dict[str, list[list[dict[str, Any]]]] = {}
    told_by: dict[str, list[dict[str, Any]]] = {}
    texts: list[list[int]] = []
    prices: dict[str, Any] | None = None
    for name, draft in (("plain", ()), ("controller", ("suffix",))):
        with Engine(settings(model, args, *draft)) as engine:
            texts = prompts(engine)
            ask(engine, texts[0], 8)  # the first one loads kernels
            answers = [ask(engine, prompt, args.tokens, owner=name) for prompt in texts]
            rates[name] = [rate(seq) for seq in answers]
            made[name] = [[told(r) for r in seq.rounds] for seq in answers]
            drafted = [sum(r.n_drafted > 0 for r in seq.rounds) for seq in answers]
            _say(f"{name}: {_shown(rates[name])} tok/s, rounds with a draft {drafted}")
            prices = prices if engine.prices is None else engine.prices.to_dict()
    for name, kind in (("server plain", "none"), ("server ngram-mod", "ngram-mod")):
        if args.server is not None:
            peer = PeerSettings(str(model), kind, n_context=8192, threads=args.threads)
            with served.llama(peer, args.server) as url:
                _complete(url, texts[0], 8)
                timings = [_complete(url, prompt, args.tokens) for prompt in texts]
                rates[name] = [_rate_told(each) for each in timings]
                told_by[name] = timings
                _say(f"{name}: {_shown(rates[name])} tok/s")
    return {
        "tokens_per_second": rates,
        "controller_over": {
            name: recorded(ratio_of_prompts(rates["controller"], rates[name]))
            for name in rates
            if name != "controller"
        },
        "prices": prices,
        "rounds": made,
        "server_timings": told_by,
    }


def told(r: Round) -> dict[str, Any]:
    """One round on a line: what was asked for, what came of it, where its time went."""
    times = {"draft": r.timing.draft_s, "verify": r.timing.verify_s, "rest": r.timing.overhead_s}
    return {
        "at": r.position,
        "source": r.proposer,
        "window": r.window,
        "rows": r.n_pass_rows,
        "accepted": r.n_accepted,
        "why": r.reason if r.fallback is None else r.fallback.value,
        "offered": max(r.agreed.values(), default=0),
        **{
            f"{name}_ms": round(1e3 * s, 3)
            for name, s in (*times.items(), ("outside", r.outside_s))
        },
    }


def _complete(url: str, prompt: list[int], n: int) -> dict[str, Any]:
    """What the server tells of its time."""
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False}
    answer = httpx.post(f"{url}/completion", json=body | {"ignore_eos": True}, timeout=600)
    answer.raise_for_status()
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def _rate_told(timings: dict[str, Any]) -> float:
    return float((timings["predicted_n"] - 1) / timings["predicted_ms"] * 1e3)


# -- rounds ------------------------------------------------------------------------------------


def rounds(model: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What rounds with and without a rejection take over a pass of as many rows."""
    found = []
    with Engine(replace(settings(model, args, "suffix"), snapshots=max(WINDOWS))) as engine:
        n_vocab = engine.target.n_vocab
        texts = prompts(engine)[:2]
        _say(f"rollback {engine.target.rollback.value}, {engine.target.free_rollback} tokens")
        recorded = [ask(engine, p, 2 * args.tokens, window=0).tokens for p in texts]
        for window in WINDOWS:
            pass_s = engine.call(partial(_pass_s, engine, window + 1)).result()
            for right in RIGHT:
                source = RecordedProposer(recorded, right, n_vocab=n_vocab)
                engine.drafts.proposers["recorded"] = source
                made: list[Round] = []
                for prompt in texts:
                    seq = ask(engine, prompt, args.tokens, proposers=("recorded",), window=window)
                    made += [r for r in seq.rounds if r.n_rows == window + 1]
                found.append(_costs(made, window, right, pass_s))
                _say(json.dumps(found[-1]))
    return found


def _pass_s(engine: Engine, rows: int) -> float:
    """Median seconds of a pass over so many rows, one after another, nothing taken back."""
    target, taken = engine.target, []
    target.clear(0)
    target.decode([Span(0, 0, list(range(100, 164)), 0)])
    for i in range(24):
        tokens = [200 + i + j for j in range(rows)]
        started = perf_counter()
        target.decode([Span(0, target.length(0), tokens, rows)])
        taken.append(perf_counter() - started)
    target.clear(0)
    engine.slots.all[0].tokens.clear()
    return statistics.median(taken[8:])


def _costs(made: Sequence[Round], window: int, right: float, pass_s: float) -> dict[str, Any]:
    steady = made[4:]  # the first ones are of a new shape
    lost = [seconds(r) for r in steady if r.n_accepted < r.n_drafted]
    won = [seconds(r) for r in steady if r.n_accepted == r.n_drafted]
    return {
        "window": window,
        "right": right,
        "acceptance": sum(r.n_accepted for r in made) / max(1, sum(r.n_drafted for r in made)),
        "pass_ms": 1e3 * pass_s,
        "rejected": len(lost),
        "rejected_over_pass": statistics.median(lost) / pass_s if lost else None,
        "held_over_pass": statistics.median(won) / pass_s if won else None,
        "by_accepted": {
            n: _parts([r for r in steady if r.n_accepted == n]) for n in range(window + 1)
        },
    }


def _parts(made: Sequence[Round]) -> dict[str, float]:
    """Where the time of such rounds went, in milliseconds."""
    if not made:
        return {"n": 0}
    timings = [r.timing for r in made]
    parts = {
        "draft_ms": [t.draft_s for t in timings],
        "verify_ms": [t.verify_s for t in timings],
        "rest_ms": [t.overhead_s for t in timings],
    }
    medians = {name: round(1e3 * statistics.median(each), 3) for name, each in parts.items()}
    return {"n": len(made), **medians}


# -- turns -------------------------------------------------------------------------------------


def turn(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The first token of a second turn, again, and edited, over reading just what is new."""
    found: dict[str, Any] = {"context": args.context, "new": args.new}
    with Engine(settings(model, args, "suffix")) as engine:
        text = [100 + (7919 * i) % (engine.target.n_vocab - 200) for i in range(2 * args.context)]
        ask(engine, text[:600], 4)
        first = ask(engine, text[: args.context - args.new - 32], 32, owner="a").tokens
        said = list(first)
        for name, shift in (("second turn", 0), ("again", 0), ("edited", 500)):
            new = text[args.context + shift : args.context + shift + args.new]
            seq = ask(engine, [*said, *new], 16, owner="a")
            first_s = (seq.first_token or 0.0) - seq.submitted
            found[name] = {"read": len(said) + len(new) - seq.n_reused, "ms": 1e3 * first_s}
        new = text[args.context : args.context + args.new]
        only = engine.call(lambda: _only_new(engine, said, new)).result()
    found["only_new_ms"] = 1e3 * only
    found["second_turn_over_only_new"] = found["second turn"]["ms"] / (1e3 * only)
    return found


def _only_new(engine: Engine, said: list[int], new: list[int]) -> float:
    """Reading the new tokens after the old ones, as one pass, and choosing the first token."""
    target, taken = engine.target, []
    target.clear(0)
    at = len(said) - 1
    for start in range(0, at, 512):
        target.decode([Span(0, start, said[start : min(start + 512, at)], 0)])
    saved = target.save(0)
    for _ in range(4):
        target.restore(0, saved)
        started = perf_counter()
        target.decode([Span(0, at, [said[-1], *new], 1)])[0][0].argmax()
        taken.append(perf_counter() - started)
    target.clear(0)
    engine.slots.all[0].tokens.clear()
    return statistics.median(taken[1:])


# -- memory ------------------------------------------------------------------------------------


def memory(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What the plan says and what is gone from the GPU; without one, what is planned."""
    made = settings(model, args, "suffix")
    before = sum(d.free_bytes for d in library.devices() if d.kind == "gpu")
    with Engine(made) as engine:
        text = [100 + i % 5000 for i in range(1200)]
        ask(engine, text, 32)
        after = sum(d.free_bytes for d in library.devices() if d.kind == "gpu")
        context = replace(made.context, n_snapshots=engine.target.settings.n_snapshots)
        n_snapshots = engine.target.settings.n_snapshots
    target, drafters = wanted_files(replace(made, context=context))
    plan = plan_here(load_list(target, drafters))
    items = {f"{i.what} ({i.place})": i.n_bytes for i in plan.items}
    taken = before - after
    return {
        "snapshots": n_snapshots,
        "items": items,
        "planned_gpu": plan.on_gpu,
        "taken_gpu": taken,
        "planned_over_taken": plan.on_gpu / taken if taken > 0 else None,
    }


# -- passes ------------------------------------------------------------------------------------


def passes(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds by rows, for several numbers of snapshots, and of copies of the state."""
    loaded = Model(model, ModelSettings())
    try:
        return {str(n): _passes_with(loaded, n, args) for n in args.snapshots}
    finally:
        loaded.close()


def _passes_with(model: Model, n_snapshots: int, args: argparse.Namespace) -> dict[str, Any]:
    size = ContextSettings(4096, threads=args.threads, n_snapshots=n_snapshots)
    target = Context(model, replace(size, n_outputs=max(args.rows)))
    try:
        found = {rows: _pass_ms(target, rows) for rows in args.rows}
    finally:
        target.close()
    _say(f"{n_snapshots} snapshots: {json.dumps(found)}")
    return {"snapshots": target.free_rollback, "by_rows": found}


def _pass_ms(target: Context, rows: int) -> dict[str, float]:
    """A pass as a draft makes it; one that nothing has to be taken back of; and a rejection."""
    target.clear(0)
    target.decode([Span(0, 0, list(range(100, 164)), 0)])

    def once(n_logits: int) -> float:
        span = Span(0, target.length(0), [200 + j for j in range(rows)], n_logits)
        started = perf_counter()
        target.decode([span])
        return perf_counter() - started

    def reject() -> float:
        once(rows)
        started = perf_counter()
        target.truncate(0, target.length(0) - rows + 1)
        target.settle()
        return perf_counter() - started

    kinds: dict[str, Callable[[], float]] = {"drafted": lambda: once(rows), "kept": lambda: once(1)}
    if rows > 1:
        kinds["rejection"] = reject
    medians = {
        name: statistics.median([run() for _ in range(8)][3:]) for name, run in kinds.items()
    }
    return {name: round(1e3 * seconds, 3) for name, seconds in medians.items()}


# -- windows -----------------------------------------------------------------------------------


def windows(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second at fixed windows and by the controller, which also tells its prices."""
    found: dict[str, Any] = {}
    with Engine(settings(model, args, "suffix")) as engine:
        texts = prompts(engine)
        for window in (*args.windows, None):
            ask(engine, texts[0], 16, window=window, owner="first")
            answers = [ask(engine, p, args.tokens, window=window, owner="b") for p in texts]
            found[str(window)] = {
                "rates": [round(rate(seq), 1) for seq in answers],
                "rounds": [[told(r) for r in seq.rounds] for seq in answers],
            }
            _say(f"window {window}: {found[str(window)]['rates']} tok/s")
        found["rollback"] = engine.target.free_rollback
        found["prices"] = None if engine.prices is None else engine.prices.to_dict()
    return found


# -- odds and ends -----------------------------------------------------------------------------


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--preset", choices=stand_ins.HYBRIDS, default="tiny")
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--model", type=Path, help="a stand-in that is there already")
    parser.add_argument("--folder", type=Path, help="where the stand-in is written; /dev/shm")
    server = os.environ.get("LLAMA_SERVER")
    parser.add_argument("--server", type=Path, default=server, help="llama.cpp's llama-server")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--context", type=int, default=4000, help="of the second turn")
    parser.add_argument("--new", type=int, default=100, help="tokens new in the second turn")
    parser.add_argument("--threads", type=int, default=0)
    usual = ("speed", "rounds", "turn", "memory")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=usual)
    parser.add_argument("--snapshots", type=int, nargs="+", default=[0, 7], help="of `passes`")
    rows = [1, 2, 4, 8, 9, 16, 17, 32, 64]
    parser.add_argument("--rows", type=int, nargs="+", default=rows, help="of `passes`")
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 7, 16, 32, 63])
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args()


_PARTS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "speed": speed,
    "rounds": rounds,
    "turn": turn,
    "memory": memory,
    "passes": passes,
    "windows": windows,
}

if __name__ == "__main__":
    main()

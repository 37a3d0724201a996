"""Many streams, deep contexts, short and long answers: the controller, plain decoding, llama.cpp.

Servers stay loaded side by side; every cell (streams, depth, answer, text) is asked of all subjects
in turn, forwards and then backwards, until the time is over, so that drift hits all alike. Ratios
come from neighbours in time, with intervals of 95 %. All are asked the same, no answer ends before
its length, and nobody finds what another one read: plain decoding and the controller are one server
with a key for each. Two lots, one after the other: many streams in short contexts, few in deep
ones.

Speed is what the clients get: all tokens of a burst over its time, from the first request to the
last token. The speed after the first token is recorded too, but compares nobody: its clock starts
with the first stream's first token, so whoever gives that sooner would seem the slower. First
tokens (their mean) and prefill (tokens of all prompts until the last first token) are told apart.

On a GPU, with a stand-in (benchmarks/models/expand.py --context 32768) and llama.cpp's own binary:
  python -m benchmarks.measurements.load --model 8b-q5_0.gguf --server bin/llama-server --quick \
    --json out.json
Cells by name, in this order (what is cut leaves those that are done):
  python -m benchmarks.measurements.load --model 8b-q5_0.gguf --server bin/llama-server \
    --cells 4:500:96:chat 16:500:16:edit 1:7000:400:extract --budget 1 --settle 3 --json out.json
On a CPU:
  python -m benchmarks.measurements.load --streams 1 4 8 --depths 500 2000 7000 --json out.json
Beside plain decoding against itself, to tell a loss from noise:
  python -m benchmarks.measurements.load --again --no-peer --cells 8:500:48:edit --json out.json
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import shlex
import statistics
import textwrap
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from itertools import count, product
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import psutil

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio, ratio_of_repeats, recorded, shown
from parlay.bench.peer import PeerSettings
from parlay.bench.statistics import Estimate
from parlay.hub.resolving import resolve_model
from parlay.llama.vocabulary import open_vocabulary

TOPICS = ("rain", "bread", "a bridge", "bees", "glass", "maps", "salt", "trains")
TEXTS = ("chat", "edit", "extract")
CHARACTERS = 3.3  # of a token, in code
SHALLOW = 500  # tokens of a prompt; deeper ones are asked of fewer slots
DEEP_SLOTS = 4
WAKING = 50_000  # added to a prompt's number: what is asked next must not begin alike
PLAIN, AUTO, AGAIN = "plain", "controller", "again"
PEER, NGRAM = "llama.cpp", "llama.cpp ngram-mod"
RATIOS = {
    "controller over plain": (AUTO, PLAIN, "tokens_per_second"),
    "plain over itself": (AGAIN, PLAIN, "tokens_per_second"),
    "plain over llama.cpp": (PLAIN, PEER, "tokens_per_second"),
    "prefill over llama.cpp": (PLAIN, PEER, "prefill_per_second"),
    "first token over llama.cpp": (PLAIN, PEER, "first_ms"),
    "controller over ngram-mod": (AUTO, NGRAM, "tokens_per_second"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of load."""

    streams: int
    depth: int  # tokens of each prompt, roughly
    answer: int  # most tokens of each answer
    text: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer as the client saw it."""

    n_tokens: int
    n_prompt: int
    first_s: float
    last_s: float
    prompt_s: float  # what the server says it took to read the prompt


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst: all streams of a cell at once."""

    subject: str
    cell: Cell
    tokens_per_second: float  # of all streams together, prompts included
    decode_per_second: float  # since the first token of the first stream; compares nobody
    first_ms: float  # mean
    prompt_ms: float  # mean, by the server's clock
    prefill_per_second: float
    n_tokens: int
    n_prompt: int


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    samples: list[Sample] = []
    for cells, slots, context in lots(args) if args.cells is None else named_lots(args.cells):
        _run_lot(args, cells, slots, context, samples)
    _print(summary(samples))
    whole = overall(samples)
    _keep(samples, args.json, whole)
    for name, over in whole.items():
        print(f"all cells: {name} {shown(over)}")


def _keep(samples: Sequence[Sample], path: str | None, whole: Mapping[str, Estimate]) -> None:
    """All there is so far: a run that is cut leaves what it has."""
    if path:
        record = {
            "samples": [asdict(sample) for sample in samples],
            "cells": summary(samples),
            "overall": {name: recorded(over) for name, over in whole.items()},
        }
        Path(path).write_text(json.dumps(record, indent=1))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--draft", help="absent: what the server would choose")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16, 32])
    parser.add_argument("--depths", type=int, nargs="+", default=[500, 2000, 7000, 28000])
    parser.add_argument("--answers", type=int, nargs="+", default=[16, 96, 400])
    parser.add_argument("--texts", choices=TEXTS, nargs="+", default=list(TEXTS))
    parser.add_argument(
        "--cells",
        type=named_cell,
        nargs="+",
        metavar="STREAMS:DEPTH:ANSWER:TEXT",
        help="these alone, in this order",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells, in minutes")
    parser.add_argument("--budget", type=float, default=900.0, help="seconds of each lot")
    parser.add_argument("--least", type=int, default=1, help="pairs of each cell, at least")
    parser.add_argument("--settle", type=float, default=90.0, help="wait so long for quiet")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--server", help="llama.cpp's binary; absent: the one in xllamacpp")
    parser.add_argument("--ngram", action="store_true", help="its ngram-mod too (needs --server)")
    parser.add_argument("--again", action="store_true", help="plain decoding against itself too")
    parser.add_argument("--no-peer", action="store_true", help="the own server only")
    parser.add_argument(
        "--own",
        default="",
        metavar="ARGUMENTS",
        help='further arguments of parlay serve: --own="--set runtime.llama.kv-unified=true"',
    )
    parser.add_argument("--json", help="file for the raw samples")
    args = parser.parse_args(argv)
    if args.ngram and not args.server:
        parser.error("--ngram needs --server")
    return _quick(args) if args.quick else args


def _quick(args: argparse.Namespace) -> argparse.Namespace:
    """Fewer of everything, and a budget of two minutes for each lot."""
    args.streams = [n for n in args.streams if n in (1, 4, 12, 16)]
    args.depths = [n for n in args.depths if n in (500, 7000, 28000)]
    args.answers = [n for n in args.answers if n == 96] or args.answers[:1]
    args.budget = min(args.budget, 120.0)
    return args


# -- what is asked ------------------------------------------------------------------------------


def lots(args: argparse.Namespace) -> list[tuple[list[Cell], int, int]]:
    """Cells with the slots and the context that they need: not all of all, but each of each."""
    shallow = [n for n in args.depths if n <= SHALLOW]
    deep = [n for n in args.depths if n > SHALLOW]
    few = [n for n in args.streams if n <= DEEP_SLOTS]
    made = []
    for streams, depths in ((args.streams, shallow), (few, deep)):
        cells = _cells(streams, depths, args.answers, args.texts)
        if cells:
            made.append((cells, max(streams), _context(max(depths), max(args.answers))))
    return made


def named_cell(text: str) -> Cell:
    """A cell as it is written on the command line."""
    try:
        streams, depth, answer, kind = text.split(":")
        found = Cell(int(streams), int(depth), int(answer), kind)
    except ValueError:
        found = None
    if found is None or found.text not in TEXTS or min(found.streams, found.depth) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give STREAMS:DEPTH:ANSWER:TEXT")
    return found


def named_lots(cells: Sequence[Cell]) -> list[tuple[list[Cell], int, int]]:
    """The same for cells that were named: servers with as many slots as the widest needs."""
    shallow = [cell for cell in cells if cell.depth <= SHALLOW]
    deep = [cell for cell in cells if cell.depth > SHALLOW]
    return [
        (
            each,
            max(cell.streams for cell in each),
            _context(max(cell.depth for cell in each), max(cell.answer for cell in each)),
        )
        for each in (shallow, deep)
        if each
    ]


def _cells(
    streams: Sequence[int], depths: Sequence[int], answers: Sequence[int], texts: Sequence[str]
) -> list[Cell]:
    """Every number of streams at every depth with a middling answer, the other answers for the
    fewest and the most streams; texts in turn."""
    usual = sorted(answers)[len(answers) // 2] if answers else 0
    ends = {min(streams, default=0), max(streams, default=0)}
    asked = [
        (n, depth, answer)
        for n, depth, answer in product(streams, depths, answers)
        if answer == usual or n in ends
    ]
    return [Cell(*each, texts[i % len(texts)]) for i, each in enumerate(asked)]


def _context(depth: int, answer: int) -> int:
    return -(-(depth * 5 // 4 + answer + 128) // 256) * 256


def prompt(cell: Cell, i: int, salt: int) -> str:
    """A text of about so many tokens that no cache has seen, and what to do with it."""
    head = f"[{salt:05}-{i:02}] "  # first, so that nothing after it is found in a cache
    body = _source(salt + i, int(cell.depth * CHARACTERS))
    if cell.text == "edit":
        return (
            f"{head}Write this code again, with `self` renamed to `me`.\n\n```python\n{body}\n```"
        )
    if cell.text == "extract":
        return f"{head}{body}\n\nCopy the first ten lines of the text above, word by word."
    return f"{head}{body}\n\nForget the above. Tell me about {TOPICS[i % len(TOPICS)]}."


def _source(at: int, n: int) -> str:
    """Real code, another part of it each time."""
    text = "".join(inspect.getsource(module) for module in (argparse, textwrap, statistics))
    start = at * 997 % (len(text) // 2)
    return (text * (1 + n // len(text) + 1))[start : start + n]


# -- servers ------------------------------------------------------------------------------------


def _run_lot(
    args: argparse.Namespace,
    cells: Sequence[Cell],
    slots: int,
    context: int,
    samples: list[Sample],
) -> None:
    model = resolve_model(args.model)
    print(f"{len(cells)} cells, {slots} slots of {context} tokens", flush=True)
    with ExitStack() as stack:
        subjects = _own(stack, args, model, slots, context)
        if not args.no_peer:
            subjects += _peers(stack, args, model, slots, context)
        asyncio.run(_measure(subjects, cells, args, samples))


def _own(
    stack: ExitStack, args: argparse.Namespace, model: Path, slots: int, context: int
) -> list[served.Subject]:
    flags = {
        "--model": model, "--draft": args.draft, "--port": 0, "--slots": slots,
        "--context-size": context, "--threads": args.threads,
    }  # fmt: skip
    given = {name: value for name, value in flags.items() if value is not None}
    flat = [str(part) for pair in given.items() for part in pair]
    bets = {PLAIN: False, AUTO: True} | ({AGAIN: False} if args.again else {})
    keys = ("--set", f"server.api_keys={json.dumps(list(bets))}")
    own = stack.enter_context(served.parlay(*flat, *keys, *shlex.split(args.own)))
    served.wait_idle(own, args.settle)
    bias = _unending(model)
    return [
        served.Subject(name, own.url, {"speculation": on, "logit_bias": bias}, key=name)
        for name, on in bets.items()
    ]


def _unending(model: Path) -> dict[str, float]:
    """No answer ends before its length: neighbours change bits, and bits when a text ends."""
    with open_vocabulary(model) as vocabulary:
        return {str(token): -100.0 for token in sorted(vocabulary.ends)}


def _peers(
    stack: ExitStack, args: argparse.Namespace, model: Path, slots: int, context: int
) -> list[served.Subject]:
    kinds = {PEER: "none", NGRAM: "ngram-mod"} if args.ngram else {PEER: "none"}
    found = []
    for name, kind in kinds.items():
        settings = PeerSettings(
            str(model), kind, n_context=context * slots, threads=args.threads, n_slots=slots
        )
        url = stack.enter_context(served.llama(settings, args.server))
        found.append(served.Subject(name, url, {"cache_prompt": False, "ignore_eos": True}))
    return found


# -- measuring ----------------------------------------------------------------------------------


async def _measure(
    subjects: Sequence[served.Subject],
    cells: Sequence[Cell],
    args: argparse.Namespace,
    samples: list[Sample],
) -> None:
    salts = count(1)
    # llama.cpp's server closes a connection after five idle seconds, maybe just when it is used.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=1800, limits=limits) as client:
        shapes = {cell.streams: replace(cell, depth=64, answer=4) for cell in cells}
        for shape, subject in product(shapes.values(), subjects):  # once before it counts
            await _burst(client, subject, shape, next(salts))
        deadline = perf_counter() + args.budget
        for n_done in count():
            for cell in cells:
                if n_done >= args.least and perf_counter() > deadline:
                    return
                samples += await _pair(client, subjects, cell, next(salts))
                _keep(samples, args.json, {})


async def _pair(
    client: httpx.AsyncClient, subjects: Sequence[served.Subject], cell: Cell, salt: int
) -> list[Sample]:
    """All subjects there and back, with the same prompts.

    Each is woken first: a server and a GPU that nobody asked for a while begin slowly, and the
    first of all would pay for it every time.
    """
    found, waking = [], Cell(1, 16, 2, "chat")
    for back, order in enumerate((subjects, subjects[::-1])):
        for subject in order:
            await _burst(client, subject, waking, WAKING + 2 * salt + back)
            found.append(await _burst(client, subject, cell, 2 * salt + back))
    return found


async def _burst(
    client: httpx.AsyncClient, subject: served.Subject, cell: Cell, salt: int
) -> Sample:
    """All streams start together; the clock stops with the last one."""
    began = perf_counter()
    asked = [_stream(client, subject, cell, i, salt) for i in range(cell.streams)]
    streams = await asyncio.gather(*asked)
    return _sample(subject.name, cell, streams, perf_counter() - began)


def _sample(name: str, cell: Cell, streams: Sequence[Stream], spent_s: float) -> Sample:
    n_tokens, n_prompt = sum(s.n_tokens for s in streams), sum(s.n_prompt for s in streams)
    first_s = statistics.fmean(s.first_s for s in streams)
    decoding_s = max(s.last_s for s in streams) - min(s.first_s for s in streams)
    return Sample(
        subject=name,
        cell=cell,
        tokens_per_second=n_tokens / spent_s,
        decode_per_second=(n_tokens - len(streams)) / max(decoding_s, 1e-9),
        first_ms=first_s * 1e3,
        prompt_ms=statistics.fmean(s.prompt_s for s in streams) * 1e3,
        prefill_per_second=n_prompt / max(s.first_s for s in streams),
        n_tokens=n_tokens,
        n_prompt=n_prompt,
    )


async def _stream(
    client: httpx.AsyncClient, subject: served.Subject, cell: Cell, i: int, salt: int
) -> Stream:
    body = {
        "model": "local-model",
        "messages": [{"role": "user", "content": prompt(cell, i, salt)}],
        "max_tokens": cell.answer,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **subject.extra,
    }
    usage: dict[str, int] = {}
    began, first, prompt_ms = perf_counter(), 0.0, 0.0
    url = f"{subject.url}/v1/chat/completions"
    async with client.stream("POST", url, json=body, headers=subject.headers) as response:
        response.raise_for_status()
        async for chunk in _chunks(response):
            if not first and any(c["delta"].get("content") for c in chunk["choices"]):
                first = perf_counter() - began
            usage = chunk.get("usage") or usage
            prompt_ms = (chunk.get("timings") or {}).get("prompt_ms", prompt_ms)
    last = perf_counter() - began
    n, n_prompt = usage["completion_tokens"], usage["prompt_tokens"]
    return Stream(n, n_prompt, first or last, last, prompt_ms / 1e3)


async def _chunks(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


# -- what came of it ----------------------------------------------------------------------------


def summary(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """For each cell the medians of every subject, and the ratios that are promised."""
    return [
        {
            **asdict(cell),
            "subjects": _medians(found),
            "ratios": {name: each["ratio"] for name, each in _ratios(found).items()},
            "intervals": {n: [each["low"], each["high"]] for n, each in _ratios(found).items()},
        }
        for cell, found in _by_cell(samples).items()
    ]


def overall(samples: Sequence[Sample]) -> dict[str, Estimate]:
    """Each ratio over all cells, a cell being what a prompt is elsewhere."""
    cells = _by_cell(samples)
    found = {}
    for name, (own, base, field) in RATIOS.items():
        both = {str(cell): by for cell, by in cells.items() if own in by and base in by}
        if both:
            sides = (
                {cell: _figures(by[side], field) for cell, by in both.items()}
                for side in (own, base)
            )
            found[name] = ratio(*sides)
    return found


def _by_cell(samples: Sequence[Sample]) -> dict[Cell, dict[str, list[Sample]]]:
    found: defaultdict[Cell, defaultdict[str, list[Sample]]]
    found = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        found[sample.cell][sample.subject].append(sample)
    return {cell: dict(by) for cell, by in found.items()}


def _medians(found: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    names = [field.name for field in fields(Sample) if field.name not in ("subject", "cell")]
    return {
        subject: {n: round(statistics.median(getattr(s, n) for s in mine), 3) for n in names}
        for subject, mine in found.items()
    }


def _ratios(found: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Of neighbours in time."""
    return {
        name: recorded(ratio_of_repeats(_figures(found[own], field), _figures(found[base], field)))
        for name, (own, base, field) in RATIOS.items()
        if own in found and base in found
    }


def _figures(samples: Sequence[Sample], field: str) -> list[float]:
    return [max(getattr(sample, field), 1e-9) for sample in samples]


def _print(found: Sequence[dict[str, Any]]) -> None:
    head = f"{'streams':>7} {'depth':>6} {'answer':>6} {'text':<8}"
    print(f"{head} {'tok/s':>28} {'first ms':>24}  ratios")
    for cell in found:
        speeds = [f"{s['tokens_per_second']:.0f}" for s in cell["subjects"].values()]
        firsts = [f"{s['first_ms']:.0f}" for s in cell["subjects"].values()]
        ratios = ", ".join(
            f"{name} {value:.3f} [{low:.3f}, {high:.3f}]"
            for (name, value), (low, high) in zip(
                cell["ratios"].items(), cell["intervals"].values(), strict=True
            )
        )
        where = f"{cell['streams']:>7} {cell['depth']:>6} {cell['answer']:>6} {cell['text']:<8}"
        print(f"{where} {' / '.join(speeds):>28} {' / '.join(firsts):>24}  {ratios}")
    print("tok/s and first ms: " + " / ".join(found[0]["subjects"]) if found else "no cells")


if __name__ == "__main__":
    main()

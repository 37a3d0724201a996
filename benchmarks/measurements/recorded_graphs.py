"""Passes on a GPU by how CUDA's recordings are kept: as llama.cpp does it, by shape, or not at all.

For each number of rows: the first pass after another shape, the second one, those that follow. All
ways take turns on one context. Also whether their logits are equal to the bit, and the GPU's memory
that recordings by shape take.

  python -m benchmarks.measurements.recorded_graphs --model 27b-q5_0.gguf --rows 1 4 8 16 17 33
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.hacks.recorder import Recorder
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.timing.probe_text import real_tokens

OWN, KEPT, NONE = "llama.cpp's own", "by shape", "launched"
WAYS: Final = (OWN, KEPT, NONE)
N_PREFIX, N_SAME = 64, 5
PAGE = 256  # tokens after which attention has another shape
N_WARM_UP = 1  # turns in which kernels are loaded and recordings made

Times = dict[int, list[list[float]]]  # milliseconds by rows, and how many equal passes came before


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 17, 33])
    parser.add_argument("--turns", type=int, default=4)
    args = parsed(parser, argv)
    settings = ContextSettings(context_size=4096)
    with Model(resolve_model(args.model), ModelSettings()) as model:
        before = gpu_megabytes()
        context = Context(model, settings)
        if context.recorder is None:
            raise SystemExit("no recordings by shape here: a CUDA build of llama.cpp is needed")
        opened = gpu_megabytes()
        found, rows = measured(context, context.recorder, args.rows, args.turns)
        show(found)
        same = all(np.array_equal(rows[OWN], rows[way]) for way in WAYS)
        megabytes = {"context": opened - before, "then": gpu_megabytes() - opened}
        print(f"logits equal to the bit: {same}; MB of the GPU's memory: {megabytes}")
        keep(args.json, {"ms": found, "same": same, "megabytes": megabytes})
        context.close()


def measured(
    context: Context, recorder: Recorder, rows: Sequence[int], n_turns: int
) -> tuple[dict[str, Times], dict[str, NDArray[np.float32]]]:
    """Milliseconds by way; and the logits that each way gave last."""
    text = real_tokens(context, N_PREFIX + max(rows))
    found: dict[str, Times] = {way: {n: [[] for _ in range(N_SAME)] for n in rows} for way in WAYS}
    logits: dict[str, NDArray[np.float32]] = {}
    for turn in range(N_WARM_UP + n_turns):
        for way in WAYS:
            take(context, recorder, way)
            for n in rows:
                make_room(context, text, N_SAME * n)
                for i in range(N_SAME):
                    at, started = context.length(0), perf_counter()
                    last = context.decode([Span(0, at, text[N_PREFIX : N_PREFIX + n], n)])
                    seconds = perf_counter() - started
                    if context.free_rollback >= n:
                        context.truncate(0, at)
                    if turn >= N_WARM_UP:
                        found[way][n][i].append(1e3 * seconds)
            logits[way] = last[0].copy()
    take(context, recorder, KEPT)
    return found, logits


def make_room(context: Context, text: Sequence[int], n_rows: int) -> None:
    """A short text in the cache. What cannot be cut goes on, as far as the first page goes."""
    if not 0 < context.length(0) <= PAGE - n_rows:
        context.clear(0)
        context.decode([Span(0, 0, text[:N_PREFIX], 1)])


def take(context: Context, recorder: Recorder, way: str) -> None:
    """Passes go this way from now on."""
    recorder.kept.choose(None if way == NONE else way)
    context.recorder = recorder if way == KEPT else None


def show(found: dict[str, Times]) -> None:
    for way, by_rows in found.items():
        for n, times in by_rows.items():
            first, second, *later = (median(each) for each in times)
            steady = median(later)
            print(f"{way:16} {n:>3} rows: {steady:6.2f} ms; ", end="")
            print(f"first {first - steady:+5.2f}, second {second - steady:+5.2f}", flush=True)


def gpu_megabytes() -> int:
    """Of the GPU's memory, what is taken."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(told.split()[0])


if __name__ == "__main__":
    main()

"""Prompts on a CPU whose kernels' work memory begins where a line of the cache does, or elsewhere.

Two contexts of one model read the same prompt in turn. One has its work memory aligned, as ever;
that of the other lies as `new` puts it in three processes of four.

  python -m benchmarks.measurements.work_memory --depths 1500 6000 --pairs 4
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import perf_counter

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.ratios import ratio_of_repeats, recorded, shown
from benchmarks.shared.record import keep
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.hacks import work_memory
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings

CHUNK = 512


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--depths", type=int, nargs="+", default=[1500])
    parser.add_argument("--pairs", type=int, default=4)
    args = parsed(parser, argv)
    if not work_memory.can_align():
        raise SystemExit("this system or build lets nobody move the work memory")
    found = {}
    with Model(resolve_model(args.model), ModelSettings(gpu_layers=0)) as model:
        settings = ContextSettings(max(args.depths) + CHUNK, n_batch=CHUNK)
        aligned, astray = Context(model, settings), Context(model, settings)
        for depth in args.depths:
            speeds: dict[str, list[float]] = {"aligned": [], "astray": []}
            read(aligned, depth), read(astray, depth)  # both have as much as they need
            put_astray(astray)
            for _ in range(args.pairs):
                speeds["aligned"].append(read(aligned, depth))
                speeds["astray"].append(read(astray, depth))
            over = ratio_of_repeats(speeds["aligned"], speeds["astray"])
            print(f"{depth} tokens: aligned over astray {shown(over)}", flush=True)
            found[depth] = {**speeds, "over": recorded(over)}
        aligned.close()
        astray.close()
    keep(args.json, found)


def read(context: Context, n_tokens: int) -> float:
    """A prompt of so many tokens, by the kernels that prompts have: tokens per second."""
    text = (list(context.sample) * (n_tokens // len(context.sample) + 1))[:n_tokens]
    context.clear(0)
    started = perf_counter()
    for at in range(0, n_tokens, CHUNK):
        context.decode([Span(0, at, text[at : at + CHUNK], 1, apart=True)])
    return n_tokens / (perf_counter() - started)


def put_astray(context: Context) -> None:
    """Where `malloc` puts it if that is in the middle of a line; nobody moves it back."""
    work, context._work = context._work, None
    libc = work_memory._libc()
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    for record in () if work is None else work._records:
        place = libc.malloc(record.n_bytes)
        while place % work_memory.LINE == 0:  # the next one has another beginning
            libc.malloc(16)
            place = libc.malloc(record.n_bytes)
        libc.free(record.work)
        record.work = place


if __name__ == "__main__":
    main()

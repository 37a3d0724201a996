"""What holes in a cache cost, and what it costs to close them: the figures behind a default.

Fills one sequence, slides it (half of its cells become holes), and times passes over one token
before and after a compaction. Other jobs on the machine make every figure worse: take the best.

Example: python -m benchmarks.measurements.cache_care --model default --context 4096 --threads 1
"""

from __future__ import annotations

from time import perf_counter

from benchmarks.shared.arguments import parser_of
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings

KEEP = 64
CHUNK = 512


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    with Model(resolve_model(args.model), ModelSettings()) as model:
        for size in args.context:
            settings = ContextSettings(
                size, threads=args.threads, n_batch=CHUNK, cache_type_k="f16", cache_type_v="f16"
            )
            context = Context(model, settings)
            print(f"context {size}: {measure(context, args.repeats)}")
            context.close()


def measure(context: Context, repeats: int) -> str:
    size = context.context_size - 2 * repeats
    fill(context, size)
    full = pass_ms(context, repeats)
    context.shift(0, KEEP, (size - KEEP) // 2)
    slid = pass_ms(context, repeats)
    began = perf_counter()
    context.compact(0)
    took = (perf_counter() - began) * 1e3
    compact = pass_ms(context, repeats)
    return f"full {full:.1f} ms, slid {slid:.1f}, compacted {compact:.1f}; compaction {took:.0f} ms"


def fill(context: Context, n: int) -> None:
    for start in range(0, n, CHUNK):
        tokens = [(7919 * i + 11) % context.n_vocab for i in range(start, min(n, start + CHUNK))]
        context.decode([Span(0, start, tokens, 0)])


def pass_ms(context: Context, repeats: int) -> float:
    """The best of several passes over one token; the cache is left as it was."""
    start, times = context.length(0), []
    for i in range(repeats):
        began = perf_counter()
        context.decode([Span(0, start + i, [i], 1)])
        times.append(perf_counter() - began)
    context.truncate(0, start)
    return min(times) * 1e3


if __name__ == "__main__":
    main()

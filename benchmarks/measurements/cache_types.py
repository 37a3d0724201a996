"""Which cache types keep passes exact, and what they cost (docs/explanation/exactness.md).

  python -m benchmarks.measurements.cache_types [MODEL.gguf]

Passes of one and of four tokens, interleaved over all types, and the shapes that the probe finds.
"""

from __future__ import annotations

import statistics
from time import perf_counter

from benchmarks.shared.arguments import parser_of
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.runtime.exact.class_probe import probe

TYPES = (("f16", "f16"), ("bf16", "f16"), ("q8_0", "f16"), ("f16", "bf16"), ("q8_0", "q8_0"))
LENGTHS = (64, 300, 1200, 1900)
REPEATS = 15


def fill(context: Context, length: int) -> None:
    """Let the cache hold so many tokens."""
    while (n := context.length(0)) < length:
        end = min(length, n + 64)
        tokens = [(i * 7919 + 11) % context.n_vocab for i in range(n, end)]
        context.decode([Span(0, n, tokens, 0)])


def timed(context: Context, length: int, rows: int) -> float:
    """Milliseconds of a pass, repeated in the same shape."""
    for _ in range(2):
        started = perf_counter()
        context.decode([Span(0, length, list(range(rows)), rows)])
        took = perf_counter() - started
        context.truncate(0, length)
    return took * 1e3


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", default="default", help="GGUF file")
    model = Model(resolve_model(parser.parse_args().model), ModelSettings())
    contexts = {
        types: Context(model, ContextSettings(2048, cache_type_k=types[0], cache_type_v=types[1]))
        for types in TYPES
    }
    for types, context in contexts.items():
        print(
            f"K {types[0]:5} V {types[1]:5} classes:",
            *(found.name for found in probe(context, 17, 1).classes),
        )
    for length in LENGTHS:
        for context in contexts.values():
            fill(context, length)
        samples = [
            {types: (timed(c, length, 1), timed(c, length, 4)) for types, c in contexts.items()}
            for _ in range(REPEATS)
        ]
        for types in TYPES:
            one, four = (statistics.median(s[types][i] for s in samples) for i in (0, 1))
            print(f"{length:5} cells, K {types[0]:5} V {types[1]:5}: {one:6.2f} and {four:6.2f} ms")


if __name__ == "__main__":
    main()

"""Caches apart or one for all: what passes over many sequences cost in each, ragged ones and gaps.

    python -m benchmarks.measurements.caches MODEL.gguf --sequences 16 --depths 256 2048 8192 \
        --json out.json

With caches apart llama.cpp cuts a pass where ids have gaps or rows differ; with one cache (the
deployment's `runtime.llama.kv-unified`) it cuts nothing, but each row looks at everybody's tokens.
Both are timed on the same texts, so that the setting can be chosen by price. Of a ragged pass with
caches apart the scheduler makes "three rows each" or "one row each" if that is cheaper. Two
minutes on a GPU; on a CPU give --sequences 4 --depths 128.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from time import perf_counter

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings

_CHUNK = 512


def main() -> None:
    args = _arguments()
    model = Model(resolve_model(args.model), ModelSettings())
    found = []
    try:
        for depth in args.depths:
            made = {kind: _timed(model, kind == "unified", depth, args) for kind in _KINDS}
            for case in cases(args.sequences):
                row = {kind: round(made[kind][case] * 1e3, 3) for kind in _KINDS}
                found.append({"depth": depth, "case": case, "ms": row})
                print(f"{depth:>6}  {case:<24} {row['apart']:>9.2f} {row['unified']:>9.2f}")
    finally:
        model.close()
    keep(args.json, found)


_KINDS = ("apart", "unified")


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("model", help="GGUF file, or default")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--depths", type=int, nargs="+", default=[256, 2048, 8192])
    parser.add_argument("--times", type=int, default=12, help="passes of each case")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def cases(n: int) -> dict[str, Mapping[int, int]]:
    """Rows by sequence id."""
    plain = dict.fromkeys(range(n), 1)
    some = {s: 3 if s % 4 == 0 else 1 for s in range(n)}
    return {
        "one row each": plain,
        "three rows each": dict.fromkeys(range(n), 3),
        "one of them has three": {**plain, n // 3: 3},
        "every fourth has three": some,
        "every second id": dict.fromkeys(range(0, n, 2), 1),
        "half of them": dict.fromkeys(range(n // 2), 1),
        "one gap": {s: 1 for s in plain if s != n // 2},
    }


def _timed(model: Model, unified: bool, depth: int, args: argparse.Namespace) -> dict[str, float]:
    n: int = args.sequences
    rows = 3 * n
    context = Context(
        model,
        ContextSettings(
            depth + 32, n, n_batch=max(_CHUNK, rows), n_outputs=rows, unified=unified,
            threads=args.threads,
        ),
    )  # fmt: skip
    try:
        for seq_id in range(n):
            for at in range(0, depth, _CHUNK):
                tokens = [_token(seq_id, i) for i in range(at, min(at + _CHUNK, depth))]
                context.decode([Span(seq_id, at, tokens, 0)])
        return {name: _median(context, rows, depth, args.times) for name, rows in cases(n).items()}
    finally:
        context.close()


def _median(context: Context, rows: Mapping[int, int], depth: int, times: int) -> float:
    """Of passes of one shape, the first three left out: they make its graph."""
    spans = [Span(s, depth, [_token(s, depth + i) for i in range(k)], k) for s, k in rows.items()]
    taken = []
    for _ in range(times + 3):
        began = perf_counter()
        context.decode(spans)
        taken.append(perf_counter() - began)
        for span in spans:
            context.truncate(span.seq_id, depth)
    return statistics.median(taken[3:])


def _token(seq_id: int, at: int) -> int:
    return 3 + (seq_id * 7919 + at * 104729) % 200


if __name__ == "__main__":
    main()

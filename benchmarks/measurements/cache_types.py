"""Which cache types keep passes exact on a CPU, and what they cost (docs/explanation/exactness.md).

  python -m benchmarks.measurements.cache_types [MODEL.gguf] --lengths 440 1450 6000 --json out.json

For each pair of types and length of text: seconds to read the text in chunks, milliseconds of a
pass over one row and over three after it, and whether the three agree with single ones to the bit.
With `usual` kernels as llama.cpp chooses them; else answers have the plain one, where that can be
chosen, and prompts their own, or with `plain` the same, or with `chat` those that an exact engine
gives a user's message, which the text is. All pairs in turn, so often as `--repeats`
says; the least time of each counts. The pairs are kept beside each other: 6,000 tokens of the
default model take ten minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.bench.suite import load_suite
from parlay.decoding.span import Span
from parlay.engine.exact.prompts import Boundaries, marks_of
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay_train.frame import Template

PAIRS = ("f16,f16,usual", "f16,f16", "bf16,f16", "q8_0,f16")
ROWS = (1, 3)
N_PASSES = 8  # of each width


def settings_of(pair: str) -> ContextSettings:
    """From f16,f16 or f16,f16,usual."""
    k, v, *kernels = pair.split(",")
    return ContextSettings(cache_type_k=k, cache_type_v=v, same_bits=kernels != ["usual"])


def text_of(model: Model, n: int) -> list[int]:
    """So many tokens of real prompts."""
    prompts = [str(p.messages[-1]["content"]) for p in load_suite("core-60").prompts]
    tokens = model.vocabulary.tokenize(" ".join(prompts))
    return (tokens * (n // len(tokens) + 1))[:n]


def message_of(model: Model, text: Sequence[int], n: int) -> list[int]:
    """Of a user, so that it takes n tokens with what the template writes around it."""
    frame = Template(model).frame
    n_words = n - len(frame.opening) - len(frame.closing)
    return [*frame.opening, *text[:n_words], *frame.closing]


def joints_of(pair: str, context: Context, chunk: int) -> Boundaries:
    """In which passes prompts are read."""
    if pair.endswith(",plain"):
        return Boundaries(chunk, context.context_size, kernels=True)
    if pair.endswith(",chat"):
        return Boundaries(chunk, context.context_size, marks_of(context.model), kernels=True)
    return Boundaries(chunk, kernels=True)


def seconds_to_read(context: Context, text: Sequence[int], joints: Boundaries) -> float:
    """From nothing."""
    context.clear(0)
    started, at = perf_counter(), 0
    while at < len(text):
        n, apart = joints.next_pass(text, at)
        context.decode([Span(0, at, text[at : at + n], 1, apart=apart)])
        at += n
    return perf_counter() - started


def ms_of_a_pass(context: Context, text: Sequence[int], n: int, rows: int) -> float:
    """After n tokens, each followed by the next one, as an answer goes on."""
    started = perf_counter()
    for at in range(n, n + rows * N_PASSES, rows):
        context.decode([Span(0, at, text[at : at + rows], rows)])
    took = perf_counter() - started
    context.truncate(0, n)
    return took * 1e3 / N_PASSES


def agree(context: Context, text: Sequence[int], n: int, rows: int) -> bool:
    """Whether rows in one pass have the bits of single ones, after n tokens."""
    together = np.array(context.decode([Span(0, n, text[n : n + rows], rows)])[0])
    context.truncate(0, n)
    single = [
        np.array(context.decode([Span(0, at, text[at : at + 1], 1)])[0][0])
        for at in range(n, n + rows)
    ]
    context.truncate(0, n)
    return np.array_equal(together, np.stack(single))


def measured(
    contexts: dict[str, Context], text: Sequence[int], n: int, chunk: int, repeats: int
) -> list[dict[str, object]]:
    """One length, all pairs in turn."""
    names = ("read_s", *(f"{rows}_rows_ms" for rows in ROWS))
    least = {pair: dict.fromkeys(names, float("inf")) for pair in contexts}
    for _ in range(repeats):
        for pair, context in contexts.items():
            message = message_of(context.model, text, n)
            read_s = seconds_to_read(context, message, joints_of(pair, context, chunk))
            times = read_s, *(ms_of_a_pass(context, text, n, rows) for rows in ROWS)
            for name, took in zip(names, times, strict=True):
                least[pair][name] = min(took, least[pair][name])
    return [
        {
            "types": pair,
            "n_tokens": n,
            **least[pair],
            "agree": agree(context, text, n, max(ROWS)),
        }
        for pair, context in contexts.items()
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", default="default", help="GGUF file")
    parser.add_argument(
        "--pairs", nargs="+", default=PAIRS, help="f16,f16[,usual, plain or chat] ..."
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[440, 1450])
    parser.add_argument("--chunk", type=int, default=512, help="tokens read in a pass")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where the record goes")
    args = parser.parse_args()
    size = max(args.lengths) + max(ROWS) * N_PASSES
    found: list[dict[str, object]] = []
    with Model(resolve_model(args.model), ModelSettings(gpu_layers=0)) as model:
        text = text_of(model, size)
        contexts = {
            pair: Context(model, replace(settings_of(pair), context_size=size, n_batch=args.chunk))
            for pair in args.pairs
        }
        for n in args.lengths:
            for row in measured(contexts, text, n, args.chunk, args.repeats):
                found.append(row)
                print(
                    f"{n:6} tokens, K,V {row['types']:13}: read in {row['read_s']:7.2f} s, one row"
                    f" {row['1_rows_ms']:6.2f} ms, three {row['3_rows_ms']:6.2f} ms,"
                    f" {'same bits' if row['agree'] else 'other bits'}",
                    flush=True,
                )
        for context in contexts.values():
            context.close()
    keep(args.json, found)


if __name__ == "__main__":
    main()

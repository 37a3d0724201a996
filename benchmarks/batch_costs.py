"""What a pass costs by its sequences and rows, up to 512 rows: a cost table for `parlay plan`.

  python benchmarks/batch_costs.py MODEL.gguf --name gpu-27b-batch --out gpu-27b-batch.json \
      --origin "Measured: a 27B stand-in at Q5_0 with llama.cpp on one H200."

Sequences in powers of two and around the steps of kernels, windows of 0 to 16, after 64 and after
1024 tokens of text; what a prompt's chunk costs; with --draft also a drafter's step for so many
sequences. The file is in the format of src/parlay/control/data/costs. Takes a minute or two on a
GPU; a small CPU needs --sequences 16 --contexts 64.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from parlay.control.cost import MAX_ROWS
from parlay.errors import LoadError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.models import resolve_model
from parlay.runtime.batches import measure_batches


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="GGUF file, or default")
    parser.add_argument("--draft", help="the drafter's GGUF file")
    parser.add_argument("--name", default="measured")
    parser.add_argument("--origin", default="measured by benchmarks/batch_costs.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sequences", type=int, default=256, help="at most")
    parser.add_argument("--contexts", default="64,1024", help="tokens in the cache")
    parser.add_argument("--times", type=int, default=3, help="passes of each shape")
    parser.add_argument("--budget-s", type=float, default=240.0)
    return parser.parse_args()


@contextlib.contextmanager
def opened(model: Model, longest: int, n_sequences: int) -> Iterator[tuple[Context, int]]:
    """The largest context that memory allows: fewer sequences rather than none."""
    size = longest + MAX_ROWS
    while True:
        try:
            settings = ContextSettings(size, n_sequences, n_batch=MAX_ROWS, n_outputs=MAX_ROWS)
            context = Context(model, settings)
            break
        except LoadError as error:
            if n_sequences == 1:
                raise
            say(f"{error}; trying half as many sequences")
            n_sequences //= 2
    try:
        yield context, n_sequences
    finally:
        context.close()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    given = arguments()
    contexts = [int(part) for part in given.contexts.split(",")]
    with contextlib.ExitStack() as stack:
        model = Model(resolve_model(given.model), ModelSettings())
        stack.callback(model.close)
        target, n = stack.enter_context(opened(model, max(contexts), given.sequences))
        drafter = None
        if given.draft:
            small = Model(resolve_model(given.draft), ModelSettings())
            stack.callback(small.close)
            drafter, _ = stack.enter_context(opened(small, 64, n))
        say(f"{n} sequences at most, contexts {contexts}, on {'GPU' if model.on_gpu else 'CPU'}")
        found = measure_batches(
            target,
            drafter,
            max_sequences=n,
            contexts=contexts,
            n_times=given.times,
            budget_s=given.budget_s,
            name=given.name,
            origin=given.origin,
            progress=say,
        )
    text = json.dumps(found.to_dict(), indent=2) + "\n"
    if given.out:
        given.out.write_text(text, "utf-8")
        say(f"wrote {given.out}; stable: {found.stable}")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()

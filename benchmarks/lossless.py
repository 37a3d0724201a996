"""The slow proof: greedy text with every proposer and window equals plain decoding byte for byte.

  python benchmarks/lossless.py              SmolLM2 at Q4_1, Q4_0, Q8_0, alone and four at once
  python benchmarks/lossless.py --types f16  where no shape is exact: how many texts differ

The tests run a part of this matrix (tests/test_lossless.py); this runs all of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parlay import Answer, Parlay
from parlay.bench.suite import load_suite
from parlay.llama.requantise import requantise
from parlay.models import default_model
from parlay.store import cache_folder

N_PROMPTS = 24
N_TOKENS = 128
WINDOWS = (1, 2, 4, 8, 16)
PROPOSERS = ("ngram", "suffix", "model")

Messages = list[dict[str, Any]]


def prompts(n: int = N_PROMPTS) -> list[Messages]:
    """A spread over the categories of the suite, short enough to read quickly."""
    every = [list(p.messages) for p in load_suite("core-60").prompts if not p.tools]
    short = sorted(every, key=lambda messages: len(str(messages)))[: 2 * n]
    return short[::2]


def answers(
    parlay: Parlay, texts: Sequence[Messages], draft: str, window: int, together: int = 1
) -> list[Answer]:
    """Answers to all prompts, so many at a time."""
    found: list[Answer] = []
    for i in range(0, len(texts), together):
        streams = [
            parlay.stream(text, max_tokens=N_TOKENS, draft=draft, window=window)
            for text in texts[i : i + together]
        ]
        found += [stream.answer for stream in streams]
    return found


def file_of(ftype: str) -> Path:
    """SmolLM2 in another file type, kept in the cache folder."""
    if ftype == "q4_1":
        return default_model()
    path = cache_folder() / "models" / f"smollm2-{ftype}.gguf"
    if not path.exists():
        requantise(default_model(), path, ftype)
    return path


def compare(ftype: str, together: int) -> int:
    """Run one file through the whole matrix; returns how many texts differ."""
    texts = prompts()
    drafter = file_of("q4_0" if ftype != "q4_0" else "q8_0")
    n_different = 0
    with Parlay(
        file_of(ftype), draft=f"ngram,suffix,{drafter}", slots=together, context_size=1024
    ) as parlay:
        plain = [a.text for a in answers(parlay, texts, "none", 0)]
        limit = parlay.engine.exact.limit
        print(f"{ftype}: {parlay.engine.mode}, every shape up to {limit} rows is exact", flush=True)
        for draft in PROPOSERS:
            for window in WINDOWS:
                started = time.time()
                found = answers(parlay, texts, draft, window, together)
                different = sum(a.text != b for a, b in zip(found, plain, strict=True))
                drafted = sum(a.speculation.n_drafted for a in found)
                exact = sum(a.exact for a in found)
                print(
                    f"{ftype} {draft:7} window {window:2}, {together} at once: {different} of"
                    f" {len(texts)} differ, {exact} called exact, {drafted} drafted,"
                    f" {time.time() - started:.0f} s",
                    flush=True,
                )
                n_different += different if parlay.engine.mode == "exact" else 0
    return n_different


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--types", nargs="*", default=["q4_1", "q4_0", "q8_0"])
    ap.add_argument("--together", nargs="*", type=int, default=[1, 4])
    args = ap.parse_args()
    wrong = sum(compare(ftype, n) for ftype in args.types for n in args.together)
    print(f"{wrong} texts differ where none may")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

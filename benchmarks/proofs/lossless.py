"""The slow proof: text with every proposer and window equals plain decoding byte for byte.

  python -m benchmarks.proofs.lossless          SmolLM2 at Q4_1, Q4_0, Q8_0, alone and four at once
  python -m benchmarks.proofs.lossless --types f16   where no shape is exact: how many texts differ
  python -m benchmarks.proofs.lossless --proposers default-block --prompts 12     a part of it

Greedy with every window, and drawn with one of them. Of the drafters, twin is the same model in
another file type, nearly always right; default and default-block are the shipped ones. Plain texts
come from an engine without any of them. The tests run a part of this (tests/test_lossless.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.arguments import parser_of
from parlay import Answer, Parlay
from parlay.bench.suite import load_suite
from parlay.engine.start import MODEL
from parlay.models import SHIPPED_DRAFTERS, default_model
from parlay.store import cache_folder
from tests.requantise import requantise

N_PROMPTS = 24
N_TOKENS = 128
WINDOWS = (1, 2, 4, 8, 16)
FREE = ("suffix",)
PROPOSERS = (*FREE, "twin", *SHIPPED_DRAFTERS)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
TRIES = (*(("greedy", window) for window in WINDOWS), ("drawn", 4))

Messages = list[dict[str, Any]]


def prompts(n: int = N_PROMPTS, step: int = 2) -> list[Messages]:
    """A spread over the categories of the suite, short enough to read quickly: of the shortest, one
    in so many."""
    every = [list(p.messages) for p in load_suite("core-60").prompts if not p.tools]
    short = sorted(every, key=lambda messages: len(str(messages)))[: step * n]
    return short[::step]


def answers(
    parlay: Parlay,
    texts: Sequence[Messages],
    draft: str,
    window: int,
    together: int = 1,
    **options: Any,
) -> list[Answer]:
    """Answers to all prompts, so many at a time."""
    options = {"max_tokens": N_TOKENS, "temperature": 0, **options}
    found: list[Answer] = []
    for i in range(0, len(texts), together):
        streams = [
            parlay.stream(text, draft=draft, window=window, **options)
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


def draft_of(proposer: str, ftype: str) -> str:
    """What to load for one of `PROPOSERS` with a target of this type."""
    if proposer == "twin":
        return str(file_of("q4_0" if ftype != "q4_0" else "q8_0"))
    return proposer


def compare(ftype: str, proposers: Sequence[str], together: int, n_prompts: int) -> int:
    """Run one file through the whole matrix; returns how many texts differ that must not."""
    target, texts, wrong = file_of(ftype), prompts(n_prompts), 0
    with Parlay(target, draft="none", context_size=1024) as parlay:
        plain = {way: answers(parlay, texts, "none", 0, **WAYS[way]) for way in WAYS}
    for name in proposers:
        draft = draft_of(name, ftype)
        with Parlay(target, draft=draft, slots=together, context_size=1024) as parlay:
            mode, limit = parlay.engine.mode, parlay.engine.exact.limit
            print(f"{ftype}: {mode}, every shape up to {limit} rows is exact", flush=True)
            differ = _differ(parlay, texts, plain, name, together)
            wrong += differ if mode == "exact" else 0
    return wrong


def _differ(
    parlay: Parlay,
    texts: Sequence[Messages],
    plain: dict[str, list[Answer]],
    proposer: str,
    together: int,
) -> int:
    """Try one proposer in every way and window; returns how many texts are not the plain ones."""
    draft, total = proposer if proposer in FREE else MODEL, 0
    for way, window in TRIES:
        started = time.time()
        found = answers(parlay, texts, draft, window, together, **WAYS[way])
        different = sum(a.text != b.text for a, b in zip(found, plain[way], strict=True))
        drafted = sum(a.speculation.n_drafted for a in found)
        exact = sum(a.exact for a in found)
        print(
            f"{proposer:13} {way:6} window {window:2}, {together} at once: {different} of"
            f" {len(texts)} differ, {exact} called exact, {drafted} drafted,"
            f" {time.time() - started:.0f} s",
            flush=True,
        )
        total += different
    return total


def main() -> None:
    ap = parser_of(__doc__)
    ap.add_argument("--types", nargs="*", default=["q4_1", "q4_0", "q8_0"])
    ap.add_argument("--together", nargs="*", type=int, default=[1, 4])
    ap.add_argument("--proposers", nargs="*", default=PROPOSERS, choices=PROPOSERS)
    ap.add_argument("--prompts", type=int, default=N_PROMPTS)
    args = ap.parse_args()
    wrong = sum(
        compare(ftype, args.proposers, n, args.prompts)
        for ftype in args.types
        for n in args.together
    )
    print(f"{wrong} texts differ where none may")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

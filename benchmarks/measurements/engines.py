"""Engines beside each other: plain decoding, reading of a prompt, and passes over several rows.

Each engine has a process of its own, and they take turns. On one thread, and in its CPU's own time
(not the clock's), so that whoever else is at work changes little. Ratios are of the first engine
over each of the others.

Example: python -m benchmarks.measurements.engines xllamacpp ~/.cache/parlay/engines/0.3.36-*
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.ratios import ratio_of_repeats, recorded, shown
from benchmarks.shared.record import keep

PROMPT, CHUNK = 256, 128  # tokens read, and so many in a pass
WIDTHS = (1, 2, 4, 8, 16, 64)
N_DECODED = 16


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "engines", nargs="+", help="names or folders, as `parlay engine` lists them"
    )
    parser.add_argument("--target", default="default")
    parser.add_argument("--turns", type=int, default=20)
    args = parsed(parser, argv)
    processes = {name: Far(name, args.target) for name in args.engines}
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in processes}
    for turn in range(args.turns):
        for name in args.engines if turn % 2 else args.engines[::-1]:
            told = processes[name].ask()
            for what, per_second in told.items():
                figures[name].setdefault(what, []).append(per_second)
            print(
                turn, name, {k: round(v, 1) for k, v in told.items()}, file=sys.stderr, flush=True
            )
    found = {name: far.close() for name, far in processes.items()}
    first, *others = args.engines
    for what in figures[first]:
        line = ", ".join(f"{name} {median(figures[name][what]):.1f}" for name in args.engines)
        print(f"{what}, tokens a second: {line}")
        for other in others:
            estimate = ratio_of_repeats(figures[first][what], figures[other][what])
            print(f"  {first} / {other}: {shown(estimate)}")
            found.setdefault("ratios", {})[f"{what}: {other}"] = recorded(estimate)
    keep(args.json, found)


class Far:
    """One engine in its process."""

    def __init__(self, engine: str, target: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from {__spec__.name} import serve; serve()",
                target,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PARLAY_ENGINE": engine},
        )
        self.version = self._line()

    def ask(self) -> dict[str, float]:
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        return dict(self._line())

    def close(self) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        return self.version

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("an engine ended before its figures")
        return json.loads(line)


def serve() -> None:
    """The far side: a line for each turn, until its input ends."""
    from parlay.hub.resolving import resolve_model
    from parlay.llama import library
    from parlay.llama.context import Context
    from parlay.llama.model import Model
    from parlay.llama.settings import ContextSettings, ModelSettings

    target = sys.argv[1]
    with Model(resolve_model(target), ModelSettings()) as model:
        context = Context(model, ContextSettings(2048, threads=1))
        print(json.dumps([library.engine().name, library.version()]), flush=True)
        for _ in sys.stdin:
            print(json.dumps(_turn(context)), flush=True)
        context.close()


def _turn(context: Any) -> dict[str, float]:
    """Tokens a second of each kind of pass."""
    from parlay.decoding.span import Span

    text = (list(context.sample) * 4)[:PROMPT]
    context.clear(0)
    started = time.thread_time()
    for at in range(0, PROMPT, CHUNK):
        context.decode([Span(0, at, text[at : at + CHUNK], 1)])
    found = {"prompt": PROMPT / (time.thread_time() - started)}
    for width in WIDTHS:
        n_passes = max(3, N_DECODED // width)
        started = time.thread_time()
        for i in range(n_passes):
            at = PROMPT + i * width
            context.decode([Span(0, at, text[:width], width)])
        found[f"{width} rows"] = n_passes * width / (time.thread_time() - started)
        context.truncate(0, PROMPT)
    return found


if __name__ == "__main__":
    main()

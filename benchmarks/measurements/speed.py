"""Speed through the Python door: kinds of decoding, of one checkout or of several in one run.

    python -m benchmarks.measurements.speed --subject new=. --kinds plain suffix drafter
    python -m benchmarks.measurements.speed --subject new=. --subject old=../before

A subject is NAME=FOLDER, a checkout whose `src` is used, with the interpreter that runs this script
(FOLDER@PYTHON names another). Each subject is a process of its own that stays loaded; only one
computes at a time, in mirrored order. Ratios are of neighbours in time, with 95 % intervals: each
kind over plain decoding of the same subject, and the first subject over each other one.
Knows the public interface only, so that old and new code can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITES = Path(__file__).parents[2] / "src/parlay/bench/suites"
# What each kind asks for: how an engine is loaded, and how a request bets.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"draft": "none"},
    "prefill": {"draft": "none", "prefill": True},
    "suffix": {"draft": "suffix"},
    "drafter": {"draft": "suffix,model"},
    **{f"window-{k}": {"draft": "model", "window": k} for k in (1, 2, 3, 4, 5, 8)},
    "streams-2": {"draft": "suffix,model", "streams": 2},
    "streams-4": {"draft": "suffix,model", "streams": 4},
    "streams-8": {"draft": "suffix,model", "streams": 8},
    "plain-2": {"draft": "none", "streams": 2},
    "plain-4": {"draft": "none", "streams": 4},
    "plain-8": {"draft": "none", "streams": 8},
}
N_PREFILL = 6  # a prompt for `prefill` is the suite's own text, so many times


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    folder: Path
    python: str

    @classmethod
    def parse(cls, text: str) -> Subject:
        name, _, place = text.partition("=")
        folder, _, python = place.partition("@")
        if not name or not folder:
            raise SystemExit(f"--subject {text!r}: give NAME=FOLDER or NAME=FOLDER@PYTHON")
        return cls(name, Path(folder).resolve(), python or sys.executable)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subject", action="append", type=Subject.parse, default=[])
    parser.add_argument("--kinds", nargs="+", default=["plain", "suffix", "drafter"], choices=KINDS)
    parser.add_argument("--model", default="default")
    parser.add_argument("--drafter", default="default", help="a drafter's file or name")
    parser.add_argument("--suite", default="core-12")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=2, help="times that each prompt is asked")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--load", default="{}", help="JSON: more arguments of Parlay(...)")
    parser.add_argument("--json", type=Path, help="where to write samples and ratios")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        work()
        return
    subjects = options.subject or [Subject.parse("here=.")]
    with ExitStack() as stack:
        workers = {s.name: stack.enter_context(running(s)) for s in subjects}
        samples = measure(options, workers)
    found = {
        "settings": {k: str(v) for k, v in vars(options).items() if k not in ("json", "worker")},
        "commits": {s.name: commit_of(s.folder) for s in subjects},
        "ratios": ratios(samples, [s.name for s in subjects], options.kinds),
        "samples": samples,
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for row in found["ratios"]:
        print(f"{row['what']:44s} {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]")


def measure(options: argparse.Namespace, workers: dict[str, Worker]) -> list[dict[str, Any]]:
    """Every kind of every subject for each prompt, there and back, so that drift cancels."""
    lines = (SUITES / f"{options.suite}.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line) for line in lines][: options.prompts]
    load = {"target": options.model, **json.loads(options.load)}
    turns = [(name, kind) for kind in options.kinds for name in workers]
    for name, kind in turns:  # start every engine, and warm it up
        workers[name].ask(asked(options, load, kind, prompts, 0) | {"max_tokens": 16})
    random.Random(0).shuffle(prompts)
    samples = []
    for repeat in range(options.pairs):
        for i in range(len(prompts)):
            for name, kind in turns if (repeat + i) % 2 else reversed(turns):
                told = workers[name].ask(asked(options, load, kind, prompts, i))
                about = {"subject": name, "kind": kind, "prompt": prompts[i]["id"]}
                samples.append(about | {"repeat": repeat} | told)
            print(f"repeat {repeat + 1}, prompt {i + 1} of {len(prompts)}", file=sys.stderr)
    return samples


def asked(
    options: argparse.Namespace,
    load: dict[str, Any],
    kind: str,
    prompts: Sequence[dict[str, Any]],
    i: int,
) -> dict[str, Any]:
    """The request to a worker: the prompt's neighbours are the other streams."""
    how = KINDS[kind]
    n = how.get("streams", 1)
    texts = [prompts[(i + j) % len(prompts)]["messages"] for j in range(n)]
    if how.get("prefill"):
        texts = [[{"role": "user", "content": texts[0][-1]["content"] * N_PREFILL}]]
    return {
        "load": load
        | {"slots": max(n, load.get("slots", 1)), "draft": f"suffix,{options.drafter}"},
        "prompts": texts,
        "draft": how["draft"],
        "window": how.get("window"),
        "max_tokens": 1 if how.get("prefill") else options.tokens,
        "temperature": options.temperature,
        "seed": i,
    }


def ratios(
    samples: Sequence[dict[str, Any]], subjects: Sequence[str], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    from benchmarks.shared.ratios import ratio

    speeds: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        at = sample["subject"], sample["kind"]
        speeds[at][sample["prompt"]].append(sample["n"] / sample["s"])
    pairs = [
        (f"{name}: {kind} over {base}", (name, kind), (name, base))
        for name in subjects
        for kind in kinds
        for base in (kind.replace("streams", "plain") if "streams" in kind else "plain",)
        if kind not in (base, "prefill") and base in kinds
    ]
    pairs += [
        (f"{kind}: {subjects[0]} over {other}", (subjects[0], kind), (other, kind))
        for other in subjects[1:]
        for kind in kinds
    ]
    rows = []
    for what, own, base in pairs:
        found = ratio(speeds[own], speeds[base])
        rows.append({"what": what, "ratio": found.ratio, "low": found.low, "high": found.high})
    return rows


def commit_of(folder: Path) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
        check=False,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip() or "unknown"


# -- a subject's process --------------------------------------------------------------------------


class Worker:
    """One subject's process, which answers one request at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise SystemExit("a subject's process has no pipes")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit("a subject ended; its words are above")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def running(subject: Subject) -> Iterator[Worker]:
    """Started with its own sources; ended with the block."""
    environment = os.environ | {"PYTHONPATH": str(subject.folder / "src")}
    command = [subject.python, str(Path(__file__).resolve()), "--worker"]
    with subprocess.Popen(
        command,
        cwd=subject.folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Worker(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()


def work() -> None:
    """Answers requests from standard input until that ends; engines stay loaded."""
    answers = os.fdopen(os.dup(1), "w")  # what a library prints must not come between
    os.dup2(2, 1)
    from parlay import Parlay

    engines: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = json.dumps(request["load"], sort_keys=True)
        if key not in engines:
            engines[key] = Parlay(**request["load"])
        answers.write(json.dumps(answer(engines[key], request)) + "\n")
        answers.flush()
    for engine in engines.values():
        engine.close()


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """All prompts at once: tokens decoded, or read, and the time they took."""
    names = ("draft", "window", "max_tokens", "temperature", "seed")
    options = {name: request[name] for name in names if request[name] is not None}
    found: list[Any] = [None] * len(request["prompts"])

    def one(i: int) -> None:
        found[i] = engine.generate(request["prompts"][i], **options)

    began = time.perf_counter()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole_s = time.perf_counter() - began
    first = found[0]
    if request["max_tokens"] == 1:
        n, seconds = first.n_prompt - first.n_reused, first.prefill_s
    elif len(found) == 1:
        n, seconds = len(first.tokens) - first.n_first, first.decode_s
    else:
        n, seconds = sum(len(each.tokens) for each in found), whole_s
    text = "\0".join(each.text for each in found)
    counts = first.speculation
    return {
        "n": n,
        "s": seconds,
        "sha": hashlib.sha256(text.encode()).hexdigest()[:12],
        "drafted": counts.n_drafted,
        "accepted": counts.n_accepted,
    }


if __name__ == "__main__":
    main()

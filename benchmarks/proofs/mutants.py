"""The suite fails when the product breaks: faults drawn at random, each against its own tests.

Each fault is made in a copy of the tree and the tests that concern its file are run there: a fault
dies when one of them fails. What survives is listed with its place, to be looked at. Numbers of the
controller are left out: they are tuned, not right or wrong. Ends with 1 where fewer die than must.

Example: python -m benchmarks.proofs.mutants --n 200 --out mutants.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.mutation import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__", ".pytest_cache"
)
_MOST_S = 300.0  # of one fault's tests: an endless loop is a fault that was seen


@dataclass(frozen=True)
class Concern:
    """Files by pattern, and the tests that would see a fault in them, the quickest first."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    numbers: bool = True


_SCRIPTED = ("tests/contract/test_isolation.py", "tests/contract/test_same_text.py")
_ENGINE = ("tests/engine", "tests/contract/test_scheduling.py", "tests/contract/test_figures.py")
CONCERNS = (
    Concern(
        ("decoding/*.py",),
        (
            "tests/decoding",
            *_SCRIPTED,
            "tests/contract/test_free_drafts.py",
            "tests/contract/test_openai_client.py",
            "tests/contract/test_figures.py",
        ),
    ),
    Concern(
        (
            "engine/loop.py",
            "engine/plan.py",
            "engine/drafts.py",
            "engine/sequence.py",
            "engine/worker.py",
        ),
        (*_SCRIPTED, *_ENGINE),
    ),
    Concern(
        ("control/purse.py", "control/budget.py"),
        ("tests/control", "tests/tools"),
        numbers=False,
    ),
    Concern(
        (
            "chat/prompter.py",
            "chat/conversation.py",
            "chat/parser.py",
            "chat/control_words.py",
            "chat/call_text.py",
        ),
        (
            "tests/chat",
            "tests/contract/test_doors.py",
            "tests/contract/test_formats.py",
            "tests/contract/test_openai_client.py",
            "tests/contract/test_openai_routes.py",
            "tests/contract/test_calls_in_control_tokens.py",
        ),
    ),
)


def drawn(n: int, seed: int) -> list[tuple[Mutant, Concern]]:
    """So many of all, each equally likely."""
    found = [
        (mutant, concern)
        for concern in CONCERNS
        for pattern in concern.files
        for path in sorted((ROOT / "src/parlay").glob(pattern))
        for mutant in mutants_of(path, numbers=concern.numbers)
    ]
    return random.Random(seed).sample(found, min(n, len(found)))


def fails(folder: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails in a copy of the tree; None: none does."""
    there = [test for test in tests if (folder / test).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "--timeout", "60"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_THREAD_LIMIT": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    try:
        done = subprocess.run(
            [*command, *there],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    if done.returncode == 0:
        return None
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return said[0] if said else f"exit code {done.returncode}"


def killer(folder: Path, mutant: Mutant, concern: Concern) -> str | None:
    """What sees a fault, which is gone again afterwards."""
    path = folder / mutant.path.relative_to(ROOT)
    before = path.read_text("utf-8")
    path.write_text(mutant.source(), "utf-8")
    try:
        return fails(folder, concern.tests)
    finally:
        path.write_text(before, "utf-8")


def run(n: int, seed: int, workers: int) -> list[dict[str, str | None]]:
    chosen = drawn(n, seed)
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(workers) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for i in range(workers):
            free.put(Path(shutil.copytree(ROOT, Path(made) / str(i), ignore=_LEFT_OUT)))
        first = free.get()
        for concern in {concern for _, concern in chosen}:  # or nothing would be told by a failure
            broken = fails(first, concern.tests)
            if broken is not None:
                sys.exit(f"without any fault: {broken}")
        free.put(first)

        def tried(one: tuple[Mutant, Concern]) -> dict[str, str | None]:
            folder = free.get()
            try:
                seen = killer(folder, *one)
            finally:
                free.put(folder)
            name = str(one[0]).removeprefix(f"{ROOT}/")
            print(f"{'dies    ' if seen else 'SURVIVES'} {name}", flush=True)
            return {"mutant": name, "killed_by": seen}

        return list(pool.map(tried, chosen))


def options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--n", type=int, default=200, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--workers", type=int, default=2, help="how many are tried at once")
    parser.add_argument("--least", type=float, default=0.8, help="the share that must die")
    parser.add_argument("--out", type=Path, help="where to write what became of each")
    return parser.parse_args()


def main() -> int:
    given = options()
    found = run(given.n, given.seed, given.workers)
    n_dead = sum(one["killed_by"] is not None for one in found)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{n_dead} of {len(found)} die ({n_dead / max(1, len(found)):.0%})")
    return 0 if n_dead >= given.least * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())

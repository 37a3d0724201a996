"""A soak: mixed and hostile traffic for hours, with reloads and a drafter that comes and goes.

Fails if memory, open files or latency grow, if an answer is lost, or if a slot stays taken.
Each minute one JSON line goes to --out.

Example, 20 minutes: python -m benchmarks.proofs.soak --minutes 20
A week:              python -m benchmarks.proofs.soak --minutes 10080 --drafter drafter.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.traffic import Report, Traffic
from parlay.hub.resolving import resolve_model

GROWTH_MB = 64.0  # what allocators may keep of a burst
LATENCY_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Minute:
    """What one stretch of traffic did."""

    at_s: float
    requests: int
    results: dict[str, int]
    p50_ms: float  # of whole answers
    rss_mb: float
    files: int
    drafter: str


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        deployment = Path(folder) / "speculative-deploy.yaml"
        _write(deployment, args, drafter=True)
        with served.parlay(str(deployment)) as server:
            minutes = asyncio.run(_soak(server, deployment, args))
    problems = judge(minutes)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{sum(m.requests for m in minutes)} requests, {len(problems)} problem(s)")
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--drafter", help="a draft model; absent: suffix and n-gram in turn")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--stretch", type=float, default=60, help="seconds between two reloads")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--out", help="file for one JSON line a stretch")
    return parser.parse_args()


def _write(path: Path, args: argparse.Namespace, *, drafter: bool) -> None:
    """The deployment with its drafter, or with one whose file is gone."""
    with_model = str(Path(args.drafter).resolve()) if args.drafter else "suffix"
    without = str(path.parent / "gone.gguf") if args.drafter else "none"
    content: dict[str, dict[str, Any]] = {
        "model": {"target": str(resolve_model(args.model).resolve())},
        "runtime": {
            "slots": args.slots, "threads": args.threads, "context_size": args.context,
        },
        "server": {"port": 0, "queue_size": 16, "request_timeout_s": 300},
        "monitoring": {"request_log": str(path.parent / "requests.jsonl")},
    }  # fmt: skip
    content["model"]["drafter"] = with_model if drafter else without
    path.write_text(yaml.safe_dump(content))


async def _soak(server: served.Served, deployment: Path, args: argparse.Namespace) -> list[Minute]:
    minutes: list[Minute] = []
    began, end = time.monotonic(), time.monotonic() + 60 * args.minutes
    drafter = True
    while time.monotonic() < end:
        report = await _stretch(server.url, args, len(minutes))
        await _settle(server.url)
        minutes.append(_minute(server, report, time.monotonic() - began))
        _tell(minutes[-1], args.out)
        if report.broken:
            break
        drafter = not drafter
        _write(deployment, args, drafter=drafter)
        server.process.send_signal(signal.SIGHUP)
    return minutes


async def _stretch(url: str, args: argparse.Namespace, seed: int) -> Report:
    """Bursts until the stretch is over."""
    whole, end = Report(), time.monotonic() + args.stretch
    traffic = Traffic(url, seed=seed, max_tokens=args.tokens, oversize=40 * args.context)
    while time.monotonic() < end and not whole.broken:
        report = await traffic.run(25, args.at_once)
        whole.outcomes += report.outcomes
    return whole


async def _settle(url: str, seconds: float = 30.0) -> None:
    """Every slot is free again soon after the traffic has stopped."""
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(timeout=30) as client:
        while time.monotonic() < end:
            slots = (await client.get(f"{url}/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                return
            await asyncio.sleep(0.1)
    sys.exit("a slot stayed taken")


def _minute(server: served.Served, report: Report, at_s: float) -> Minute:
    process = server.engine
    whole = [o.seconds for o in report.outcomes if o.kind == "whole" and o.result == "complete"]
    state = httpx.get(f"{server.url}/metrics/speculative", timeout=30).json()
    return Minute(
        at_s=round(at_s, 1),
        requests=len(report.outcomes),
        results=dict(report.by_result),
        p50_ms=round(statistics.median(whole or [0.0]) * 1e3, 1),
        rss_mb=round(process.memory_info().rss / 1e6, 1),
        files=process.num_fds(),
        drafter=",".join(state["drafter"]["proposers"]) or str(state["drafter"]["reason"]),
    )


def _tell(minute: Minute, out: str | None) -> None:
    line = json.dumps(asdict(minute))
    print(line, flush=True)
    if out:
        with Path(out).open("a") as file:
            file.write(line + "\n")


def judge(minutes: list[Minute]) -> list[str]:
    """What grew, from the second quarter to the last."""
    found = [f"broken answers at {m.at_s} s" for m in minutes if m.results.get("broken")]
    quarter = len(minutes) // 4
    if quarter < 1:
        return found
    early, late = minutes[quarter : 2 * quarter], minutes[-quarter:]
    memory = [statistics.median(m.rss_mb for m in part) for part in (early, late)]
    if memory[1] > memory[0] + GROWTH_MB:
        found.append(f"memory grew from {memory[0]} to {memory[1]} MB")
    files = [max(m.files for m in part) for part in (early, late)]
    if files[1] > files[0] + 8:
        found.append(f"open files grew from {files[0]} to {files[1]}")
    times = [statistics.median(m.p50_ms for m in part) for part in (early, late)]
    if times[1] > times[0] * LATENCY_GROWTH:
        found.append(f"an answer took {times[0]} ms and takes {times[1]} ms (busy machine?)")
    return found


if __name__ == "__main__":
    sys.exit(main())

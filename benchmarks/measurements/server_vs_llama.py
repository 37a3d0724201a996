"""Parlay's server against llama.cpp's own (xllamacpp): the same file, threads and slots.

Both stay loaded. For each number of streams every subject answers the same prompts in turn,
forwards and then backwards, so that drift hits all alike; ratios come from neighbours in time.

Example: python -m benchmarks.measurements.server_vs_llama --model default --streams 1 4 8 --pairs 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import psutil

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_repeats, shown
from parlay.bench.peer import PeerSettings
from parlay.hub.resolving import resolve_model

TOPICS = ("rain", "bread", "a bridge", "bees", "glass", "maps", "salt", "trains")


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of streams to one subject."""

    subject: str
    n_streams: int
    tokens_per_second: float  # of all streams together
    ttft_ms: float  # mean
    n_tokens: int


def main() -> None:
    args = _arguments()
    model = resolve_model(args.model)
    with ExitStack() as stack:
        own = stack.enter_context(served.parlay(*_own_arguments(model, args)))
        peer = stack.enter_context(served.llama(_peer_settings(model, args)))
        subjects = [
            served.Subject("llama.cpp", peer, {"cache_prompt": False}),
            served.Subject("parlay plain", own.url, {"speculation": False}),
            served.Subject("parlay speculative", own.url, {"speculation": True}),
        ]
        served.wait_idle(own)
        samples = asyncio.run(_measure(subjects, args))
        overhead = http_overhead_us(own)
    _print(samples, overhead)
    if args.json:
        record = {"samples": [asdict(s) for s in samples], "http_us_per_token": overhead}
        Path(args.json).write_text(json.dumps(record, indent=1))


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--draft", help="absent: what the server would choose")
    parser.add_argument("--window", type=int, help="absent: the controller's choice")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3, help="each is forwards and backwards")
    parser.add_argument("--json", help="file for the raw samples")
    return parser.parse_args()


def _own_arguments(model: Path, args: argparse.Namespace) -> list[str]:
    flags = {
        "--model": model, "--draft": args.draft, "--window": args.window, "--port": 0,
        "--slots": args.slots, "--context-size": args.context, "--threads": args.threads,
    }  # fmt: skip
    given = {name: value for name, value in flags.items() if value is not None}
    return [str(part) for pair in given.items() for part in pair]


def _peer_settings(model: Path, args: argparse.Namespace) -> PeerSettings:
    n_context = args.context * args.slots
    return PeerSettings(str(model), n_context=n_context, threads=args.threads, n_slots=args.slots)


async def _measure(subjects: Sequence[served.Subject], args: argparse.Namespace) -> list[Sample]:
    samples: list[Sample] = []
    # llama.cpp's server closes a connection after five idle seconds, maybe just when it is used.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        for n_streams in args.streams:
            for subject in subjects:  # every shape once before it counts
                await _burst(client, subject, n_streams, 8, 999)
            for i in range(args.pairs):
                for j, subject in enumerate((*subjects, *reversed(subjects))):
                    # Another beginning each time, so that no one finds a prompt in its cache.
                    salt = i * 2 * len(subjects) + j
                    samples.append(await _burst(client, subject, n_streams, args.tokens, salt))
    return samples


async def _burst(
    client: httpx.AsyncClient, subject: served.Subject, n_streams: int, n_tokens: int, salt: int
) -> Sample:
    """All streams start together; the clock stops with the last one."""
    began = perf_counter()
    streams = [_stream(client, subject, i, salt, n_tokens) for i in range(n_streams)]
    results = await asyncio.gather(*streams)
    spent = perf_counter() - began
    n_made = sum(n for n, _ in results)
    ttft = statistics.fmean(first for _, first in results) * 1e3
    return Sample(subject.name, n_streams, n_made / spent, ttft, n_made)


async def _stream(
    client: httpx.AsyncClient, subject: served.Subject, i: int, salt: int, n_tokens: int
) -> tuple[int, float]:
    """Tokens made, and seconds to the first."""
    content = f"[{salt:03}] Tell me about {TOPICS[i % len(TOPICS)]}, then say it again."
    body = {
        "model": "local-model",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **subject.extra,
    }
    began, first, n = perf_counter(), 0.0, 0
    url = f"{subject.url}/v1/chat/completions"
    async with client.stream("POST", url, json=body) as response:
        async for chunk in _chunks(response):
            if not first and any(c["delta"].get("content") for c in chunk["choices"]):
                first = perf_counter() - began
            if chunk.get("usage"):
                n = chunk["usage"]["completion_tokens"]
    return n, first


async def _chunks(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def http_overhead_us(own: served.Served, n_tokens: int = 300) -> float:
    """CPU time of the event loop's thread (the process's first) for each streamed token.

    CPU time and not wall time: on a busy machine the latter measures the neighbours. What the
    thread spends when nobody asks (its clock ticks ten times a second) is left out.
    """
    body = {"prompt": "Tell me", "max_tokens": n_tokens, "temperature": 0, "stream": True}
    body |= {"speculation": False, "logit_bias": {str(t): -100 for t in range(3)}}
    command = ["curl", "-sN", f"{own.url}/v1/completions", "-H", "Content-Type: application/json"]
    idle_share = _idle_share(own)
    before, began = _loop_cpu_s(own), perf_counter()
    done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, check=True)
    idle_s = idle_share * (perf_counter() - began)
    n_events = done.stdout.count(b"data: ") - 2
    return (_loop_cpu_s(own) - before - idle_s) / max(1, n_events) * 1e6


def _idle_share(own: served.Served, seconds: float = 2.0) -> float:
    before = _loop_cpu_s(own)
    time.sleep(seconds)
    return (_loop_cpu_s(own) - before) / seconds


def _loop_cpu_s(own: served.Served) -> float:
    pid = own.engine.pid
    precise = Path(f"/proc/{pid}/task/{pid}/schedstat")
    if precise.exists():
        return int(precise.read_text().split()[0]) * 1e-9
    threads = psutil.Process(pid).threads()
    return next(t.user_time + t.system_time for t in threads if t.id == pid)


def _print(samples: Sequence[Sample], overhead: float) -> None:
    print(f"{'streams':>7}  {'subject':<20} {'tok/s':>8} {'ttft ms':>9} {'over llama.cpp':>20}")
    for n in sorted({sample.n_streams for sample in samples}):
        for name in dict.fromkeys(sample.subject for sample in samples):
            own = _of(samples, n, name)
            speed = statistics.median(s.tokens_per_second for s in own)
            ttft = statistics.median(s.ttft_ms for s in own)
            over = shown(ratio_of_repeats(_speeds(own), _speeds(_of(samples, n, "llama.cpp"))))
            print(f"{n:>7}  {name:<20} {speed:>8.1f} {ttft:>9.0f} {over}")
    print(f"HTTP: {overhead:.0f} us of CPU for each streamed event")


def _of(samples: Sequence[Sample], n: int, name: str) -> list[Sample]:
    return [s for s in samples if s.n_streams == n and s.subject == name]


def _speeds(samples: Sequence[Sample]) -> list[float]:
    return [sample.tokens_per_second for sample in samples]


if __name__ == "__main__":
    main()

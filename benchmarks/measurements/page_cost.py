"""What viewers of the live figures cost: time per round with so many of them, and with none.

The same prompt is answered in turn without and with viewers, forwards and then backwards, so that
drift hits both alike. A viewer reads the stream as the page does, in a process of its own.

Example: python -m benchmarks.measurements.page_cost --pairs 16 --viewers 1 50
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from parlay.bench.statistics import estimate

# Wakes when something comes, reads it, and does nothing with it.
VIEWER = """
import select, socket, sys
port, n = int(sys.argv[1]), int(sys.argv[2])
lines = []
for _ in range(n):
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(b"GET /live/stream HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    lines.append(line)
for line in lines:
    line.recv(65536)
print("watching", flush=True)
while True:
    for line in select.select(lines, [], [])[0]:
        if not line.recv(1 << 20):
            sys.exit("a stream ended")
"""


def main() -> None:
    options = _options()
    with served.parlay(
        "--model", options.model, "--port", "0", "--slots", "2", "--set", "runtime.controller=fixed"
    ) as server:
        for n in options.viewers:
            print(json.dumps(_compare(server.url, n, options.pairs, options.tokens)), flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--viewers", type=int, nargs="+", default=[1, 50])
    return parser.parse_args()


def _compare(url: str, n_viewers: int, n_pairs: int, n_tokens: int) -> dict[str, object]:
    """Log-ratios of neighbours: rounds with viewers over rounds without."""
    _round_ms(url, n_tokens)  # the first one reads the prompt and warms everything
    ratios, without = [], []
    for i in range(n_pairs):
        found = {}
        for watched in (False, True) if i % 2 else (True, False):
            with _watching(url, n_viewers if watched else 0):
                found[watched] = _round_ms(url, n_tokens)
        ratios.append(math.log(found[True] / found[False]))
        without.append(found[False])
    told = estimate({"round": ratios})
    assert told is not None
    return {
        "viewers": n_viewers,
        "pairs": n_pairs,
        "round_ms_without": round(sorted(without)[n_pairs // 2], 4),
        "more_pct": round(100 * (told.ratio - 1), 2),
        "interval_pct": [round(100 * (told.low - 1), 2), round(100 * (told.high - 1), 2)],
    }


def _round_ms(url: str, n_tokens: int) -> float:
    """Milliseconds of a round by the server's own clock: drafting, the pass, and all else."""
    body = {
        "prompt": "One morning in the old harbour town",
        "max_tokens": n_tokens,
        "temperature": 0,
        "speculation": {"window": 0},
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()
    told, timings = answer["speculation"], answer["timings"]
    return float(timings["predicted_ms"] / (told["rounds"] - 1))


@contextmanager
def _watching(url: str, n: int) -> Iterator[None]:
    if n == 0:
        yield
        return
    port = url.rsplit(":", 1)[1]
    command = [sys.executable, "-c", VIEWER, port, str(n)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        yield
        assert process.poll() is None, "a viewer was sent away"
        process.terminate()


if __name__ == "__main__":
    main()

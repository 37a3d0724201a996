"""What a streamed token costs in each format: CPU time of the event loop's thread.

Interleaved rounds over chat, responses and messages, one token an event; each format's median over
chat's. CPU time and not wall time: on a busy machine the latter measures the neighbours.

    python -m benchmarks.measurements.format_cost --rounds 7 --tokens 300
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measurements.server_vs_llama import _idle_share, _loop_cpu_s
from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.hub.resolving import resolve_model

TURN = [{"role": "user", "content": "Tell me a long story."}]
FORMATS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat": ("/v1/chat/completions", {"messages": TURN}, b'"delta":{"content":'),
    "responses": ("/v1/responses", {"input": TURN}, b"event: response.output_text.delta"),
    "messages": ("/v1/messages", {"messages": TURN}, b"event: content_block_delta"),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    flags = ["--model", str(resolve_model(args.model)), "--port", "0", "--draft", "none"]
    flags += ["--threads", str(args.threads), "--slots", "1", "--context-size", "2048"]
    with served.parlay(*flags) as own:
        served.wait_idle(own)
        idle = _idle_share(own)
        costs: dict[str, list[float]] = {name: [] for name in FORMATS}
        for _ in range(args.rounds):
            for name in FORMATS:
                costs[name].append(cost_us(own, name, args.tokens, idle))
    medians = {name: statistics.median(found) for name, found in costs.items()}
    for name, found in costs.items():
        over = medians[name] / medians["chat"]
        low, high = min(found), max(found)
        print(f"{name:<10} {medians[name]:7.1f} us [{low:.1f}, {high:.1f}]  {over:.2f} of chat's")
    keep(args.json, costs)


def cost_us(own: served.Served, name: str, n_tokens: int, idle_share: float) -> float:
    path, body, mark = FORMATS[name]
    ban = {str(token): -100 for token in range(3)}  # no end before its time
    limit = "max_output_tokens" if name == "responses" else "max_tokens"
    body = {**body, limit: n_tokens, "temperature": 0, "stream": True, "speculation": False}
    body |= {"model": "x", "logit_bias": ban}
    command = ["curl", "-sN", f"{own.url}{path}", "-H", "Content-Type: application/json"]
    before, began = _loop_cpu_s(own), perf_counter()
    done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, check=True)
    idle_s = idle_share * (perf_counter() - began)
    n_events = done.stdout.count(mark)
    assert n_events > n_tokens / 2, done.stdout[-500:]
    return (_loop_cpu_s(own) - before - idle_s) / n_events * 1e6


if __name__ == "__main__":
    main()

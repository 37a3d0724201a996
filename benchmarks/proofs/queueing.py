"""The simulation against a real server: an open loop of arrivals, both ways, figures side by side.

  python -m benchmarks.proofs.queueing [MODEL.gguf] --slots 1 4 --draft none suffix --requests 30

The shorter prompts of the suite core-60 arrive at random times, whether earlier ones are done or
not. Then the same arrivals are simulated: prices from `parlay plan`'s own table, odds as the server
counted them, lengths as they came out. A load is a share of what the machine could do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import httpx

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.served import parlay
from parlay.bench.suite import load_suite
from parlay.fleet.arrivals import Arrival
from parlay.fleet.exact_rows import ExactRows
from parlay.fleet.odds import Odds
from parlay.fleet.prices import Prices
from parlay.fleet.simulated_machine import PassShape
from parlay.fleet.simulation import SimulationOutcome, Way, percentiles, simulate
from parlay.hub.resolving import resolve_model
from parlay.planning.requests import parse_line
from parlay.timing.batch_table import WantedTable, batch_table

LENGTHS = (16, 32, 48)
MAX_LETTERS = 600
# A token of these prompts has four letters, and the template adds some thirty tokens.
LETTERS_PER_TOKEN, TEMPLATE = 4, 30


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    slots: int
    draft: str
    window: int
    load: float
    n_requests: int
    threads: int


def prompts() -> list[list[dict[str, Any]]]:
    found = [list(prompt.messages) for prompt in load_suite("core-60").prompts if not prompt.tools]
    return [messages for messages in found if n_letters(messages) <= MAX_LETTERS]


def n_letters(messages: list[dict[str, Any]]) -> int:
    return sum(len(str(message.get("content"))) for message in messages)


async def drive(url: str, times: list[float], seed: int) -> None:
    """Send each request at its time; nobody waits for an answer before the next one."""
    rng, texts = Random(seed), prompts()
    limits = httpx.Limits(max_connections=len(times))
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        began = time.perf_counter()

        async def one(at: float) -> None:
            body = {
                "messages": texts[rng.randrange(len(texts))],
                "max_tokens": rng.choice(LENGTHS),
                "temperature": 0,
            }
            await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
            response = await client.post("/v1/chat/completions", json=body)
            response.raise_for_status()

        await asyncio.gather(*(one(at) for at in times))


def real(model: Path, case: Case, rate: float, seed: int) -> list[dict[str, Any]]:
    """What the server logged."""
    rng, now, times = Random(seed), 0.0, []
    for _ in range(case.n_requests):
        now += rng.expovariate(rate)
        times.append(now)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "requests.jsonl"
        arguments = ["--model", str(model), "--draft", case.draft, "--port", "0"]
        arguments += ["--slots", str(case.slots), "--threads", str(case.threads)]
        arguments += ["--window", str(case.window), "--request-log", str(log)]
        with parlay(*arguments) as served:
            asyncio.run(drive(served.url, [0.0], seed + 1))  # the first answer warms everything
            asyncio.run(drive(served.url, times, seed))
        return [json.loads(line) for line in log.read_text().splitlines()][1:]


def moment(row: dict[str, Any]) -> float:
    request = parse_line(json.dumps(row).encode())
    assert request is not None and request.at_s is not None
    return request.at_s


def odds_of(rows: list[dict[str, Any]]) -> Odds | None:
    """The odds of all rounds together, as the server counted them."""
    told = [row for row in rows if row["drafted"]]
    if not told:
        return None
    tried: dict[int, float] = {}
    held: dict[int, float] = {}
    for row in told:
        n = sum(count for k, count in row["windows"].items() if int(k) > 0)
        for j, share in enumerate(row["acceptance_by_position"]):
            tried[j] = tried.get(j, 0.0) + n
            held[j] = held.get(j, 0.0) + n * share
            n *= share
    drafted = sum(c for row in rows for k, c in row["windows"].items() if int(k) > 0)
    rounds = sum(c for row in rows for c in row["windows"].values())
    rates = tuple(min(1.0, held[j] / tried[j]) for j in sorted(tried) if tried[j])
    return Odds("as counted", rates, drafted / rounds, drafts_by_model=False)


def simulated(
    rows: list[dict[str, Any]], prices: Prices, case: Case, seed: int
) -> SimulationOutcome:
    first = min(moment(row) for row in rows)
    arrivals = sorted(
        (
            Arrival(
                moment(row) - first,
                row["prompt_tokens"],
                row["generated"],
                min(row["reused_tokens"], row["prompt_tokens"] - 1),
            )
            for row in rows
        ),
        key=lambda arrival: arrival.at_s,
    )
    odds = odds_of(rows)
    way = Way() if odds is None else Way(odds, lambda _n: case.window)
    return simulate(
        arrivals, prices, PassShape(case.slots, exact=ExactRows.up_to(32)), way, seed=seed
    )[0]


def measured(rows: list[dict[str, Any]]) -> SimulationOutcome:
    span = max(moment(row) + row["e2e_ms"] / 1e3 for row in rows) - min(moment(r) for r in rows)
    several = [row for row in rows if row["generated"] > 1]
    each = [(r["e2e_ms"] - r["ttft_ms"]) / 1e3 / (r["generated"] - 1) for r in several]
    return SimulationOutcome(
        len(rows),
        span,
        0.0,
        sum(row["generated"] for row in rows) / span,
        percentiles([row["ttft_ms"] / 1e3 for row in rows]),
        percentiles(each),
        percentiles([row["queue_ms"] / 1e3 for row in rows]),
    )


def line(name: str, case: Case, seen: SimulationOutcome) -> str:
    first, each = seen.ttft_ms, seen.tpot_ms
    return (
        f"| {case.slots} | {case.draft} | {case.load:g} | {name} | {seen.tokens_per_s:.1f} |"
        f" {first[0]:.0f}, {first[1]:.0f} | {each[0]:.1f}, {each[1]:.1f} |"
    )


def capacity(prices: Prices, slots: int) -> float:
    """Requests a second that a full machine answers."""
    n_answer = mean(LENGTHS)
    n_prompt = round(mean(map(n_letters, prompts())) / LETTERS_PER_TOKEN) + TEMPLATE
    return 1.0 / (prices.prompt_s(n_prompt) + n_answer * prices.pass_s(slots, 1, 128) / slots)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--draft", nargs="+", default=["none", "suffix"])
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--load", type=float, nargs="+", default=[0.7])
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    model = resolve_model(given.model)
    wanted = WantedTable(model, max_sequences=max(given.slots), budget_s=40, threads=given.threads)
    costs = batch_table(wanted, lambda text: print(text, file=sys.stderr))
    prices = Prices(costs)
    print(f"prices stable: {costs.stable}", file=sys.stderr)
    print("| slots | draft | load | | tok/s | first token p50, p95 ms | each token p50, p95 ms |")
    print("|---|---|---|---|---|---|---|")
    for slots in given.slots:
        for load in given.load:
            rate = load * capacity(prices, slots)
            for draft in given.draft:
                window = given.window if draft != "none" else 0
                case = Case(slots, draft, window, load, given.requests, given.threads)
                rows = real(model, case, rate, given.seed)
                print(line("measured", case, measured(rows)), flush=True)
                print(
                    line("simulated", case, simulated(rows, prices, case, given.seed)), flush=True
                )


if __name__ == "__main__":
    main()

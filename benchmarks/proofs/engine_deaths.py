"""kill -9 of the engine process under many streams, again and again.

Each time half of the answers have begun and half wait. Fails if one that had begun does not end
with `engine_died`, if one that had not is not answered whole, if the front's memory grows, or if a
process or the port is left at the end. A hundred deaths take 50 minutes: the server begins its
engine later after each.

Example: python -m benchmarks.proofs.engine_deaths model.gguf --times 100 --streams 32
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.shared import served

_GROWTH_MB = 32.0
_TOKENS = 24  # of an answer that waits


@dataclass
class Outcome:
    """What became of everyone."""

    n_deaths: int = 0
    n_told: int = 0  # answers that had begun and ended with the error
    n_answered: int = 0  # answers that had not, and came whole
    told_s: list[float] = field(default_factory=list)  # from the kill to the last error event
    first_s: list[float] = field(default_factory=list)  # from the kill to the first whole answer
    front_mb: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def one_death(url: str, engine: psutil.Process, n: int, out: Outcome) -> None:
    """Half of the streams have begun when it is killed; the others wait for a slot."""
    timeout = httpx.Timeout(300.0)
    limits = httpx.Limits(max_connections=None)
    killed = asyncio.get_running_loop().create_future()
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:
        begun = [asyncio.ensure_future(_endless(client, killed)) for _ in range(n // 2)]
        while sum(state.begun for state in _STATES) < n // 2:
            await asyncio.sleep(0.01)
        waiting = [asyncio.ensure_future(_whole(client)) for _ in range(n - n // 2)]
        while (await client.get("/metrics/speculative")).json()["queue"]["waiting"] < len(waiting):
            await asyncio.sleep(0.01)
        at = time.perf_counter()
        engine.kill()
        killed.set_result(None)
        errors = await asyncio.gather(*begun)
        out.told_s.append(time.perf_counter() - at)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        out.first_s.append(time.perf_counter() - at)
        answers = await asyncio.gather(*waiting)
    out.n_deaths += 1
    out.n_told += errors.count("engine_died")
    out.n_answered += answers.count(_TOKENS)
    wrong = [error for error in errors if error != "engine_died"]
    out.problems += [f"an answer that had begun ended with {error}" for error in wrong]
    out.problems += [f"an answer that waited had {a} tokens" for a in answers if a != _TOKENS]
    _STATES.clear()


@dataclass
class _State:
    begun: bool = False


_STATES: list[_State] = []


async def _endless(client: httpx.AsyncClient, killed: asyncio.Future[None]) -> str:
    """The code of the error with which it ends."""
    state = _State()
    _STATES.append(state)
    body = {
        "prompt": "on and on",
        "max_tokens": 10**6,
        "temperature": 0,
        "context_full": "slide",
        "stream": True,
    }
    code = "nothing"
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                state.begun = True
                if killed.done() and "error" in (told := json.loads(line[6:])):
                    code = str(told["error"]["code"])
    return code


async def _whole(client: httpx.AsyncClient) -> int:
    """How many tokens it has."""
    body = {"prompt": "waits", "max_tokens": _TOKENS, "temperature": 0}
    answer = (await client.post("/v1/completions", json=body)).json()
    return int(answer.get("usage", {}).get("completion_tokens", 0))


def prove(model: Path, times: int, streams: int) -> Outcome:
    """So many deaths, one after the other."""
    out = Outcome()
    content: dict[str, Any] = {
        "model": {"target": str(model), "drafter": "suffix"},
        "runtime": {"slots": max(1, streams // 2), "context_size": 256, "threads": 1},
        "server": {"port": 0, "max_restarts": times + 1, "queue_size": 2 * streams},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deaths.yaml"
        file.write_text(yaml.safe_dump(content))
        with served.parlay(str(file)) as server:
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            for _ in range(times):
                _until_well(server.url)
                asyncio.run(one_death(server.url, server.engine, streams, out))
                out.front_mb.append(server.parent.memory_info().rss / 1e6)
            below = server.parent.children(recursive=True)
    _, left = psutil.wait_procs(below, timeout=10)
    out.problems += [f"process {one.pid} is left" for one in left if one.status() != "zombie"]
    with socket.socket() as tried:
        if tried.connect_ex(("127.0.0.1", port)) == 0:
            out.problems.append(f"port {port} is left")
    settled = out.front_mb[min(5, len(out.front_mb) - 1) :]
    if settled[-1] - settled[0] > _GROWTH_MB:
        out.problems.append(f"the front grew from {settled[0]:.0f} to {settled[-1]:.0f} MB")
    return out


def _until_well(url: str) -> None:
    while httpx.get(f"{url}/health").status_code != 200:
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = prove(given.model, given.times, given.streams)
    text = json.dumps(asdict(out))
    if given.out is not None:
        given.out.write_text(text)
    print(
        f"{out.n_deaths} deaths: {out.n_told} told within {max(out.told_s):.3f} s, {out.n_answered}"
        f" answered, the first {statistics.median(out.first_s):.2f} s after; front"
        f" {out.front_mb[0]:.0f} to {out.front_mb[-1]:.0f} MB"
    )
    for problem in out.problems:
        print(problem)
    return 1 if out.problems else 0


if __name__ == "__main__":
    sys.exit(main())

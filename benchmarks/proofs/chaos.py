"""Chaos: honest streams whose texts are checked, beside everything that may go wrong.

Poison, cancels, slow readers, huge bodies, reloads, drafters that vanish, and kills of the engine's
process. Fails if an honest request that had not begun is lost, if a text differs from the one
plain decoding gave before, or if memory grows. One JSON object comes out.

Example, 20 minutes: python -m benchmarks.proofs.chaos --minutes 20 --out chaos.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.traffic import Traffic

_GROWTH_MB = 64.0
_POISON: tuple[bytes, ...] = (
    b'{"prompt":"x","logit_bias":{"5":-1e999}}',
    b'{"prompt":"x","temperature":NaN}',
    b'{"prompt":"\\ud800"}',
    b'{"prompt":"' + b"a" * 200_000 + b'"}',
    b'{"prompt":[' + b"{}," * 100_000 + b"{}]}",
    b'{"prompt":"x","grammar":"root ::= ' + b"(" * 3000 + b'"}',
    b'{"prompt":"x","stop":"' + b"s" * 5000 + b'"}',
    b'{"prompt":"x","logit_bias":{' + b",".join(b'"%d":1' % i for i in range(5000)) + b"}}",
    json.dumps({"prompt": "x", "grammar": 'root ::= "a" | "b"', "max_tokens": 9}).encode(),
    b"[" * 100_000,
)


@dataclass
class Outcome:
    """What became of everyone."""

    honest: Counter[str] = field(default_factory=Counter)  # complete, begun, lost, different
    hostile: Counter[str] = field(default_factory=Counter)  # by status
    n_kills: int = 0
    n_reloads: int = 0
    down_s: list[float] = field(default_factory=list)  # from a kill until health is well again
    rss_mb: list[float] = field(default_factory=list)  # of each life of the engine, at its end
    parent_mb: list[float] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        found = [f"{n} honest requests {kind}" for kind, n in self.honest.items() if kind in _BAD]
        internal = {s: n for s, n in self.hostile.items() if s.startswith("5") and s not in _KNOWN}
        found += [f"{n} hostile requests answered {status}" for status, n in internal.items()]
        for name, values in (("engine", self.rss_mb[1:]), ("front", self.parent_mb)):
            if len(values) > 1 and values[-1] - values[0] > _GROWTH_MB:
                found.append(f"the {name} grew from {values[0]:.0f} to {values[-1]:.0f} MB")
        return found


_BAD = ("lost", "different")
_KNOWN = ("500", "503", "504")  # the engine died; starting, draining or full; no token in time


class Chaos:
    """One run against one server."""

    def __init__(self, server: served.Served, deployment: Path, seed: int) -> None:
        self.outcome = Outcome()
        self._server = server
        self._deployment = deployment
        self._random = random.Random(seed)
        self._texts: dict[str, str] = {}
        self._over = False

    async def run(
        self,
        seconds: float,
        n_streams: int,
        kill_every_s: float,
        enough: Callable[[Outcome], bool] = lambda _: True,
    ) -> Outcome:
        """Honest streams first, alone: what they say then is what they must always say.

        So long, and longer until enough has happened.
        """
        prompts = [f"{word} {i}" for i, word in enumerate(("hello", "the sea", "on and on") * 3)]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            for prompt in prompts[:n_streams]:
                self._texts[prompt] = await self._ask(client, prompt)
            honest = [self._go_on(client, p) for p in prompts[:n_streams]]
            hostile: list[Callable[[], Awaitable[None]]] = [
                lambda: self._poison(client),
                self._traffic,
                self._reload,
                lambda: self._kill(client, kill_every_s),
            ]
            tasks = [asyncio.create_task(_forever(work)) for work in hostile]
            tasks_honest = [asyncio.create_task(work) for work in honest]
            await asyncio.sleep(seconds)
            while not enough(self.outcome):
                await asyncio.sleep(0.05)
            self._over = True
            await asyncio.gather(*tasks_honest)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._weigh()
        return self.outcome

    # -- honest ---------------------------------------------------------------

    async def _go_on(self, client: httpx.AsyncClient, prompt: str) -> None:
        while not self._over:
            try:
                text = await self._ask(client, prompt)
                result = "complete" if text == self._texts[prompt] else "different"
                if result == "different":
                    self.outcome.details.append(f"{text!r} instead of {self._texts[prompt]!r}")
            except _Begun:
                result = "begun"
            except _Busy:
                await asyncio.sleep(0.2)
                continue
            except (httpx.HTTPError, ValueError, KeyError) as error:
                result = "lost"
                self.outcome.details.append(f"{type(error).__name__}: {error}"[:200])
            self.outcome.honest[result] += 1

    async def _ask(self, client: httpx.AsyncClient, prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 48, "temperature": 0, "stream": True}
        text, begun, ended = "", False, False  # its first token may be no whole letter
        try:
            async with client.stream("POST", f"{self._server.url}/v1/completions", json=body) as r:
                if r.status_code in (429, 503):
                    raise _Busy
                if r.status_code != 200:
                    raise ValueError(f"status {r.status_code}")
                async for line in r.aiter_lines():
                    if not line.startswith("data: {"):
                        ended = ended or line == "data: [DONE]"
                        continue
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise _Begun if begun else ValueError(str(chunk["error"]))
                    begun = True
                    text += chunk["choices"][0]["text"]
        except httpx.HTTPError:
            if begun:
                raise _Begun from None
            raise
        if not ended:
            raise _Begun
        return text

    # -- hostile --------------------------------------------------------------

    async def _poison(self, client: httpx.AsyncClient) -> None:
        headers = {"Content-Type": self._random.choice(["application/json"] * 9 + ["text/plain"])}
        body = self._random.choice(_POISON)
        with suppress(httpx.HTTPError):
            url = f"{self._server.url}/v1/completions"
            answer = await client.post(url, content=body, headers=headers)
            self.outcome.hostile[str(answer.status_code)] += 1
        await asyncio.sleep(0.02)

    async def _traffic(self) -> None:
        """Good, bad, leaving, slow: see benchmarks/shared/traffic.py."""
        await Traffic(self._server.url, seed=self._random.randrange(1 << 30)).run(10, 4)

    async def _reload(self) -> None:
        """The file is written anew: another drafter, none, one that is not there, or nonsense."""
        await asyncio.sleep(1.0)
        content = yaml.safe_load(self._deployment.read_text())
        content["model"]["drafter"] = self._random.choice(["suffix", "none", "gone.gguf"])
        self._deployment.write_text(yaml.safe_dump(content))
        self._server.process.send_signal(signal.SIGHUP)
        self.outcome.n_reloads += 1

    async def _kill(self, client: httpx.AsyncClient, every_s: float) -> None:
        await asyncio.sleep(every_s)
        self._weigh()
        self._server.engine.kill()
        self.outcome.n_kills += 1
        began = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            with suppress(httpx.HTTPError):
                if (await client.get(f"{self._server.url}/health")).status_code == 200:
                    self.outcome.down_s.append(round(time.monotonic() - began, 2))
                    return

    def _weigh(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it may be dying just now
            self.outcome.rss_mb.append(self._server.engine.memory_info().rss / 1e6)
        self.outcome.parent_mb.append(self._server.parent.memory_info().rss / 1e6)


class _Begun(Exception):
    """The answer had begun when it broke off."""


class _Busy(Exception):
    """There was no place."""


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


def write(path: Path, target: Path, **runtime: Any) -> Path:
    """A deployment for such a run."""
    content = {
        "model": {"target": str(target.resolve()), "drafter": "suffix"},
        "runtime": {"slots": 4, "context_size": 1024, "mode": "exact", **runtime},
        "server": {"port": 0, "queue_size": 32, "max_restarts": 100_000, "stall_s": 5},
        "monitoring": {"request_log": str(path.parent / "requests.jsonl")},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def main() -> int:
    args = _arguments()
    from parlay.hub.resolving import resolve_model

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "d.yaml", resolve_model(args.model), threads=args.threads)
        with served.parlay(str(path)) as server:
            run = Chaos(server, path, args.seed).run(
                60 * args.minutes, args.streams, args.kill_every
            )
            outcome = asyncio.run(run)
    problems = outcome.problems()
    found = {
        "minutes": args.minutes,
        "honest": dict(outcome.honest),
        "hostile": dict(outcome.hostile),
        "kills": outcome.n_kills,
        "reloads": outcome.n_reloads,
        "down_s": outcome.down_s,
        "engine_rss_mb": [round(x) for x in outcome.rss_mb],
        "front_rss_mb": [round(x) for x in outcome.parent_mb],
        "problems": problems + outcome.details[:10],
    }
    served.tell(found, args.out)
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--model", default="default")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

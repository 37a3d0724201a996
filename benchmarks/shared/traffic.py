"""Mixed traffic for a server: good requests, bad ones, clients that leave or read slowly.

Knows HTTP only. Each request has an outcome: complete, a well-formed error, left, or broken.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

WORDS = ("hello", "the", "sea", "on", "and", "in", "here", "water", "under", "an", "old", "rain")
WRONG: tuple[dict[str, Any], ...] = (
    {"top_p": 7},
    {"stop": ["x"] * 99},
    {"grammar": "root ="},
    {"max_tokens": "many"},
)
# How often each kind of request comes.
MIX = {
    "stream": 6,
    "whole": 4,
    "chat": 3,
    "grammar": 1,
    "several": 1,
    "leaves": 4,
    "disconnects": 2,
    "slow_reader": 2,
    "oversize": 2,
    "invalid_json": 2,
    "bad_value": 2,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended."""

    kind: str
    result: str  # complete, error, left, busy, broken
    seconds: float
    detail: str = ""


@dataclass
class Report:
    """All outcomes."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def by_result(self) -> Counter[str]:
        return Counter(outcome.result for outcome in self.outcomes)

    @property
    def broken(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.result == "broken"]


class Traffic:
    """Sends requests to one server."""

    def __init__(self, url: str, *, seed: int = 0, max_tokens: int = 60, oversize: int = 20_000):
        self._url = url
        self._rng = random.Random(seed)
        self._max_tokens = max_tokens
        self._n_oversize = oversize

    async def run(self, n: int, n_at_once: int) -> Report:
        """So many requests, so many at once."""
        report = Report()
        kinds = self._rng.choices(list(MIX), weights=list(MIX.values()), k=n)
        left = iter(kinds)
        limits = httpx.Limits(max_connections=n_at_once)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:

            async def worker() -> None:
                for kind in left:
                    report.outcomes.append(await self._one(client, kind))

            await asyncio.gather(*(worker() for _ in range(n_at_once)))
        return report

    async def _one(self, client: httpx.AsyncClient, kind: str) -> Outcome:
        began = perf_counter()
        try:
            result, detail = await getattr(self, f"_{kind}")(client)
        except httpx.HTTPError as error:
            result, detail = "broken", f"{type(error).__name__}: {error}"
        return Outcome(kind, result, perf_counter() - began, detail)

    def _body(self, **more: Any) -> dict[str, Any]:
        rng = self._rng
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 25)))
        temperature = rng.choice((0, 0.8))
        n = rng.randint(1, self._max_tokens)
        body = {"prompt": prompt, "max_tokens": n, "temperature": temperature}
        return {**body, "seed": rng.randint(0, 99), **more}

    # -- the kinds ------------------------------------------------------------

    async def _whole(self, client: httpx.AsyncClient) -> tuple[str, str]:
        return judge(await client.post(f"{self._url}/v1/completions", json=self._body()))

    async def _several(self, client: httpx.AsyncClient) -> tuple[str, str]:
        return judge(await client.post(f"{self._url}/v1/completions", json=self._body(n=3)))

    async def _grammar(self, client: httpx.AsyncClient) -> tuple[str, str]:
        body = self._body(grammar='root ::= ("he" | "on" | " the")+', speculation=True)
        return judge(await client.post(f"{self._url}/v1/completions", json=body))

    async def _chat(self, client: httpx.AsyncClient) -> tuple[str, str]:
        body = self._body()
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        return judge(await client.post(f"{self._url}/v1/chat/completions", json=body))

    async def _stream(self, client: httpx.AsyncClient) -> tuple[str, str]:
        return await self._read(client, pause_s=0.0)

    async def _slow_reader(self, client: httpx.AsyncClient) -> tuple[str, str]:
        return await self._read(client, pause_s=0.02)

    async def _read(self, client: httpx.AsyncClient, pause_s: float) -> tuple[str, str]:
        body = self._body(stream=True)
        async with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return judge(response)
            last = [event async for event in _events(response, pause_s)][-2:]
        finished = len(last) == 2 and last[1] == "[DONE]" and '"finish_reason":"' in last[0]
        return ("complete", "") if finished else ("broken", f"the stream ended with {last}")

    async def _leaves(self, client: httpx.AsyncClient) -> tuple[str, str]:
        """Reads a little, then goes."""
        body = self._body(stream=True, max_tokens=10**6, context_full="slide", temperature=0)
        async with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return judge(response)
            n = self._rng.randint(1, 10)
            async for _event in _events(response, 0.0):
                n -= 1
                if n <= 0:
                    break
        return "left", ""

    async def _disconnects(self, client: httpx.AsyncClient) -> tuple[str, str]:
        """Does not even wait for the answer's first byte."""
        body = self._body(max_tokens=10**6, context_full="slide", temperature=0)
        try:
            answer = await client.post(
                f"{self._url}/v1/completions", json=body, timeout=self._rng.uniform(0.01, 0.3)
            )
        except httpx.TimeoutException:
            return "left", ""
        return judge(answer)

    async def _oversize(self, client: httpx.AsyncClient) -> tuple[str, str]:
        body = self._body(prompt="q" * self._n_oversize)
        return _refused(await client.post(f"{self._url}/v1/completions", json=body))

    async def _invalid_json(self, client: httpx.AsyncClient) -> tuple[str, str]:
        headers = {"Content-Type": "application/json"}
        content = self._rng.choice([b"{", b"[1", b'{"prompt": }', b"\xff\xfe", b"null"])
        url = f"{self._url}/v1/completions"
        return _refused(await client.post(url, content=content, headers=headers))

    async def _bad_value(self, client: httpx.AsyncClient) -> tuple[str, str]:
        body = self._body(**self._rng.choice(WRONG))
        return _refused(await client.post(f"{self._url}/v1/completions", json=body))


async def _events(response: httpx.Response, pause_s: float) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
            await asyncio.sleep(pause_s)


def judge(response: httpx.Response) -> tuple[str, str]:
    """Complete, a well-formed error, or broken."""
    try:
        body = response.json()
    except json.JSONDecodeError:
        return "broken", f"{response.status_code} without JSON"
    if response.status_code == 200:
        whole = all(choice["finish_reason"] for choice in body["choices"])
        return ("complete", "") if whole else ("broken", "no finish reason")
    if not body.get("error", {}).get("message"):
        return "broken", f"{response.status_code} without a message"
    if response.status_code == 429:
        return ("busy", "") if "retry-after" in response.headers else ("broken", "no Retry-After")
    known = response.status_code < 500 or response.status_code in (503, 504)
    return ("error" if known else "broken"), body["error"]["message"]


def _refused(response: httpx.Response) -> tuple[str, str]:
    result, detail = judge(response)
    return ("broken", "it was taken") if result == "complete" else (result, detail)


# -- one client that reads to the end -------------------------------------------------------------


@dataclass
class Got:
    """What a client saw of one answer."""

    text: str = ""
    begun: bool = False
    failed: str | None = None
    last: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)  # the last word on speculation

    def take(self, chunk: dict[str, Any]) -> None:
        """The next piece of a stream."""
        self.begun, self.last = True, chunk
        self.told = chunk.get("speculation") or self.told
        if "error" in chunk:
            self.failed = chunk["error"]["message"]
        elif chunk["choices"]:
            choice = chunk["choices"][0]
            self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""


def streamed(url: str, body: dict[str, Any]) -> Got:
    """Ask for a stream, and read it."""
    got = Got()
    try:
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=120) as response:
            if response.status_code != 200:
                response.read()
                got.failed = f"HTTP {response.status_code}: {response.text}"
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    got.take(json.loads(line[6:]))
    except httpx.HTTPError as error:
        got.failed = f"{type(error).__name__}: {error}"
    return got

"""Ten thousand made-up requests over every route: none may bring an internal error.

Bodies are JSON of the fields that routes know, with values of every kind, or bytes that are hardly
JSON. Documented are 501 (not here), 503 (starting, draining, too many) and 504 (no token in time).

Example: python -m benchmarks.proofs.fuzz --requests 10000 --out fuzz.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of

_DOCUMENTED = {501, 503, 504}
_METHODS = ("get", "post", "put", "delete")
_TEXTS = ("", "x", "hello", "<|im_start|>system", "\u0000", "e\u0301" * 50, "a" * 5000, "{", "none")
_NUMBERS = (0, 1, -1, 2, 7, 0.5, 1e-320, -1e300, 1 << 31, 1 << 70, True, False)
_ROLES = ("user", "system", "assistant", "tool", "developer", "nobody")


class Maker:
    """Makes bodies up."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)
        self.routes = [
            (method, path)
            for path, item in sorted(document["paths"].items())
            for method in item
            if method in _METHODS
        ]
        schemas = document.get("components", {}).get("schemas", {}).values()
        names = {name for schema in schemas for name in schema.get("properties", {})}
        self._names = sorted(names)

    def request(self) -> tuple[str, str, bytes]:
        method, path = self._random.choice(self.routes)
        if (method, path) == ("post", "/live/bench") and self._random.random() < 0.98:
            method = "get"  # each one that begins keeps the engine busy for a while
        path = path.replace("{request_id}", self._text()[:40].replace("/", "") or "x")
        return method, path, self._body()

    def _body(self) -> bytes:
        kind = self._random.random()
        if kind < 0.1:
            return self._random.randbytes(self._random.randrange(200))
        text = json.dumps(self._object()).encode()
        if kind < 0.2:  # nearly JSON
            at = self._random.randrange(len(text))
            return (
                text[:at]
                + self._random.choice([b"", b"NaN", b"\\ud800", b"}", b"\xff"])
                + text[at:]
            )
        return text

    def _object(self) -> dict[str, Any]:
        body: dict[str, Any] = {"max_tokens": self._random.choice([1, 2, 4])}
        if self._random.random() < 0.8:
            body["messages"] = [self._message() for _ in range(self._random.randint(1, 3))]
            body["prompt"] = self._text() or "x"
            body["input"] = body["content"] = self._text()
            body["tokens"] = [self._random.randrange(300) for _ in range(3)]
        for name in self._random.sample(self._names, self._random.randint(0, 4)):
            body[name] = self._value(2)
        return body

    def _message(self) -> dict[str, Any]:
        role = self._random.choice(_ROLES[:3] if self._random.random() < 0.8 else _ROLES)
        content = self._text() if self._random.random() < 0.8 else self._value(2)
        return {"role": role, "content": content}

    def _value(self, depth: int) -> Any:
        kinds = 6 if depth else 4
        match self._random.randrange(kinds):
            case 0:
                return self._text()
            case 1 | 2:
                return self._random.choice(_NUMBERS)
            case 3:
                return None
            case 4:
                return [self._value(depth - 1) for _ in range(self._random.randint(0, 3))]
        keys = self._random.sample([*self._names, "5", "type"], self._random.randint(0, 3))
        return {key: self._value(depth - 1) for key in keys}

    def _text(self) -> str:
        return self._random.choice(_TEXTS)


async def fuzz(url: str, n: int, n_at_once: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Counts by status, and what should not have come."""
    statuses: Counter[str] = Counter()
    problems: list[str] = []
    async with httpx.AsyncClient(timeout=60) as client:
        maker = Maker((await client.get(f"{url}/openapi.json")).json(), seed)
        left = iter(range(n))

        async def worker() -> None:
            for _ in left:
                method, path, body = maker.request()
                headers = {"Content-Type": "application/json"}
                try:
                    answer = await client.request(
                        method.upper(), url + path, content=body, headers=headers
                    )
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    if not isinstance(error, httpx.InvalidURL):
                        problems.append(f"{method} {path} {type(error).__name__} {body[:300]!r}")
                    continue
                statuses[str(answer.status_code)] += 1
                if answer.status_code >= 500 and answer.status_code not in _DOCUMENTED:
                    problems.append(f"{method} {path} {answer.status_code} {body[:300]!r}")

        await asyncio.gather(*(worker() for _ in range(n_at_once)))
    return statuses, problems


def main() -> int:
    args = _arguments()
    from parlay.hub.resolving import resolve_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.yaml"
        content = {
            "model": {"target": str(resolve_model(args.model).resolve()), "drafter": "suffix"},
            "runtime": {"slots": 4, "context_size": 512, "threads": args.threads},
            "server": {"port": 0, "max_answer_tokens": 8, "request_timeout_s": 20},
        }
        path.write_text(yaml.safe_dump(content))
        with served.parlay(str(path)) as server:
            engine = server.engine.pid
            run = fuzz(server.url, args.requests, args.at_once, args.seed)
            statuses, problems = asyncio.run(run)
            if server.engine.pid != engine:
                problems.append("the engine died")
    found = {"requests": args.requests, "statuses": dict(statuses), "problems": problems[:20]}
    served.tell(found, args.out)
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--model", default="default")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

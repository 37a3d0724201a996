"""Request logs read line by line: Parlay's own, or JSON lines as OpenAI's interface writes them.

Knows field names; knows nothing of what follows from the numbers. Texts are never kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from parlay.errors import BadRequest

MAX_LINE = 1 << 24  # prompts may be in there
# Where others put the time a whole request took, in milliseconds.
_WHOLE_MS = ("e2e_ms", "latency_ms", "duration_ms", "response_ms", "total_ms")
_TIME = ("time", "timestamp", "created_at")
_LATEST = 1e11  # seconds; beyond it a number would mean milliseconds, or nothing
_LEFT = 499  # the status of a request whose client went away
_ROUTE = ("route", "path", "url", "endpoint")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One answered request, in numbers."""

    route: str
    endpoint: str | None  # chat or completions, where the log says so
    n_prompt: int
    n_answer: int
    prefill_ms: float | None
    decode_ms: float | None
    n_drafted: int = 0
    n_accepted: int = 0
    speedup: float | None = None  # of decoding, as measured while it ran
    at_s: float | None = None  # when it came, in seconds since 1970
    n_reused: int = 0  # of the prompt's tokens, found in the cache


@dataclass(frozen=True, slots=True)
class Log:
    """What was read, and how many lines said nothing."""

    requests: tuple[LoggedRequest, ...]
    n_skipped: int


def read_logs(paths: list[Path]) -> Log:
    """Every line of every file; a line that is no answered request is counted, not an error."""
    found: list[LoggedRequest] = []
    n_skipped = 0
    for path in paths:
        for line in _lines(path):
            request = parse_line(line)
            if request is None:
                n_skipped += 1
            else:
                found.append(request)
    return Log(tuple(found), n_skipped)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if line.strip():
                    yield line
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}); name a log file") from None


def parse_line(line: bytes) -> LoggedRequest | None:
    """One line, if it tells of an answer."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    if "request_id" in raw and ("drafted" in raw or "proposed_tokens" in raw):
        return _parlay(raw)
    return _openai(raw)


def _parlay(raw: Mapping[str, Any]) -> LoggedRequest | None:
    n_answer, n_prompt = _count(raw, "generated"), _count(raw, "prompt_tokens")
    if not n_answer or _count(raw, "status") == _LEFT:  # half an answer is no measure of whole ones
        return None
    endpoint = _text(raw, "endpoint")
    ttft, whole, queue = (_number(raw, f"{name}_ms") for name in ("ttft", "e2e", "queue"))
    timed = ttft is not None and whole is not None
    return LoggedRequest(
        route="/".join(filter(None, (endpoint, _text(raw, "policy")))) or "all",
        endpoint=endpoint,
        n_prompt=n_prompt,
        n_answer=n_answer,
        prefill_ms=max(0.0, (ttft or 0) - (queue or 0)) if timed else None,
        decode_ms=max(0.0, (whole or 0) - (ttft or 0)) if timed else None,
        n_drafted=_count(raw, "drafted" if "drafted" in raw else "proposed_tokens"),
        n_accepted=_count(raw, "accepted" if "accepted" in raw else "accepted_tokens"),
        speedup=_number(raw, "speedup"),
        at_s=_began(raw, whole),
        n_reused=_count(raw, "reused_tokens"),
    )


def _openai(raw: Mapping[str, Any]) -> LoggedRequest | None:
    """An answer, or a wrapper around one: `response`, `body`, or both."""
    body = raw
    for key in ("response", "body"):
        inner = body.get(key)
        body = inner if isinstance(inner, dict) else body
    usage = _mapping(body, "usage") or _mapping(raw, "usage")
    n_prompt, n_answer = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if not n_answer:
        return None
    timings = _mapping(body, "timings")
    prefill, decode = _number(timings, "prompt_ms"), _number(timings, "predicted_ms")
    ttft, whole = _number(raw, "ttft_ms"), _first(raw, _WHOLE_MS)
    if prefill is None and ttft is not None and whole is not None:
        prefill, decode = ttft, max(0.0, whole - ttft)
    route = next((text for key in _ROUTE if (text := _text(raw, key))), None)
    return LoggedRequest(
        route=route or _text(body, "model") or "all",
        endpoint=_endpoint(route, body),
        n_prompt=n_prompt,
        n_answer=n_answer,
        prefill_ms=prefill,
        decode_ms=decode,
        n_drafted=_count(timings, "draft_n"),
        n_accepted=_count(timings, "draft_n_accepted"),
        at_s=_began(raw, None) or _number(body, "created"),
        n_reused=_count(timings, "cache_n"),
    )


def _began(raw: Mapping[str, Any], whole_ms: float | None) -> float | None:
    """When a request came: the line's time, less what it took where the line is its end."""
    at = next((found for key in _TIME if (found := _moment(raw.get(key))) is not None), None)
    return None if at is None else at - (whole_ms or 0.0) / 1e3


def _moment(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 < value < _LATEST else None
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def _endpoint(route: str | None, body: Mapping[str, Any]) -> str | None:
    words = f"{route or ''} {_text(body, 'object') or ''}"
    if "chat" in words:
        return "chat"
    return "completions" if "completion" in words else None


def _mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _text(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    return value if isinstance(value, str) else None


def _number(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if good and value is not None else None


def _first(raw: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((n for key in keys if (n := _number(raw, key)) is not None), None)


def _count(raw: Mapping[str, Any], key: str) -> int:
    return int(_number(raw, key) or 0)

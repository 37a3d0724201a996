"""A workload's profile: request logs read line by line, where the time goes by route, and what
speculation could gain there.

Knows field names and arithmetic, no models. Texts are never kept.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parlay.errors import BadRequest

# A route must gain this much in all to be worth speculating on.
MIN_GAIN = 1.05
# A rule needs more than a few requests to stand on.
MIN_REQUESTS = 5
MAX_LINE = 1 << 24  # prompts may be in there
# Where others put the time a whole request took, in milliseconds, and its route.
_WHOLE_MS = ("e2e_ms", "latency_ms", "duration_ms", "response_ms", "total_ms")
_ROUTE = ("route", "path", "url", "endpoint")
_LEFT = 499  # the status of a request whose client went away


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

    @property
    def prompt_to_answer(self) -> float:
        return self.n_prompt / max(1, self.n_answer)


@dataclass(frozen=True, slots=True)
class Log:
    """What was read, and how many lines said nothing."""

    requests: tuple[LoggedRequest, ...]
    n_skipped: int


def read_logs(paths: Sequence[Path]) -> Log:
    """Every line of every file; a line that is no answered request is counted, not an error."""
    read = [parse_line(line) for path in paths for line in _lines(path)]
    return Log(tuple(r for r in read if r is not None), sum(r is None for r in read))


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
    return _parlay(raw) if "request_id" in raw and "drafted" in raw else _openai(raw)


def _parlay(raw: Mapping[str, Any]) -> LoggedRequest | None:
    n_answer = _count(raw, "generated")
    if not n_answer or _count(raw, "status") == _LEFT:  # half an answer is no measure of whole ones
        return None
    endpoint = _text(raw, "endpoint")
    ttft, whole, queue = (_number(raw, f"{name}_ms") for name in ("ttft", "e2e", "queue"))
    timed = ttft is not None and whole is not None
    return LoggedRequest(
        route="/".join(filter(None, (endpoint, _text(raw, "policy")))) or "all",
        endpoint=endpoint,
        n_prompt=_count(raw, "prompt_tokens"),
        n_answer=n_answer,
        prefill_ms=max(0.0, (ttft or 0) - (queue or 0)) if timed else None,
        decode_ms=max(0.0, (whole or 0) - (ttft or 0)) if timed else None,
        n_drafted=_count(raw, "drafted"),
        n_accepted=_count(raw, "accepted"),
        speedup=_number(raw, "speedup"),
    )


def _openai(raw: Mapping[str, Any]) -> LoggedRequest | None:
    """An answer, or a wrapper around one: `response`, `body`, or both."""
    body = raw
    for key in ("response", "body"):
        body = _mapping(body, key) or body
    usage = _mapping(body, "usage") or _mapping(raw, "usage")
    n_answer = _count(usage, "completion_tokens")
    if not n_answer:
        return None
    timings = _mapping(body, "timings")
    prefill, decode = _number(timings, "prompt_ms"), _number(timings, "predicted_ms")
    ttft = _number(raw, "ttft_ms")
    whole = next((n for key in _WHOLE_MS if (n := _number(raw, key)) is not None), None)
    if prefill is None and ttft is not None and whole is not None:
        prefill, decode = ttft, max(0.0, whole - ttft)
    route = next((text for key in _ROUTE if (text := _text(raw, key))), None)
    words = f"{route or ''} {_text(body, 'object') or ''}"
    return LoggedRequest(
        route=route or _text(body, "model") or "all",
        endpoint="chat" if "chat" in words else "completions" if "completion" in words else None,
        n_prompt=_count(usage, "prompt_tokens"),
        n_answer=n_answer,
        prefill_ms=prefill,
        decode_ms=decode,
        n_drafted=_count(timings, "draft_n"),
        n_accepted=_count(timings, "draft_n_accepted"),
    )


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


def _count(raw: Mapping[str, Any], key: str) -> int:
    return int(_number(raw, key) or 0)


# -- what follows -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkloadRoute:
    """What the requests of one route have in common."""

    name: str
    endpoint: str | None
    n_requests: int
    n_prompt: int  # median
    n_answer: int  # median
    prompt_to_answer: float  # median
    decode_share: float | None  # of the time that is not waiting; None: no times known
    token_acceptance: float | None
    speedup: float | None  # of decoding alone
    gain: float | None  # of the whole request at that speed-up
    most: float | None  # if decoding took no time at all
    advice: str  # speculate, plain or unknown
    why: str

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def profile(
    requests: Sequence[LoggedRequest], *, speedup: float | None = None
) -> list[WorkloadRoute]:
    """One entry per route, the busiest first. `speedup` stands in where none was measured."""
    by_route: defaultdict[str, list[LoggedRequest]] = defaultdict(list)
    for request in requests:
        by_route[request.route].append(request)
    routes = [_route(name, own, speedup) for name, own in by_route.items()]
    return sorted(routes, key=lambda route: -route.n_requests)


def _route(name: str, own: Sequence[LoggedRequest], given: float | None) -> WorkloadRoute:
    # The share of decoding had nothing been drafted: what was saved is added back.
    timed = [r for r in own if r.prefill_ms is not None and r.decode_ms is not None]
    decode = sum((r.decode_ms or 0) * (r.speedup or 1.0) for r in timed)
    whole = decode + sum(r.prefill_ms or 0 for r in timed)
    share = decode / whole if whole > 0 else None
    measured = [r.speedup for r in own if r.speedup is not None and r.n_drafted]
    speed = statistics.median(measured) if measured else given
    gain = amdahl(share, speed) if share is not None and speed is not None else None
    most = None if share is None else (1 / (1 - share) if share < 1 else float("inf"))
    advice, why = _advise(len(own), share, speed, gain, most)
    drafted = sum(r.n_drafted for r in own)
    return WorkloadRoute(
        name=name,
        endpoint=own[0].endpoint,
        n_requests=len(own),
        n_prompt=round(statistics.median(r.n_prompt for r in own)),
        n_answer=round(statistics.median(r.n_answer for r in own)),
        prompt_to_answer=statistics.median(r.prompt_to_answer for r in own),
        decode_share=share,
        token_acceptance=sum(r.n_accepted for r in own) / drafted if drafted else None,
        speedup=speed,
        gain=gain,
        most=most,
        advice=advice,
        why=why,
    )


def amdahl(share: float, speedup: float) -> float:
    """What speeding up a share of the time does to all of it."""
    return 1 / ((1 - share) + share / speedup) if speedup > 0 else 0.0


def _advise(
    n: int, share: float | None, speed: float | None, gain: float | None, most: float | None
) -> tuple[str, str]:
    if n < MIN_REQUESTS:
        return "unknown", f"{n} requests are too few to judge"
    if share is None or most is None:
        return "unknown", "the log has no times"
    if most < MIN_GAIN:
        return "plain", f"prefill takes {1 - share:.0%} of the time: at most {most:.2f}x in all"
    if gain is None or speed is None:
        return "unknown", "no speed-up was measured; give --speedup, as parlay bench finds it"
    advice = "plain" if gain < MIN_GAIN else "speculate"
    return advice, f"{speed:.2f}x in decoding is {gain:.2f}x in all"


def rules(
    routes: Sequence[WorkloadRoute], requests: Sequence[LoggedRequest]
) -> list[dict[str, Any]]:
    """`routes:` entries for the deployment file, for routes where the answer is plain."""
    found = []
    for route in routes:
        if route.advice != "plain":
            continue
        own = [r for r in requests if r.route == route.name]
        when: dict[str, Any] = {
            "min_prompt_tokens": _low(r.n_prompt for r in own),
            "min_prompt_to_answer": _low(r.prompt_to_answer for r in own),
        }
        if route.endpoint in ("chat", "completions"):
            when["endpoint"] = route.endpoint
        reason = "prompt_heavy" if (route.most or 0) < MIN_GAIN else "unprofitable"
        name = "".join(c if c.isalnum() else "_" for c in route.name).strip("_") or "all"
        found.append(
            {"name": name, "when": when, "policy": "plain", "reason": reason, "auto": True}
        )
    return found


def _low(values: Iterable[float]) -> int:
    """What nine of ten requests have at least."""
    ordered = sorted(values)
    return int(ordered[len(ordered) // 10])

"""A workload's profile: where its time goes by route, and what speculation could gain there.

Arithmetic over requests; knows neither files nor models.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parlay.planning.requests import LoggedRequest

# A route must gain this much in all to be worth speculating on.
MIN_GAIN = 1.05
# A rule needs more than a few requests to stand on.
MIN_REQUESTS = 5


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second, for requests whose log has no times."""

    prompt: float | None = None
    answer: float | None = None


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
        rounded = {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }
        return rounded


def profile(
    requests: Sequence[LoggedRequest], *, speedup: float | None = None, speeds: Speeds | None = None
) -> list[WorkloadRoute]:
    """One entry per route, the busiest first. `speedup` stands in where none was measured."""
    by_route: defaultdict[str, list[LoggedRequest]] = defaultdict(list)
    for request in requests:
        by_route[request.route].append(_timed(request, speeds or Speeds()))
    routes = [_route(name, own, speedup) for name, own in by_route.items()]
    return sorted(routes, key=lambda route: -route.n_requests)


def _timed(request: LoggedRequest, speeds: Speeds) -> LoggedRequest:
    if request.prefill_ms is not None or speeds.prompt is None or speeds.answer is None:
        return request
    return replace(
        request,
        prefill_ms=request.n_prompt / speeds.prompt * 1e3,
        decode_ms=request.n_answer / speeds.answer * 1e3,
    )


def _route(name: str, own: Sequence[LoggedRequest], given: float | None) -> WorkloadRoute:
    share = _plain_decode_share(own)
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
        prompt_to_answer=statistics.median(_ratio(r) for r in own),
        decode_share=share,
        token_acceptance=sum(r.n_accepted for r in own) / drafted if drafted else None,
        speedup=speed,
        gain=gain,
        most=most,
        advice=advice,
        why=why,
    )


def _ratio(request: LoggedRequest) -> float:
    return request.n_prompt / max(1, request.n_answer)


def _plain_decode_share(own: Iterable[LoggedRequest]) -> float | None:
    """The share of decoding had nothing been drafted: what was saved is added back."""
    prefill = decode = 0.0
    for request in own:
        if request.prefill_ms is None or request.decode_ms is None:
            continue
        prefill += request.prefill_ms
        decode += request.decode_ms * (request.speedup or 1.0)
    return decode / (prefill + decode) if prefill + decode > 0 else None


def amdahl(share: float, speedup: float) -> float:
    """What speeding up a share of the time does to all of it."""
    return 1 / ((1 - share) + share / speedup) if speedup > 0 else 0.0


def _advise(
    n: int, share: float | None, speed: float | None, gain: float | None, most: float | None
) -> tuple[str, str]:
    if n < MIN_REQUESTS:
        return "unknown", f"{n} requests are too few to judge"
    if share is None or most is None:
        return "unknown", "the log has no times; give --prompt-tps and --answer-tps"
    if most < MIN_GAIN:
        return "plain", f"prefill takes {1 - share:.0%} of the time: at most {most:.2f}x in all"
    if gain is None or speed is None:
        return "unknown", "no speed-up was measured; give --speedup or a pair that was measured"
    if gain < MIN_GAIN:
        return "plain", f"{speed:.2f}x in decoding is {gain:.2f}x in all"
    return "speculate", f"{speed:.2f}x in decoding is {gain:.2f}x in all"


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
            "min_prompt_to_answer": _low(_ratio(r) for r in own),
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

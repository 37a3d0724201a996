"""One remote answer as it comes by: its times, what its server tells, and its figures.

Plain arithmetic; knows neither HTTP nor servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from parlay.ask import Ask, Figures
from parlay.front.remote.timing import RouteTiming
from parlay.reading.answers import AnswerEvent


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Which kind of pool, and why: `fallback` is our word for a plain answer."""

    speculative: bool
    why: str  # request, policy, only, unavailable, measuring, faster, exploring
    fallback: str | None = None


@dataclass
class Observed:
    """One answer as it comes by."""

    ask: Ask
    rule: str
    decision: PoolDecision
    arrived: float
    asked: float | None = None  # when the server that answers was asked
    first: float | None = None  # words
    last: float | None = None
    n_chunks: int = 0
    n_tries: int = 0
    said: AnswerEvent = AnswerEvent()  # noqa: RUF009 - frozen, so sharing it is safe
    pool: str = ""

    @property
    def deadline(self) -> float:
        return self.arrived + (self.ask.time_limit_s or float("inf"))

    @property
    def n_generated(self) -> int:
        """By the server's own count, or chunks where it does not count."""
        return self.n_chunks if self.said.n_tokens is None else self.said.n_tokens

    def decoding(self) -> tuple[float, int]:
        """Seconds and the tokens they made: after the first ones, as far as anyone can tell."""
        n = self.n_generated - (self.said.n_first or 1)
        if self.said.server_decode_s and n > 0:
            return self.said.server_decode_s, n
        if self.first is not None and self.last is not None:
            return self.last - self.first, n
        return 0.0, 0


def figures_of(seen: Observed, timing: RouteTiming) -> Figures:
    """What an answer's numbers are; what its server does not tell is null."""
    now, said = perf_counter(), seen.said
    told, n = said.speculation, seen.n_generated
    seconds, tokens = seen.decoding()
    sides = timing.sides
    plain, own = sides[False].s_per_token, seconds / tokens if tokens > 0 else None
    accepted, drafted = (None, None) if told is None else (told.accepted, told.drafted)
    rounds = None if told is None else told.rounds
    if told is not None and rounds is None:
        rounds = max(0, n - told.accepted)
    first = None if seen.first is None else seen.first - seen.arrived
    queue_s = (seen.asked or now) - seen.arrived
    pairs = [] if told is None else list(zip(told.accepted_at, told.tried_at, strict=False))
    speculation = {
        "policy": seen.rule,
        "pool": seen.pool,
        "speculates": seen.decision.speculative,
        "reason": seen.decision.why,
        "fallback": seen.decision.fallback,
        "retries": seen.n_tries,
        "generated": n,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "token_acceptance": _ratio(accepted, drafted),
        "draft_share": _ratio(accepted, n),
        "acceptance_length": _ratio(n, rounds),
        "acceptance_by_position": [round(a / t, 4) for a, t in pairs if t],
        "queue_ms": ms(queue_s),
        "ttft_ms": ms(first),
        "e2e_ms": ms(now - seen.arrived),
        "ms_per_token": {
            "speculative": ms(sides[True].s_per_token),
            "plain": ms(plain),
        },
        "speedup": round(plain / own, 4) if plain and own else None,
        "baseline_ms_per_token": ms(plain),
    }
    timings = {
        "prompt_n": said.n_prompt,
        "cache_n": said.n_cached,
        "predicted_n": n,
        "predicted_ms": ms(seconds),
        "predicted_per_second": round(tokens / seconds, 3) if seconds and tokens > 0 else 0.0,
    }
    return Figures(
        n_prompt=said.n_prompt or 0,
        n_cached=said.n_cached or 0,
        n_generated=n,
        queue_s=queue_s,
        ttft_s=first,
        e2e_s=now - seen.arrived,
        speculation=speculation,
        timings=timings,
    )


def _ratio(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)

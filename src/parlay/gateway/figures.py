"""What one answer's numbers are: `speculation` for the client, a line for the request log.

Plain arithmetic over what was told and timed; knows neither HTTP nor servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parlay.front.remote.timing import RouteTiming
from parlay.reading.answers import AnswerEvent
from parlay.reading.speculation import Speculation


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Which pool, and why: `why` is the gateway's word, `fallback` ours for a plain answer."""

    speculative: bool
    why: str  # request, policy, only, unavailable, measuring, faster, exploring
    fallback: str | None = None


@dataclass(slots=True)
class ObservedAnswer:
    """One answer as it comes by: its times and what it tells."""

    arrived: float
    asked: float | None = None  # when the server that answers was asked
    first: float | None = None  # text
    last: float | None = None
    ended: float | None = None
    n_pieces: int = 0
    said: AnswerEvent = AnswerEvent()  # noqa: RUF009 - frozen, so sharing it is safe
    ids: list[str] = field(default_factory=list)

    def see(self, event: AnswerEvent, now: float) -> None:
        if event.text:
            self.first = self.first or now
            self.last = now
            self.n_pieces += 1
        self.said = self.said.then(event)

    @property
    def generated(self) -> int:
        """Tokens by the engine's own count, or pieces where it does not count."""
        return self.n_pieces if self.said.n_tokens is None else self.said.n_tokens

    def decoding(self, streamed: bool) -> tuple[float, int]:
        """Seconds and the tokens they made: after the first ones, as far as anyone can tell."""
        n = self.generated - (self.said.n_first or 1)
        if self.said.server_decode_s and n > 0:
            return self.said.server_decode_s, n
        if streamed and self.first is not None and self.last is not None:
            return self.last - self.first, n
        whole = (self.ended or self.arrived) - (self.asked or self.arrived)
        return whole, self.generated


def speculation(
    observed: ObservedAnswer,
    decision: PoolDecision,
    pool: str,
    route: str,
    timing: RouteTiming,
    *,
    streamed: bool,
) -> dict[str, Any]:
    """The answer's `speculation` field; what the engine does not tell is null."""
    told = observed.said.speculation
    n = observed.generated
    accepted, drafted = (None, None) if told is None else (told.accepted, told.drafted)
    rounds = None if told is None else told.rounds
    if told is not None and rounds is None:
        rounds = max(0, n - told.accepted)
    seconds, tokens = observed.decoding(streamed)
    plain = timing.sides[False].s_per_token
    own = seconds / tokens if tokens > 0 else None
    return {
        "policy": route,
        "pool": pool,
        "speculates": decision.speculative,
        "reason": decision.why,
        "fallback": decision.fallback,
        "generated": n,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "token_acceptance": _ratio(accepted, drafted),
        "draft_share": _ratio(accepted, n),
        "acceptance_length": _ratio(n, rounds),
        "acceptance_by_position": _by_position(told),
        "queue_ms": _ms((observed.asked or observed.arrived) - observed.arrived),
        "ttft_ms": _ms((observed.first or observed.ended or observed.arrived) - observed.arrived),
        "e2e_ms": _ms((observed.ended or observed.arrived) - observed.arrived),
        "ms_per_token": {
            "speculative": _ms(timing.sides[True].s_per_token),
            "plain": _ms(plain),
        },
        "speedup": round(plain / own, 4) if plain and own else None,
        "baseline_ms_per_token": _ms(plain),
    }


def record(
    numbers: dict[str, Any],
    observed: ObservedAnswer,
    *,
    request_id: str,
    endpoint: str,
    streamed: bool,
) -> dict[str, Any]:
    """A line of the request log, with the server's own keys."""
    seconds, tokens = observed.decoding(streamed)
    return {
        "request_id": request_id,
        "endpoint": endpoint,
        "finish_reason": observed.said.finish_reason,
        "prompt_tokens": observed.said.n_prompt,
        "reused_tokens": observed.said.n_cached,
        "tokens_per_second": round(tokens / seconds, 3) if seconds > 0 and tokens > 0 else 0.0,
        **numbers,
    }


def _by_position(told: Speculation | None) -> list[float]:
    if told is None:
        return []
    pairs = zip(told.accepted_at, told.tried_at, strict=False)
    return [round(accepted / tried, 4) for accepted, tried in pairs if tried]


def _ratio(part: int | None, whole: int | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)

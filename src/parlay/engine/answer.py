"""An answer: the finished text with everything that was measured while it was made.

Plain data for people and JSON; knows nothing of how it came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parlay.decoding.counts import Counts
from parlay.decoding.logprobs import TokenLogprob
from parlay.engine.exact.shapes import Inexact
from parlay.engine.request import Mode
from parlay.engine.sequence import Piece, Sequence


def exact_reason(seqs: Iterable[Sequence], mode: Mode) -> str | None:
    """Why not all of these answers are exact; None: they are."""
    if mode != "exact":
        return Inexact.FAITHFUL.value
    return next((seq.inexact.value for seq in seqs if seq.inexact is not None), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    mode: Mode
    exact: bool  # it depends on model, build, device, settings, prompt and seed alone
    n_prompt: int
    n_reused: int
    prefill_s: float
    decode_s: float
    speculation: Counts
    exact_class: str | None  # the class its passes were to stay in
    exact_reason: str | None  # why it is not exact
    pieces: tuple[Piece, ...] = field(repr=False)
    n_first: int = 1  # tokens that came with the first one: their time is the prompt's
    exact_cost_percent: float | None = None  # of the speed, that staying in the class costs here
    temperature: float = 0.0  # it was drawn with: what the model's file recommends, unless told
    # As chat completions say it, thinking and calls apart: fit to be sent back with the next turn.
    message: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, seq: Sequence, pieces: list[Piece], mode: Mode) -> Answer:
        ended = seq.ended or seq.started
        first = seq.first_token or ended
        return cls(
            text="".join(piece.text for piece in pieces),
            # Text that was held back to the end comes in a piece of its own, which is no token.
            tokens=tuple(piece.token for piece in pieces[: seq.n_generated]),
            finish_reason=seq.finish_reason or "error",
            mode=mode,
            exact=seq.exact and mode == "exact",
            n_prompt=len(seq.request.prompt),
            n_reused=seq.n_reused,
            prefill_s=first - seq.started,
            decode_s=ended - first,
            speculation=seq.counts,
            exact_class=seq.exact_class,
            exact_reason=exact_reason([seq], mode),
            pieces=tuple(pieces),
            n_first=seq.n_first,
            exact_cost_percent=seq.exact_cost_percent,
            temperature=seq.request.sampling.temperature,
        )

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after those that came with the first, over the time they took."""
        n = len(self.tokens) - self.n_first
        return n / self.decode_s if n > 0 and self.decode_s > 0 else 0.0

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [piece.logprob for piece in self.pieces if piece.logprob is not None]

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form (a promise: see docs/reference/interface.md)."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "mode": self.mode,
            "exact": self.exact,
            "exact_class": self.exact_class,
            "exact_reason": self.exact_reason,
            "exact_cost_percent": self.exact_cost_percent,
            "temperature": self.temperature,
            "usage": {
                "prompt_tokens": self.n_prompt,
                "reused_tokens": self.n_reused,
                "completion_tokens": len(self.tokens),
            },
            "timings": {
                "prefill_ms": round(self.prefill_s * 1e3, 3),
                "decode_ms": round(self.decode_s * 1e3, 3),
                "tokens_per_second": round(self.tokens_per_second, 3),
            },
            "speculation": self.speculation.as_dict(),
            "logprobs": [_scored(piece) for piece in self.pieces if piece.logprob] or None,
        }


def _scored(piece: Piece) -> dict[str, Any]:
    """A token with its log-probability, and the likeliest ones at its place by their ids."""
    assert piece.logprob is not None
    top = [{"token": token, "logprob": round(p, 6)} for token, p in piece.logprob.top]
    return {
        "token": piece.token,
        "text": piece.text,
        "logprob": round(piece.logprob.logprob, 6),
        "top": top,
    }

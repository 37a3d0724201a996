"""What one answer tells, whole or piece by piece: text, counts, and what became of drafts.

Reads our own server, vLLM, llama.cpp and LM Studio by the fields they add, so that nobody need say
which engine answered. Pure: knows no sockets and no clocks. Nothing that is read is trusted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from parlay.reading.bounds import MAX_COUNT, MAX_POSITIONS, one_line
from parlay.reading.speculation import Speculation

_KEPT = (
    "finish_reason", "n_tokens", "n_first", "n_prompt", "n_cached", "server_decode_s", "speculation"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One chunk of a streamed answer, or all of a whole one."""

    text: str = ""
    finish_reason: str | None = None
    n_tokens: int | None = None
    n_first: int | None = None  # tokens that came with the first one; None: it does not say
    n_prompt: int | None = None
    n_cached: int | None = None
    server_decode_s: float | None = None  # from the first token to the last, by its own clock
    speculation: Speculation | None = None
    error: str | None = None

    def then(self, later: AnswerEvent) -> AnswerEvent:
        """What is known after both; of their texts, nothing."""
        told = {name: value for name in _KEPT if (value := getattr(later, name)) not in (None, "")}
        return replace(self, text="", **told) if told else self


def object_of(data: str | bytes) -> dict[str, Any] | None:
    """A JSON object; empty where it is JSON of another kind, None where it is none."""
    try:
        return mapping(json.loads(data))
    except (ValueError, RecursionError):
        return None


def event_of(chunk: dict[str, Any]) -> AnswerEvent:
    """What a chunk in OpenAI's form says; a whole answer is read like its only chunk."""
    choice = first(chunk.get("choices"))
    usage = mapping(chunk.get("usage"))
    details = mapping(usage.get("prompt_tokens_details"))
    decode_s, spoken = told(chunk)
    return AnswerEvent(
        text=_text_of(choice),
        finish_reason=string(choice.get("finish_reason")),
        n_tokens=count(usage.get("completion_tokens")),
        n_first=first_of(chunk),
        n_prompt=count(usage.get("prompt_tokens")),
        n_cached=count(details.get("cached_tokens")),
        server_decode_s=decode_s,
        speculation=spoken,
        error=error_of(chunk),
    )


def error_of(chunk: dict[str, Any]) -> str | None:
    """The message, where a chunk is an error."""
    error = chunk.get("error")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(str(message))


# -- per engine ---------------------------------------------------------------------------------


def told(chunk: dict[str, Any]) -> tuple[float | None, Speculation | None]:
    """The engine's own decoding time, and what it says about drafts."""
    timings, metrics = mapping(chunk.get("timings")), mapping(chunk.get("metrics"))
    stats = mapping(chunk.get("stats"))
    decode_s = (
        seconds(timings.get("predicted_ms"), 1e3)
        or seconds(metrics.get("generation_time_ms"), 1e3)
        or seconds(stats.get("generation_time"), 1.0)
    )
    found = (
        _own(mapping(chunk.get("speculation")))
        or _vllm(mapping(metrics.get("speculative_decoding")))
        or _llama_cpp(timings)
        or _lm_studio(stats)
    )
    return decode_s, found


def first_of(chunk: dict[str, Any]) -> int | None:
    """How many tokens came with the first one: our own server tells it."""
    return count(mapping(chunk.get("timings")).get("first_n")) or None


def _own(told: dict[str, Any]) -> Speculation | None:
    """Parlay's `speculation`."""
    drafted, accepted = count(told.get("drafted")), count(told.get("accepted"))
    if drafted is None or accepted is None:
        return None
    return Speculation(
        drafted=drafted,
        accepted=min(accepted, drafted),
        rounds=count(told.get("rounds")),
        windows=counts(told.get("windows")),
        proposers=counts(told.get("proposers")),
        fallbacks=counts(told.get("fallbacks")),
        draft_s=seconds(told.get("draft_ms"), 1e3),
        verify_s=seconds(told.get("verify_ms"), 1e3),
        overhead_s=seconds(told.get("overhead_ms"), 1e3),
    )


def _vllm(told: dict[str, Any]) -> Speculation | None:
    """vLLM's `metrics.speculative_decoding`: a histogram of accepted lengths, and totals."""
    drafted = count(told.get("num_draft_tokens"))
    accepted = count(told.get("num_accepted_draft_tokens"))
    if drafted is None or accepted is None:
        return None
    histogram = [count(n) or 0 for n in listed(told.get("acceptance_histogram"))]
    drafts = count(told.get("num_spec_steps"))
    # Of a histogram, those that accepted at least j tokens: its sums from the right.
    reached = list(accumulate(reversed(histogram[1 : MAX_POSITIONS + 1])))[::-1]
    while reached and reached[-1] == 0:
        reached.pop()
    whole = drafts is not None and drafted == drafts * (len(histogram) - 1) and len(histogram) > 1
    return Speculation(
        drafted=drafted,
        accepted=min(accepted, drafted),
        speculated_rounds=drafts,
        # Only where no draft was shorter than the window does a histogram tell full acceptance.
        fully_accepted=histogram[-1] if whole else None,
        tried_at=[] if drafts is None or not reached else [drafts, *reached[:-1]],
        accepted_at=reached,
    )


def _llama_cpp(timings: dict[str, Any]) -> Speculation | None:
    """llama.cpp's `timings`; without drafts it leaves their fields out."""
    n = count(timings.get("predicted_n"))
    if n is None:
        return None
    drafted = count(timings.get("draft_n")) or 0
    accepted = min(drafted, count(timings.get("draft_n_accepted")) or 0)
    return Speculation(drafted=drafted, accepted=accepted, rounds=max(0, n - accepted))


def _lm_studio(stats: dict[str, Any]) -> Speculation | None:
    drafted = count(stats.get("total_draft_tokens_count"))
    accepted = count(stats.get("accepted_draft_tokens_count"))
    if drafted is None or accepted is None:
        return None
    return Speculation(drafted=drafted, accepted=min(accepted, drafted))


# -- forms: a value of another kind is as good as none --------------------------------------------


def _text_of(choice: dict[str, Any]) -> str:
    """Everything the model wrote, its reasoning and its tool calls included."""
    said = mapping(choice.get("delta")) or mapping(choice.get("message"))
    return text_of(said) if said else string(choice.get("text")) or ""


def text_of(said: dict[str, Any]) -> str:
    """The text of a message or of a part of one."""
    parts = [said.get("reasoning_content") or said.get("reasoning"), said.get("content")]
    parts += [
        mapping(mapping(call).get("function")).get("arguments")
        for call in listed(said.get("tool_calls"))
    ]
    return "".join(part for part in parts if isinstance(part, str))


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def first(value: object) -> dict[str, Any]:
    return mapping(next(iter(listed(value)), None))


def string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MAX_COUNT else None  # type: ignore[return-value, operator]


def counts(value: object) -> dict[str, int]:
    pairs = {one_line(str(name), 40): count(n) for name, n in mapping(value).items()}
    return {name: n for name, n in list(pairs.items())[:32] if n is not None and name}


def seconds(value: object, per_second: float) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    found = value / per_second
    return found if 0 < found < 1e6 else None

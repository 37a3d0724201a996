"""How each kind of server is asked, and what its answers mean.

Pure: builds bodies and reads lines. Knows no sockets and no clocks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from parlay.bench.sample import MAX_COUNT, Speculation
from parlay.bench.subject import Ask, Kind, SubjectError, one_line


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a streamed answer."""

    text: str = ""
    finish_reason: str | None = None
    n_tokens: int | None = None
    n_prompt: int | None = None
    server_decode_s: float | None = None
    speculation: Speculation | None = None


class OpenAI:
    """Chat completions over server-sent events; time is all it is sure to tell."""

    kind: Kind = "openai"
    path = "/v1/chat/completions"
    counts_in_metrics = False

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        """The request, without what the caller adds."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(ask.prompt.messages),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.prompt.tools:
            body["tools"] = list(ask.prompt.tools)
        return body

    def read(self, line: str) -> Event | None:
        """An event; None for blanks, comments and the end mark."""
        if not line.startswith("data:"):
            return None
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return None
        return self._event(_object(data))

    def _event(self, chunk: dict[str, Any]) -> Event:
        _refuse_error(chunk)
        choice = _first(chunk.get("choices"))
        delta = _dict(choice.get("delta"))
        usage = _dict(chunk.get("usage"))
        return Event(
            text=_text(delta),
            finish_reason=_string(choice.get("finish_reason")),
            n_tokens=_count(usage.get("completion_tokens")),
            n_prompt=_count(usage.get("prompt_tokens")),
            **self._told(chunk),
        )

    def _told(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Fields of `Event` that only this server knows."""
        return {}


class LlamaCpp(OpenAI):
    """llama.cpp's server: `timings`. No prompt is taken from its cache."""

    kind: Kind = "llama.cpp"

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        return {**super().body(ask, model, salt), "cache_prompt": False}

    def _told(self, chunk: dict[str, Any]) -> dict[str, Any]:
        timings = _dict(chunk.get("timings"))
        if not timings:
            return {}
        n = _count(timings.get("predicted_n"))
        drafted = _count(timings.get("draft_n")) or 0
        accepted = min(drafted, _count(timings.get("draft_n_accepted")) or 0)
        rounds = None if n is None else max(0, n - accepted)
        return {
            "server_decode_s": _seconds(timings.get("predicted_ms"), 1e3),
            "speculation": Speculation(drafted=drafted, accepted=accepted, rounds=rounds),
        }


class OwnServer(OpenAI):
    """Parlay's own server: `speculative` in its own words, `timings` in llama.cpp's."""

    kind: Kind = "parlay"

    def _told(self, chunk: dict[str, Any]) -> dict[str, Any]:
        told = _dict(chunk.get("speculative"))
        timings = _dict(chunk.get("timings"))
        drafted, accepted = _count(told.get("drafted")), _count(told.get("accepted"))
        if drafted is None or accepted is None:
            return {}
        return {
            "server_decode_s": _seconds(timings.get("predicted_ms"), 1e3),
            "speculation": Speculation(
                drafted=drafted,
                accepted=min(accepted, drafted),
                rounds=_count(told.get("rounds")),
                windows=_counts(told.get("windows")),
                proposers=_counts(told.get("proposers")),
                fallbacks=_counts(told.get("fallbacks")),
                draft_s=_seconds(told.get("draft_ms"), 1e3),
                verify_s=_seconds(told.get("verify_ms"), 1e3),
                overhead_s=_seconds(told.get("overhead_ms"), 1e3),
            ),
        }


class Vllm(OpenAI):
    """vLLM: counters on its metrics page. A salt keeps its prefix cache from helping."""

    kind: Kind = "vllm"
    counts_in_metrics = True

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        return {**super().body(ask, model, salt), "cache_salt": salt}


class SgLang(OpenAI):
    """SGLang: an acceptance length on its metrics page."""

    kind: Kind = "sglang"
    counts_in_metrics = True


class LmStudio(OpenAI):
    """LM Studio's own route: `stats` with what became of the drafted tokens."""

    kind: Kind = "lmstudio"
    path = "/api/v0/chat/completions"

    def _told(self, chunk: dict[str, Any]) -> dict[str, Any]:
        stats = _dict(chunk.get("stats"))
        if not stats:
            return {}
        told: dict[str, Any] = {"server_decode_s": _seconds(stats.get("generation_time"), 1.0)}
        drafted = _count(stats.get("total_draft_tokens_count"))
        accepted = _count(stats.get("accepted_draft_tokens_count"))
        if drafted is not None and accepted is not None:
            told["speculation"] = Speculation(drafted=drafted, accepted=min(accepted, drafted))
        return told


class Ollama(OpenAI):
    """Ollama's own route: lines of JSON, durations in nanoseconds, nothing about drafts."""

    kind: Kind = "ollama"
    path = "/api/chat"

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        options = {
            "temperature": ask.temperature,
            "seed": ask.seed,
            "num_predict": ask.max_tokens,
        }
        body: dict[str, Any] = {
            "model": model,
            "messages": list(ask.prompt.messages),
            "stream": True,
            "options": options,
        }
        if ask.prompt.tools:
            body["tools"] = list(ask.prompt.tools)
        return body

    def read(self, line: str) -> Event | None:
        if not line.strip():
            return None
        chunk = _object(line)
        _refuse_error(chunk)
        return Event(
            text=_text(_dict(chunk.get("message"))),
            finish_reason=_string(chunk.get("done_reason")),
            n_tokens=_count(chunk.get("eval_count")),
            n_prompt=_count(chunk.get("prompt_eval_count")),
            server_decode_s=_seconds(chunk.get("eval_duration"), 1e9),
        )


DIALECTS: dict[Kind, OpenAI] = {
    d.kind: d for d in (OpenAI(), LlamaCpp(), OwnServer(), Vllm(), SgLang(), LmStudio(), Ollama())
}


# -- reading what others write: never trusted, never an accident ------------------------------


def _object(data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise SubjectError(f"not JSON in the stream: {one_line(data, 60)}") from error
    return _dict(found)


def _refuse_error(chunk: dict[str, Any]) -> None:
    error = chunk.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        raise SubjectError(one_line(str(message)))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(value: object) -> dict[str, Any]:
    return _dict(value[0]) if isinstance(value, list) and value else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _text(delta: dict[str, Any]) -> str:
    """Everything the model wrote, its reasoning and its tool calls included."""
    parts = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")]
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        parts += [_dict(_dict(c).get("function")).get("arguments") for c in calls]
    return "".join(part for part in parts if isinstance(part, str))


def _count(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MAX_COUNT else None  # type: ignore[return-value, operator]


def _counts(value: object) -> dict[str, int]:
    pairs = {one_line(str(name), 40): _count(n) for name, n in _dict(value).items()}
    return {name: n for name, n in list(pairs.items())[:32] if n is not None and name}


def _seconds(value: object, per_second: float) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    seconds = value / per_second
    return seconds if 0 < seconds < 1e6 else None

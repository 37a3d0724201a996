"""How each kind of server is asked, and how its lines are read.

Pure: builds bodies. What an answer means is `parlay.reading`'s affair; knows no sockets.
"""

from __future__ import annotations

from typing import Any

from parlay.bench.subjects.subject import Ask, Kind, SubjectError
from parlay.reading import answers
from parlay.reading.answers import AnswerEvent
from parlay.reading.bounds import one_line


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
        if ask.prompt.json_schema is not None:
            form = {"name": "answer", "strict": True, "schema": ask.prompt.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    def read(self, line: str) -> AnswerEvent | None:
        """An event; None for blanks, comments and the end mark."""
        if not line.startswith("data:"):
            return None
        data = line.removeprefix("data:").strip()
        return None if data == "[DONE]" else _checked(answers.event_of(_object(data)))


class LlamaCpp(OpenAI):
    """llama.cpp's server: `timings`. No prompt is taken from its cache."""

    kind: Kind = "llama.cpp"

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        return {**super().body(ask, model, salt), "cache_prompt": False}


class OwnServer(OpenAI):
    """Parlay's own server: `speculation` in its own words, `timings` in llama.cpp's."""

    kind: Kind = "parlay"

    def body(self, ask: Ask, model: str, salt: str) -> dict[str, Any]:
        """Others refuse a prediction or ignore it; here it is drafted from."""
        body = super().body(ask, model, salt)
        if ask.prompt.prediction:
            body["prediction"] = {"type": "content", "content": ask.prompt.prediction}
        return body


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
        if ask.prompt.json_schema is not None:
            body["format"] = ask.prompt.json_schema
        return body

    def read(self, line: str) -> AnswerEvent | None:
        if not line.strip():
            return None
        chunk = _object(line)
        event = AnswerEvent(
            text=answers.text_of(answers.mapping(chunk.get("message"))),
            finish_reason=answers.string(chunk.get("done_reason")),
            n_tokens=answers.count(chunk.get("eval_count")),
            n_prompt=answers.count(chunk.get("prompt_eval_count")),
            server_decode_s=answers.seconds(chunk.get("eval_duration"), 1e9),
            error=answers.error_of(chunk),
        )
        return _checked(event)


DIALECTS: dict[Kind, OpenAI] = {
    d.kind: d for d in (OpenAI(), LlamaCpp(), OwnServer(), Vllm(), SgLang(), LmStudio(), Ollama())
}


def _object(data: str) -> dict[str, Any]:
    found = answers.object_of(data)
    if found is None:
        raise SubjectError(f"not JSON in the stream: {one_line(data, 60)}")
    return found


def _checked(event: AnswerEvent) -> AnswerEvent:
    if event.error is not None:
        raise SubjectError(event.error)
    return event

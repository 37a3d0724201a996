"""Who answers `parlay run`: a model in this process, or a server.

Gives pieces of text with their origin and, at the end, figures; knows nothing of how they are
shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from parlay.chat.deltas import Text, Thought
from parlay.decoding.verdict import Origin
from parlay.engine.answer import Answer
from parlay.errors import BadRequest, ParlayError
from parlay.hub.resolving import resolve_model
from parlay.parlay import Parlay, Stream

Message = Mapping[str, Any]
_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text and where it came from (None: the server does not say); `thought`: whoever
    answers says that it is no part of the answer."""

    text: str
    origin: Origin | None = None
    thought: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What an answer took and won; None where a server does not tell."""

    n_tokens: int
    tokens_per_second: float | None = None
    ttft_ms: float | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)  # the fields that are known
    speedup: float | None = None
    exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """How an answer is asked for; None: as whoever answers would have it."""

    max_tokens: int = 512
    temperature: float | None = None
    seed: int | None = None
    speculate: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)  # further options of `Parlay.stream`


class Answerer(Protocol):
    """Whoever answers."""

    @property
    def name(self) -> str:
        """The model's."""

    @property
    def figures(self) -> Figures | None:
        """Of the last answer that was finished."""

    @property
    def said(self) -> str:
        """What the last answer said, without its thinking, as far as it came."""

    def answer(self, messages: Sequence[Message], ways: Ways) -> Iterator[Token]:
        """Tokens as they come; leaving the loop early ends the answer."""

    def change(self, model: str) -> None:
        """Answer with another model from now on; with the old one if that fails."""

    def close(self) -> None:
        """Let go of it."""


class LocalAnswerer:
    """A model in this process."""

    def __init__(self, model: str, open_: Callable[[str], Parlay]) -> None:
        self._open = open_
        self._model = model
        self.parlay = open_(model)
        self.figures: Figures | None = None
        self.last: Answer | None = None
        self.said = ""

    @property
    def name(self) -> str:
        stem = self.parlay.engine.settings.target.stem
        return self._model if stem.startswith("sha256-") else stem  # Ollama's files are hashes

    def stream(self, messages: Sequence[Message], ways: Ways) -> Stream:
        """The engine's own stream."""
        prompt: str | Sequence[Message] = messages
        if ways.more.get("raw") or self.parlay.template is None:
            prompt = "\n\n".join(str(message["content"]) for message in messages)
        asked = {"temperature": ways.temperature, "seed": ways.seed}
        given: dict[str, Any] = {n: value for n, value in asked.items() if value is not None}
        if not ways.speculate:
            given["draft"] = "none"
        return self.parlay.stream(prompt, max_tokens=ways.max_tokens, **given, **ways.more)

    def answer(self, messages: Sequence[Message], ways: Ways) -> Iterator[Token]:
        self.figures = self.last = None
        stream = self.stream(messages, ways)
        try:
            for delta, piece in stream.told():
                if isinstance(delta, Text | Thought):
                    origin = None if piece is None else piece.origin
                    yield Token(delta.text, origin, thought=isinstance(delta, Thought))
        finally:
            self.said = str(stream.message["content"] or "")
        self.last = stream.answer
        self.figures = self._told(stream.answer)

    def _told(self, answer: Answer) -> Figures:
        prices, counts = self.parlay.engine.prices, answer.speculation
        seconds = counts.draft_s + counts.verify_s + counts.overhead_s
        speedup = None
        if prices is not None and counts.n_drafted and seconds > 0:
            # Against plain passes as they were measured here, half-way through the answer.
            plain_s = prices.plain_s(answer.n_prompt + len(answer.tokens) // 2, 1)
            speedup = round(counts.n_generated * plain_s / seconds, 4)
        return Figures(
            n_tokens=len(answer.tokens),
            tokens_per_second=round(answer.tokens_per_second, 3),
            ttft_ms=round(answer.prefill_s * 1e3, 3),
            speculation=answer.speculation.as_dict(),
            speedup=speedup,
            exact=answer.exact,
        )

    def change(self, model: str) -> None:
        """The old one is freed first, once the new one is here: two may not fit."""
        resolve_model(model)
        self.parlay.close()
        try:
            self.parlay = self._open(model)
        except ParlayError:
            self.parlay = self._open(self._model)
            raise
        self._model, self.figures = model, None

    def close(self) -> None:
        self.parlay.close()


class RemoteAnswerer:
    """A server that speaks OpenAI's chat interface: it is sent what the strictest of them take. A
    Parlay server is also asked for origins and figures."""

    def __init__(
        self,
        url: str,
        model: str | None,
        api_key: str | None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        base = url.rstrip("/").removesuffix("/v1")
        try:
            self._client = httpx.Client(
                base_url=base, headers=headers, timeout=_TIMEOUT, transport=transport
            )
            if self._client.base_url.scheme not in ("http", "https"):
                raise httpx.InvalidURL("no scheme")
        except (httpx.InvalidURL, UnicodeError):
            raise BadRequest(f"{url!r:.80} is no address; try http://127.0.0.1:8080") from None
        self.figures: Figures | None = None
        self.said = ""
        self._is_parlay = False
        self._names = self._models()
        self.name = self._known(model) if model else self._names[0]

    def _models(self) -> list[str]:
        with self._asking():
            response = self._client.get("/v1/models")
            _check(response)
            found = response.json()["data"]
            names = [str(entry["id"]) for entry in found]
            self._is_parlay = any(entry.get("owned_by") == "parlay" for entry in found)
        if not names:
            raise BadRequest("the server serves no model; check its deployment")
        return names

    def _known(self, model: str) -> str:
        if model in self._names:
            return model
        names = ", ".join(self._names[:_MAX_NAMES])
        raise BadRequest(f"the server does not serve {model}; it has {names}")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise BadRequest(
                f"{self._client.base_url} does not answer as a chat server does ({reason}); check"
                " the address"
            ) from None

    def answer(self, messages: Sequence[Message], ways: Ways) -> Iterator[Token]:
        self.figures, self.said = None, ""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": ways.max_tokens,
            "stream": True,
        }
        asked = {"temperature": ways.temperature, "seed": ways.seed}
        body |= {name: value for name, value in asked.items() if value is not None}
        if self._is_parlay:
            body["stream_options"] = {"include_usage": True, "include_origins": True}
            if not ways.speculate:
                body["speculation"] = False
        with self._asking(), self._client.stream("POST", "/v1/chat/completions", json=body) as got:
            if got.is_error:
                got.read()
            _check(got)
            for line in got.iter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    yield from self._tokens(json.loads(data))

    def _tokens(self, chunk: dict[str, Any]) -> Iterator[Token]:
        if "error" in chunk:
            raise BadRequest(str(chunk["error"].get("message", "the server failed"))[:300])
        told = chunk.get("speculation")
        if told:
            self.figures = Figures(
                n_tokens=int(told.get("generated", 0)),
                tokens_per_second=(chunk.get("timings") or {}).get("predicted_per_second"),
                ttft_ms=told.get("ttft_ms"),
                speculation=told,
                speedup=told.get("speedup"),
                exact=told.get("exact"),
            )
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            text = delta.get("content") or ""
            self.said += text
            if "origins" in choice and not (thought and text):
                tokens = choice["origins"]
                yield from (Token(t["text"], Origin(t["origin"]), bool(thought)) for t in tokens)
                continue
            if thought:
                yield Token(thought, thought=True)
            if text:
                yield Token(text)

    def change(self, model: str) -> None:
        self._names = self._models()
        self.name = self._known(model)

    def close(self) -> None:
        self._client.close()


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    if response.status_code == 401:
        raise BadRequest("the server asks for an API key; set PARLAY_API_KEY")
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}"
    raise BadRequest(f"the server refused: {message[:300]}")

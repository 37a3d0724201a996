"""Any server that answers as OpenAI does, as a subject: found out, asked, timed from outside.

Knows HTTP, clocks and how each kind of server is asked; what answers mean is `parlay.reading`'s
affair.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from parlay.bench.record import ArmInfo, Kind
from parlay.bench.subject import REPETITIVE, Ask, Reply, SubjectError, TimedOut
from parlay.errors import BadRequest
from parlay.reading import answers, counters
from parlay.reading.answers import AnswerEvent
from parlay.reading.bounds import one_line

CONNECT_S: Final = 10.0
PROBE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 16_000_000

_PATHS: Final[dict[Kind, str]] = {"lmstudio": "/api/v0/chat/completions", "ollama": "/api/chat"}
_CHAT: Final = "/v1/chat/completions"
_COUNTING: Final = ("vllm", "sglang")  # what drafts came to is on their metrics page
_TOLD: Final = (
    "finish_reason", "n_tokens", "n_first", "n_prompt", "server_decode_s", "speculation"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says it is."""

    kind: Kind
    model: str
    build: str | None = None
    drafter: str | None = None


class Client:
    """A connection to one server, shared by the arms that ask it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise BadRequest(f"{one_line(url, 80)!r} is no address; give http://HOST:PORT")
        # A fresh connection each time: servers close idle ones, and a request that meets such a
        # one fails through no fault of the model.
        self.http = httpx.Client(
            base_url=base,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(PROBE_S, connect=CONNECT_S),
            transport=transport,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def get_json(self, path: str) -> dict[str, Any]:
        """What a path says; empty if it says nothing of use."""
        return answers.object_of(self.get_text(path)) or {}

    def get_text(self, path: str) -> str:
        try:
            response = self.http.get(path)
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    def close(self) -> None:
        self.http.close()


# -- which server it is -----------------------------------------------------------------------


def discover(client: Client, model: str | None = None, kind: Kind | None = None) -> Server:
    """Find out which server this is and which model it serves."""
    try:
        models = client.http.get("/v1/models")
    except httpx.HTTPError as error:
        raise SubjectError(
            f"no server answers there ({type(error).__name__}); start it or check the address"
        ) from error
    listed = [
        (str(row.get("id", "")), str(row.get("owned_by", "")))
        for row in map(
            answers.mapping, answers.listed((answers.object_of(models.content) or {}).get("data"))
        )
    ]
    props, ollama = client.get_json("/props"), client.get_json("/api/version")
    found = kind or _kind(client, {owner for _, owner in listed}, props, ollama)
    build = (
        props.get("build_info")
        or client.get_json("/version").get("version")
        or ollama.get("version")
    )
    drafters = (props.get(name) for name in ("drafter", "draft_model", "model_draft"))
    drafter = next((name for name in drafters if isinstance(name, str) and name), None)
    return Server(
        kind=found,
        model=model or next((name for name, _ in listed if name), "default"),
        build=one_line(str(build), 90) if build else None,
        drafter=file_name(drafter) if drafter else None,
    )


def _kind(
    client: Client, owners: set[str], props: Mapping[str, Any], ollama: Mapping[str, Any]
) -> Kind:
    """By who owns the models, by names of metrics, by routes that only one of them has."""
    metrics = client.get_text("/metrics")
    marks: tuple[tuple[Kind, str], ...] = (
        ("parlay", "parlay_"),
        ("vllm", "vllm:"),
        ("sglang", "sglang:"),
    )
    for kind, mark in marks:
        if kind in owners or mark in metrics:
            return kind
    if "default_generation_settings" in props or "llamacpp" in owners:
        return "llama.cpp"
    if isinstance(client.get_json("/api/v0/models").get("data"), list):
        return "lmstudio"
    return "ollama" if "version" in ollama else "openai"


def file_name(text: str) -> str:
    """The last part of a path or model name, without its suffix: no folder of anybody's."""
    last = text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return one_line(last.removesuffix(".gguf"), 90) or "unnamed"


# -- how each kind is asked, and its lines are read -----------------------------------------------


def body_of(kind: Kind, ask: Ask, model: str, salt: str) -> dict[str, Any]:
    """The request, for a streamed answer. `salt`: keeps a prefix cache from helping."""
    prompt = ask.prompt
    common = {"model": model, "messages": list(prompt.messages), "stream": True}
    if kind == "ollama":
        sampling = {"temperature": ask.temperature, "seed": ask.seed}
        body = {**common, "options": {**sampling, "num_predict": ask.max_tokens}}
        if prompt.json_schema is not None:
            body["format"] = prompt.json_schema
    else:
        body = {
            **common,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream_options": {"include_usage": True},
        }
        if prompt.json_schema is not None:
            form = {"name": "answer", "strict": True, "schema": prompt.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    if kind == "llama.cpp":
        body["cache_prompt"] = False
    if kind == "vllm":
        body["cache_salt"] = salt
    if kind == "parlay" and prompt.prediction:  # others refuse a prediction or ignore it
        body["prediction"] = {"type": "content", "content": prompt.prediction}
    return body


def read_line(kind: Kind, line: str) -> AnswerEvent | None:
    """An event of a stream; None for blanks, comments and the end mark."""
    if kind != "ollama":
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            return None
    elif not (data := line.strip()):
        return None
    chunk = answers.object_of(data)
    if chunk is None:
        raise SubjectError(f"not JSON in the stream: {one_line(data, 60)}")
    event = answers.event_of(chunk) if kind != "ollama" else _ollama_event(chunk)
    if event.error is not None:
        raise SubjectError(event.error)
    return event


def _ollama_event(chunk: dict[str, Any]) -> AnswerEvent:
    """Lines of JSON, durations in nanoseconds, nothing about drafts."""
    return AnswerEvent(
        text=answers.text_of(answers.mapping(chunk.get("message"))),
        finish_reason=answers.string(chunk.get("done_reason")),
        n_tokens=answers.count(chunk.get("eval_count")),
        n_prompt=answers.count(chunk.get("prompt_eval_count")),
        server_decode_s=answers.seconds(chunk.get("eval_duration"), 1e9),
        error=answers.error_of(chunk),
    )


# -- asking -----------------------------------------------------------------------------------


class EndpointArm:
    """One way of asking one server: as it is, or with some fields of the request changed."""

    _salts = itertools.count()

    def __init__(
        self, client: Client, server: Server, info: ArmInfo, extra: Mapping[str, Any] | None = None
    ) -> None:
        self._client = client
        self._server = server
        self._extra = dict(extra or {})
        self.info = info

    def warm_up(self, ask: Ask) -> None:
        """Two different requests."""
        for prompt in (ask.prompt, REPETITIVE):
            self.ask(replace(ask, prompt=prompt))

    def ask(self, ask: Ask) -> Reply:
        counting = self._server.kind in _COUNTING
        before = self._client.get_text("/metrics") if counting else ""
        reply = self._stream(ask)
        # What an answer tells of itself is true beside other clients too; a page's sums are not.
        if reply.speculation is not None or not counting:
            return reply
        after = counters.parse(self._client.get_text("/metrics"))
        told = counters.added(counters.parse(before), after, reply.n_tokens)
        return replace(reply, speculation=told)

    def _stream(self, ask: Ask) -> Reply:
        kind = self._server.kind
        body = body_of(kind, ask, self._server.model, f"parlay-{next(self._salts)}") | self._extra
        seen = _ObservedStream(time.perf_counter(), ask.time_limit_s)
        timeout = httpx.Timeout(ask.time_limit_s, connect=CONNECT_S)
        try:
            with self._client.http.stream(
                "POST", _PATHS.get(kind, _CHAT), json=body, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise SubjectError(_http_error(response))
                for line in response.iter_lines():
                    seen.see(read_line(kind, line), len(line))
        except httpx.TimeoutException as error:
            raise TimedOut(f"nothing came for {ask.time_limit_s:g} s") from error
        except httpx.HTTPError as error:
            raise SubjectError(f"the connection broke: {type(error).__name__}") from error
        return seen.reply()


class _ObservedStream:
    """Collects a streamed answer and looks at the clock."""

    def __init__(self, began: float, limit_s: float) -> None:
        self._began = began
        self._limit_s = limit_s
        self._first: float | None = None
        self._last = began
        self._parts: list[str] = []
        self._facts: dict[str, Any] = {}
        self._n_bytes = 0

    def see(self, event: AnswerEvent | None, n_bytes: int) -> None:
        now = time.perf_counter()
        self._n_bytes += n_bytes
        if now - self._began > self._limit_s:
            raise TimedOut(f"no whole answer after {self._limit_s:g} s")
        if self._n_bytes > MAX_ANSWER_BYTES:
            raise SubjectError(f"the answer is over {MAX_ANSWER_BYTES:,} bytes")
        if event is None:
            return
        if event.text:
            self._first = self._first or now
            self._last = now
            self._parts.append(event.text)
        told = {name: getattr(event, name) for name in _TOLD}
        self._facts |= {name: value for name, value in told.items() if value is not None}

    def reply(self) -> Reply:
        ended = time.perf_counter()
        if not self._facts and not self._parts:
            raise SubjectError("the answer was empty")
        first = self._first or ended
        return Reply(
            text="".join(self._parts),
            counted="usage" if "n_tokens" in self._facts else "chunks",
            n_tokens=self._facts.pop("n_tokens", len(self._parts)),
            first_token_s=first - self._began,
            decode_s=max(0.0, self._last - first),
            wall_s=ended - self._began,
            **self._facts,
        )


def _http_error(response: httpx.Response) -> str:
    told = answers.error_of(answers.object_of(response.content) or {}) or response.text
    return f"HTTP {response.status_code}: {one_line(told, 150)}"


def parse_change(text: str) -> dict[str, Any]:
    """A changed field: JSON object, or NAME=VALUE with JSON or text as the value."""
    if text.lstrip().startswith("{"):
        found = answers.object_of(text)
        if found is None:
            raise BadRequest(f"{one_line(text, 60)!r} is not a JSON object")
        return found
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise BadRequest(f"{one_line(text, 60)!r} is not NAME=VALUE; try speculation=false")
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        parsed = value
    for part in reversed(name.strip().split(".")):
        parsed = {part: parsed}
    return dict(parsed)

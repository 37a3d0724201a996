"""Any OpenAI-compatible server as a subject: found out, asked, timed from outside.

Knows HTTP and clocks; what a server means by its answers is the dialect's affair.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from parlay.bench.subjects.dialects import DIALECTS, OpenAI
from parlay.bench.subjects.subject import (
    ArmInfo,
    Ask,
    Kind,
    Reply,
    ScoredToken,
    SubjectError,
    TimedOut,
)
from parlay.bench.suite import Prompt
from parlay.errors import BadRequest
from parlay.reading import counters
from parlay.reading.answers import AnswerEvent
from parlay.reading.bounds import one_line
from parlay.reading.counters import Counters

CONNECT_S: Final = 10.0
PROBE_S: Final = 5.0
N_ALTERNATIVES: Final = 20
MAX_ANSWER_BYTES: Final = 16_000_000

_TOLD: Final = (
    "finish_reason", "n_tokens", "n_first", "n_prompt", "server_decode_s", "speculation"
)  # fmt: skip
_REPETITIVE = Prompt(
    "warm-up",
    "warm-up",
    ({"role": "user", "content": "Write the numbers one to ten, again and again, forty times."},),
)


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
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(PROBE_S, connect=CONNECT_S)
        # A fresh connection each time: servers close idle ones, and a request that meets such a
        # one fails through no fault of the model.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(
            base_url=base, headers=headers, timeout=timeout, transport=transport, limits=limits
        )

    def get_json(self, path: str) -> dict[str, Any]:
        """What a path says; empty if it says nothing of use."""
        try:
            response = self.http.get(path)
            found = response.json() if response.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def get_text(self, path: str) -> str:
        try:
            response = self.http.get(path)
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    def close(self) -> None:
        self.http.close()


def discover(client: Client, model: str | None = None, kind: Kind | None = None) -> Server:
    """Find out which server this is and which model it serves."""
    try:
        models = client.http.get("/v1/models")
    except httpx.HTTPError as error:
        raise SubjectError(
            f"no server answers there ({type(error).__name__}); start it or check the address"
        ) from error
    listed = _model_ids(models)
    props, metrics = client.get_json("/props"), client.get_text("/metrics")
    version, ollama = client.get_json("/version"), client.get_json("/api/version")
    owners = {owner for _, owner in listed}
    found = kind or _kind(owners, props, metrics, ollama, client.get_json("/api/v0/models"))
    build = props.get("build_info") or version.get("version") or ollama.get("version")
    drafter = _drafter(props)
    return Server(
        kind=found,
        model=model or next((name for name, _ in listed), "default"),
        build=one_line(str(build), 90) if build else None,
        drafter=drafter,
    )


def _model_ids(response: httpx.Response) -> list[tuple[str, str]]:
    try:
        rows = response.json()["data"]
        return [(str(row["id"]), str(row.get("owned_by", ""))) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _kind(
    owners: set[str],
    props: Mapping[str, Any],
    metrics: str,
    ollama: Mapping[str, Any],
    lmstudio: Mapping[str, Any],
) -> Kind:
    if "parlay" in owners or "parlay_" in metrics:
        return "parlay"
    if "vllm" in owners or "vllm:" in metrics:
        return "vllm"
    if "sglang" in owners or "sglang:" in metrics:
        return "sglang"
    if "default_generation_settings" in props or "llamacpp" in owners:
        return "llama.cpp"
    if isinstance(lmstudio.get("data"), list):
        return "lmstudio"
    return "ollama" if "version" in ollama else "openai"


def _drafter(props: Mapping[str, Any]) -> str | None:
    for name in ("drafter", "draft_model", "model_draft"):
        if isinstance(props.get(name), str) and props[name]:
            return file_name(props[name])
    return None


def file_name(text: str) -> str:
    """The last part of a path or model name, without its suffix: no folder of anybody's."""
    last = text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return one_line(last.removesuffix(".gguf"), 90) or "unnamed"


class EndpointArm:
    """One way of asking one server: as it is, or with some fields of the request changed."""

    _salts = itertools.count()

    def __init__(
        self, client: Client, server: Server, info: ArmInfo, extra: Mapping[str, Any] | None = None
    ) -> None:
        self._client = client
        self._server = server
        self._dialect: OpenAI = DIALECTS[server.kind]
        self._info = info
        self._extra = dict(extra or {})

    @property
    def info(self) -> ArmInfo:
        return self._info

    def warm_up(self, ask: Ask) -> list[int]:
        """Two different requests; which shapes they run, a server does not tell."""
        for prompt in (ask.prompt, _REPETITIVE):
            self.ask(Ask(prompt, ask.max_tokens, ask.temperature, ask.seed, ask.time_limit_s))
        return []

    def ask(self, ask: Ask) -> Reply:
        before = self._counters()
        reply = self._stream(ask)
        # What an answer tells of itself is true beside other clients too; a page's sums are not.
        if reply.speculation is not None or not self._dialect.counts_in_metrics:
            return reply
        told = counters.added(before, self._counters(), reply.n_tokens)
        return _with_speculation(reply, told)

    def score(self, ask: Ask) -> Sequence[ScoredToken]:
        body = self._body(ask) | {"stream": False, "logprobs": True}
        body |= {"top_logprobs": N_ALTERNATIVES}
        body.pop("stream_options", None)
        try:
            response = self._client.http.post(
                "/v1/chat/completions", json=body, timeout=ask.time_limit_s
            )
            return _scored(response.json())
        except (httpx.HTTPError, ValueError):
            return []

    def close(self) -> None:
        """The client belongs to whoever made it; several arms share it."""

    def _counters(self) -> Counters:
        if not self._dialect.counts_in_metrics:
            return Counters()
        return counters.parse(self._client.get_text("/metrics"))

    def _body(self, ask: Ask) -> dict[str, Any]:
        salt = f"parlay-{next(self._salts)}"
        return self._dialect.body(ask, self._server.model, salt) | self._extra

    def _stream(self, ask: Ask) -> Reply:
        began = time.perf_counter()
        observed = _ObservedStream(began, ask.time_limit_s)
        timeout = httpx.Timeout(ask.time_limit_s, connect=CONNECT_S)
        body = self._body(ask)
        try:
            with self._client.http.stream(
                "POST", self._dialect.path, json=body, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise SubjectError(_http_error(response))
                for line in response.iter_lines():
                    observed.see(self._dialect.read(line), len(line))
        except httpx.TimeoutException as error:
            raise TimedOut(f"nothing came for {ask.time_limit_s:g} s") from error
        except httpx.HTTPError as error:
            raise SubjectError(f"the connection broke: {type(error).__name__}") from error
        return observed.reply()


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
        for name in _TOLD:
            if (value := getattr(event, name)) is not None:
                self._facts[name] = value

    def reply(self) -> Reply:
        ended = time.perf_counter()
        if not self._facts and not self._parts:
            raise SubjectError("the answer was empty")
        counted = "n_tokens" in self._facts
        first = self._first or ended
        return Reply(
            text="".join(self._parts),
            n_tokens=self._facts.pop("n_tokens", len(self._parts)),
            counted="usage" if counted else "chunks",
            first_token_s=first - self._began,
            decode_s=max(0.0, self._last - first),
            wall_s=ended - self._began,
            **self._facts,
        )


def _with_speculation(reply: Reply, told: Any) -> Reply:
    fields = {name: getattr(reply, name) for name in Reply.__slots__}
    return Reply(**{**fields, "speculation": told})


def _http_error(response: httpx.Response) -> str:
    try:
        error = response.json().get("error", response.text)
        message = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        message = response.text
    return f"HTTP {response.status_code}: {one_line(str(message), 150)}"


def _scored(answer: Any) -> list[ScoredToken]:
    try:
        rows = answer["choices"][0]["logprobs"]["content"]
        return [
            ScoredToken(
                str(row["token"]),
                float(row["logprob"]),
                tuple((str(t["token"]), float(t["logprob"])) for t in row["top_logprobs"]),
            )
            for row in rows
        ]
    except (KeyError, IndexError, TypeError, ValueError):
        return []


def parse_extra(text: str) -> dict[str, Any]:
    """A changed field: JSON object, or NAME=VALUE with JSON or text as the value."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise BadRequest(f"{one_line(text, 60)!r} is not a JSON object") from error
        return dict(found)
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

"""The one file through which contract tests reach the product: its doors, and what comes out.

Knows how each door is knocked at, and no test: what an answer should be is said by those who ask.
Verbs, keys and signatures of the product stand here and nowhere else among the contract's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
import pytest
import yaml
from anthropic import Anthropic
from openai import OpenAI
from typer.testing import CliRunner, Result

from parlay import Parlay
from parlay.cli.main import app
from parlay.decoding.sampling import Sampling
from parlay.deployment import load_deployment
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answering
from parlay.engine.settings import MAX_WINDOW, LoadSettings
from parlay.engine.worker import Worker
from parlay.errors import ParlayError
from tests.engine.rig import Rig
from tests.engine_thread import EngineThreads
from tests.serving import PATIENCE_S, in_thread, wait_for

Door = Literal["chat", "completions", "infill", "responses", "messages"]
DOORS: tuple[Door, ...] = ("chat", "completions", "infill", "responses", "messages")
PATHS: dict[Door, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "infill": "/infill",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
CHAT_DOORS: tuple[Door, ...] = ("chat", "responses", "messages")
PARLAY = str(Path(sys.executable).with_name("parlay"))
VERBS = ("run", "serve", "bench", "plan", "pull", "doctor", "tune")  # what people type most
# An answer that goes on until somebody ends it.
ENDLESS: dict[str, Any] = {"max_tokens": 10**6, "temperature": 0, "context_full": "slide"}


# -- HTTP --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What any door told of one answer, in the same words."""

    text: str
    finish: str  # stop, length or tool_calls
    n_prompt: int  # tokens; 0 where a stream does not say
    n_generated: int
    body: dict[str, Any]  # of a stream: its last event that has the numbers
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # names and arguments
    events: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def speculation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["speculation"]
        return found


class Server:
    """A server that answers on loopback, spoken to by HTTP only."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        self.key = key

    def as_key(self, key: str) -> Server:
        """The same server for the holder of another key."""
        return Server(self.url, key)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=PATIENCE_S)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return httpx.post(self.url + path, json=body, headers=headers, timeout=PATIENCE_S, **more)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.url + path, headers=self.headers, timeout=PATIENCE_S)

    def openai(self) -> OpenAI:
        url, key = f"{self.url}/v1", self.key or "none"
        return OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S)

    def anthropic(self) -> Anthropic:
        key = self.key or "none"
        return Anthropic(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE_S)

    def ask(self, prompt: Any = "hello there", door: Door = "chat", **options: Any) -> Told:
        """A whole answer, greedy unless told otherwise; a refusal fails."""
        answer = self.post(PATHS[door], body_of(door, prompt, options))
        assert answer.status_code == 200, answer.text
        return READERS[door](answer.json())

    def refused(self, prompt: Any = "hello", door: Door = "chat", **options: Any) -> httpx.Response:
        """The same where the answer is an error."""
        answer = self.post(PATHS[door], body_of(door, prompt, options))
        assert answer.status_code >= 400, answer.text
        return answer

    @contextmanager
    def stream(
        self, prompt: Any = "hello", door: Door = "chat", **options: Any
    ) -> Iterator[Stream]:
        body = body_of(door, prompt, {**options, "stream": True})
        url, limit = self.url + PATHS[door], PATIENCE_S
        with (
            httpx.Client(timeout=limit, headers=self.headers) as client,
            client.stream("POST", url, json=body) as response,
        ):
            yield Stream(response, door)

    def streamed(self, prompt: Any = "hello there", door: Door = "chat", **options: Any) -> Told:
        """A streamed answer, put together again."""
        with self.stream(prompt, door, **options) as stream:
            return joined(door, list(stream.events()))

    @contextmanager
    def sending(
        self, body: Mapping[str, Any], door: Door = "chat", receive_buffer: int = 0
    ) -> Iterator[socket.socket]:
        """A request that was sent by somebody who leaves, however far it is, at the block's end."""
        host, port = self.url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        lines = [f"POST {PATHS[door]} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
        with socket.socket() as made:
            if receive_buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            made.settimeout(PATIENCE_S)
            made.connect((host, int(port)))
            made.sendall(head.encode() + content)
            yield made

    def tokens(self, text: str, special: bool = False) -> list[int]:
        body = {"content": text, "parse_special": special}
        found: list[int] = self.post("/tokenize", body).json()["tokens"]
        return found

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.post("/detokenize", {"tokens": list(tokens)}).json()["content"])

    # what it is doing

    def health(self) -> dict[str, Any]:
        """Nothing where nobody answers."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            return dict(self.get("/health").json())
        return {}

    def figures(self) -> dict[str, Any]:
        return dict(self.get("/metrics/speculative").json())

    @property
    def n_busy(self) -> int:
        return sum(slot["is_processing"] for slot in self.get("/slots").json())

    @property
    def n_waiting(self) -> int:
        return int(self.figures()["queue"]["waiting"])

    def is_idle(self) -> bool:
        return self.n_busy == 0 and self.n_waiting == 0

    def metrics(self) -> dict[str, float]:
        """Prometheus' samples by name and labels, as they are written."""
        lines = self.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def remembered(self) -> int:
        return int(self.get("/memory").json()["tokens"])


class Stream:
    """An answer while it comes."""

    def __init__(self, response: httpx.Response, door: Door) -> None:
        self.response = response
        self._door = door
        self._events = self._read()

    def _read(self) -> Iterator[dict[str, Any]]:
        name = ""
        for line in self.response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and line != "data: [DONE]":
                yield {**json.loads(line.removeprefix("data: ")), "event-name": name}
                name = ""

    def events(self) -> Iterator[dict[str, Any]]:
        """Those that have not been read yet."""
        return self._events

    def first_words(self) -> dict[str, Any]:
        """Wait for an event that holds text."""
        return next(event for event in self._events if _text_of(self._door, event))


def body_of(door: Door, prompt: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt is a text, tokens (completions), a list of messages, or (before, after) a gap."""
    given = {"temperature": 0, "max_tokens": 16, **options}
    messages = prompt if _is_turns(prompt) else [{"role": "user", "content": prompt}]
    if door in ("chat", "messages"):
        return {"model": "m", "messages": messages, **given}
    if door == "responses":
        limit = given.pop("max_tokens")
        return {"model": "m", "input": messages, "max_output_tokens": limit, **given}
    if door == "infill":
        before, after = prompt if isinstance(prompt, tuple) else (prompt, "")
        limit = given.pop("max_tokens")
        return {"input_prefix": before, "input_suffix": after, "n_predict": limit, **given}
    return {"model": "m", "prompt": prompt, **given}


def _is_turns(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)


def _of_chat(body: dict[str, Any]) -> Told:
    (choice, *_) = body["choices"]
    message = choice["message"]
    made = message.get("tool_calls") or ()
    return Told(
        message.get("content") or "",
        choice["finish_reason"],
        body["usage"]["prompt_tokens"],
        body["usage"]["completion_tokens"],
        body,
        message.get("reasoning_content") or "",
        tuple((call["function"]["name"], call["function"]["arguments"]) for call in made),
    )


def _of_completion(body: dict[str, Any]) -> Told:
    (choice, *_) = body["choices"]
    used = body["usage"]
    made = (used["prompt_tokens"], used["completion_tokens"])
    return Told(choice["text"], choice["finish_reason"], *made, body)


def _of_infill(body: dict[str, Any]) -> Told:
    finish = {"limit": "length"}.get(body["stop_type"], "stop")
    made = (body["tokens_evaluated"], body["tokens_predicted"])
    return Told(body["content"], finish, *made, body)


def _of_response(body: dict[str, Any]) -> Told:
    items = body["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    parts = [p for item in items if item["type"] == "message" for p in item["content"]]
    finish = "length" if body["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return Told(
        "".join(part["text"] for part in parts),
        finish,
        body["usage"]["input_tokens"],
        body["usage"]["output_tokens"],
        body,
        calls=tuple((call["name"], call["arguments"]) for call in calls),
    )


def _of_message(body: dict[str, Any]) -> Told:
    blocks = body["content"]
    finish = {"max_tokens": "length", "tool_use": "tool_calls"}.get(body["stop_reason"], "stop")
    return Told(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        finish,
        body["usage"]["input_tokens"] + (body["usage"].get("cache_read_input_tokens") or 0),
        body["usage"]["output_tokens"],
        body,
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"),
    )


READERS: dict[Door, Callable[[dict[str, Any]], Told]] = {
    "chat": _of_chat,
    "completions": _of_completion,
    "infill": _of_infill,
    "responses": _of_response,
    "messages": _of_message,
}


def _text_of(door: Door, event: Mapping[str, Any]) -> str:
    """The answer's text in one event of a stream."""
    if door == "infill":
        return str(event.get("content", ""))
    if door == "responses":
        return str(event["delta"]) if event.get("type") == "response.output_text.delta" else ""
    if door == "messages":
        return str(event.get("delta", {}).get("text", ""))
    choices = event.get("choices") or [{}]
    if door == "completions":
        return str(choices[0].get("text") or "")
    return str(choices[0].get("delta", {}).get("content") or "")


def joined(door: Door, events: Sequence[dict[str, Any]]) -> Told:
    """A stream of one choice, put together; an error in it fails."""
    assert not [event for event in events if "error" in event], events[-1]
    text = "".join(_text_of(door, event) for event in events)
    if door == "responses":
        whole = _of_response(events[-1]["response"])
        return replace(whole, text=text, events=tuple(events))
    if door == "infill":
        return replace(_of_infill(events[-1]), text=text, events=tuple(events))
    if door == "messages":
        last = next(event for event in reversed(events) if event["type"] == "message_delta")
        finish = {"max_tokens": "length", "tool_use": "tool_calls"}.get(
            last["delta"]["stop_reason"], "stop"
        )
        n = last["usage"]["output_tokens"]
        return Told(text, finish, 0, n, last, events=tuple(events))
    told = next(event for event in reversed(events) if "speculation" in event)
    reasons = [c["finish_reason"] for e in events for c in e["choices"] if c.get("finish_reason")]
    n = told["speculation"]["generated"]
    return Told(text, reasons[-1], 0, n, told, events=tuple(events))


# -- servers -----------------------------------------------------------------------------------


def keys(model: Path | str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A small deployment, by the names of its keys; those that are given have two underscores
    for the dot: runtime__slots=2. Windows do not hang on the time here."""
    return {
        "model.target": str(model),
        "model.drafter": "suffix",
        "runtime.context_size": 512,
        "runtime.threads": 1,
        "runtime.slots": 2,
        "runtime.speculative_window": 4,
        "runtime.controller": "fixed",
        "runtime.mode": "exact",
        "server.port": 0,
        "server.drain_s": 2,
        **{key.replace("__", "."): value for key, value in given.items()},
    }


@contextmanager
def server(model: Path, **given: Any) -> Iterator[Server]:
    """One that answers in threads of this process, with its drafters loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file = deployment(Path(folder) / "parlay.yaml", model, **given)
        read = partial(load_deployment, file, environ={})
        with in_thread(read, EngineThreads().begin) as (_, port):
            yield _ready(Server(f"http://127.0.0.1:{port}"), given)


def _ready(found: Server, given: Mapping[str, Any]) -> Server:
    if "model__drafter" in given:
        found.key = next(iter(given.get("server__api_keys", ())), "")
        wait_for(lambda: found.figures()["drafter"]["state"] != "loading")
        found.key = ""
    return found


def server_on(model: str, **given: Any) -> Any:
    """A fixture: one server for all tests of a file, on the model that a fixture of this name has.

    Keys as in `server`.
    """

    @pytest.fixture(scope="module")
    def running(request: pytest.FixtureRequest) -> Iterator[Server]:
        with server(request.getfixturevalue(model), **given) as found:
            yield found

    return running


class ServerProcess(Server):
    """A process of its own, as `parlay serve` starts it."""

    def __init__(self, url: str, process: subprocess.Popen[str], file: Path) -> None:
        super().__init__(url)
        self.process = process
        self.file = file

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Ask it to end and wait; its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """All of its processes at once."""
        for process in (psutil.Process(self.process.pid), *_family(self.process.pid)):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def engine(self) -> psutil.Process:
        """The process that computes; killed, it is started anew by the one with the address."""
        found: list[psutil.Process] = []

        def there() -> bool:
            with contextlib.suppress(psutil.Error):
                found[:] = psutil.Process(self.process.pid).children()
            return len(found) == 1

        wait_for(there)
        return found[0]

    def takes_nobody(self) -> bool:
        """Whether a signal to end has reached it."""
        try:
            return self.post(PATHS["completions"], {"prompt": "x", "max_tokens": 1}).is_error
        except httpx.TimeoutException:
            raise  # heard and left waiting is no refusal
        except httpx.HTTPError:
            return True


def deployment(file: Path, model: Path, **given: Any) -> Path:
    """Write a deployment file."""
    content: dict[str, Any] = {}
    for key, value in keys(model, given).items():
        section, dot, name = key.partition(".")
        place = content.setdefault(section, {}) if dot else content
        place[name or section] = list(value) if isinstance(value, tuple) else value
    file.write_text(yaml.safe_dump(content))
    return file


@contextmanager
def server_process(folder: Path, model: Path, **given: Any) -> Iterator[ServerProcess]:
    """What it says goes to the test's own output, shown where the test fails; never a traceback."""
    file = deployment(folder / "parlay.yaml", model, **given)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [PARLAY, "serve", str(file), "--json"],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "the server did not start"
            yield ServerProcess(json.loads(line)["url"].removesuffix("/v1"), process, file)
        finally:
            below = _family(process.pid)
            status = process.poll()
            process.kill()
            process.wait()
            process.stdout.close()
            psutil.wait_procs(below, timeout=PATIENCE_S)
            said.seek(0)
            text = said.read()
            print(f"the server (status {status}) said:", text)
            assert "Traceback" not in text


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def left_by(port: int) -> bool:
    """Whether nobody holds this port of loopback any more."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


# -- the command line --------------------------------------------------------------------------


def verb(*words: object, input: str | None = None) -> Result:
    """`parlay` with these words, in this process: exit code, output, exception."""
    return CliRunner().invoke(app, [str(word) for word in words], input=input)


def command(
    *words: object, input: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """`parlay` with these words, as people run it."""
    return subprocess.run(
        [PARLAY, *(str(word) for word in words)],
        check=False,
        input=input,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment},
    )


def run_words(model: Path, prompt: str, *more: object, max_tokens: int = 16) -> list[object]:
    """The words that make `parlay` answer one prompt and end."""
    words = ["run", prompt, "--model", model, "--max-tokens", max_tokens, "--threads", 1]
    words += ["--temperature", 0, "--set", "runtime.mode=exact"]
    return [*words, "--context-size", 512, *more]


# -- Python ------------------------------------------------------------------------------------


def python(model: Path, draft: str = "suffix", **options: Any) -> Parlay:
    """As `from parlay import Parlay` gives it; close it, or use it in a `with` block."""
    given: dict[str, Any] = {"window": 4, "mode": "exact", "threads": 1, "context_size": 512}
    return Parlay(model, draft=draft, **{**given, **options})


# -- the engine --------------------------------------------------------------------------------


def request(prompt: Sequence[int], **options: Any) -> Request:
    """Greedy unless samplers are given; `draft` names proposers: () for none."""
    draft = options.pop("draft", None)
    samplers = {name: options.pop(name) for name in list(options) if name in SAMPLERS}
    options = {"max_tokens": 24, **options}
    return Request(tuple(prompt), proposers=draft, sampling=Sampling(**samplers), **options)


SAMPLERS = frozenset(Sampling.__dataclass_fields__)


class Asked:
    """One answer of an engine, while it is made and after."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._ended = threading.Event()
        self.sequence: Answering | None = None

    def take(self, seq: Answering, pieces: Sequence[Piece]) -> None:
        self.sequence = seq
        self.pieces.extend(pieces)
        if seq.retired:
            self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def begun(self) -> Asked:
        """Wait for its first token."""
        wait_for(lambda: bool(self.pieces) or self.ended)
        return self

    def leave(self) -> None:
        """As a client that is not interested any more."""
        assert self.sequence is not None
        self.sequence.cancelled = True

    def wait(self) -> Asked:
        """Until it has ended; its error is raised."""
        assert self._ended.wait(PATIENCE_S), "the answer does not end"
        if self.error is not None:
            raise self.error
        return self

    @property
    def _made(self) -> Answering:
        assert self.sequence is not None
        return self.sequence

    @property
    def error(self) -> ParlayError | None:
        return self._made.error

    @property
    def tokens(self) -> list[int]:
        return [piece.token for piece in self.pieces[: self._made.n_generated]]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def origins(self) -> list[str]:
        return [piece.origin.value for piece in self.pieces[: self._made.n_generated]]

    @property
    def logprobs(self) -> list[tuple[float, tuple[Any, ...]]]:
        found = [piece.logprob for piece in self.pieces if piece.logprob is not None]
        return [(one.logprob, tuple(one.top)) for one in found]

    @property
    def exact(self) -> bool:
        return self._made.exact

    @property
    def finish(self) -> str | None:
        return self._made.finish_reason

    @property
    def n_reused(self) -> int:
        return self._made.n_reused

    @property
    def n_drafted(self) -> int:
        return self._made.counts.n_drafted

    @property
    def n_accepted(self) -> int:
        return self._made.counts.n_accepted

    @property
    def n_rounds(self) -> int:
        return self._made.counts.n_rounds


class EngineDoor:
    """An engine, asked by what it calls `submit`."""

    def __init__(self, submit: Callable[..., Answering]) -> None:
        self._submit = submit

    def start(self, prompt: Sequence[int], /, **options: Any) -> Asked:
        """Options as for `request`."""
        asked = Asked()
        asked.sequence = self._submit(request(prompt, **options), asked.take)
        return asked

    def deaf(self, prompt: Sequence[int], sink: Callable[..., None]) -> None:
        """Start an answer for somebody who takes its pieces in another way."""
        self._submit(request(prompt), sink)

    def ask(self, prompt: Sequence[int], /, **options: Any) -> Asked:
        return self.start(prompt, **options).wait()

    def together(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Asked]:
        """All at once."""
        asked = [self.start(prompt, **options) for prompt in prompts]
        return [each.wait() for each in asked]


class RealEngine(EngineDoor):
    """On a model file; `engine` is for tests that are no part of the contract."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.submit)
        self.engine = engine


@contextmanager
def engine(model: Path, *draft: str | Path, **options: Any) -> Iterator[RealEngine]:
    """Exact, on one thread, with a window of 8, unless told otherwise."""
    given: dict[str, Any] = {"mode": "exact", "threads": 1, "context_size": 512, "window": 8}
    given |= {"batch": 128, **options}
    settings = LoadSettings(model, **given).for_engine(
        model, tuple(str(name) for name in draft), max_window=max(given["window"] or 0, MAX_WINDOW)
    )
    with Engine(settings) as made:
        yield RealEngine(made)


class ScriptedEngine(EngineDoor):
    """The same loop over a scripted model: no weights, every token a letter."""

    def __init__(self, rig: Rig, worker: Worker) -> None:
        super().__init__(self._add)
        self.rig = rig
        self._worker = worker

    def _add(self, wanted: Request, sink: Any) -> Answering:
        seq = self.rig.sequence(wanted, sink)
        self._worker.submit(seq)
        return seq

    def close(self) -> bool:
        """Whether its thread has ended."""
        return self._worker.close()


# What a proposer is told; any of it may fail.
PROPOSER_METHODS = ("draft", "open", "meanwhile", "cut", "finish")


@contextmanager
def scripted_engine(**options: Any) -> Iterator[ScriptedEngine]:
    """Options as for `Rig`: window, script, slots, context_size, target, proposers, ends; and
    `patience_s`: how long closing waits for a pass."""
    patience = {"patience_s": options.pop("patience_s")} if "patience_s" in options else {}
    rig = Rig(**options)
    worker = Worker(lambda: rig.loop, **patience)
    worker.wait_until_open()
    try:
        yield ScriptedEngine(rig, worker)
    finally:
        worker.close()


class Rounds:
    """The loop made step by step on this thread, with endless answers under way."""

    def __init__(self, n_answers: int = 1, **options: Any) -> None:
        self._rig = Rig(slots=n_answers, context_size=1 << 20, **options)
        for i in range(n_answers):
            self._rig.add(request([1, 2, 3 + i], max_tokens=10**6))

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self._rig.loop.step()


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds, however long it takes."""
    wait_for(condition)

"""One way of answering, whoever answers: what is promised, told, logged and taken back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from anthropic import Anthropic
from anthropic import APIError as AnthropicError
from fastapi import FastAPI, Request
from openai import APIError as OpenAIError
from openai import OpenAI
from starlette.responses import JSONResponse, Response

from parlay.ask import (
    Accepted,
    Answerer,
    Ask,
    CallForm,
    Done,
    End,
    Facts,
    Figures,
    Pieces,
    Refused,
    Remark,
    Reply,
    SoFar,
    Token,
)
from parlay.chat.deltas import Delta
from parlay.front import answers, routes
from parlay.front.answers import Outcome, answer
from parlay.front.doors.chat import ChatDoor, ChatWriter
from parlay.front.doors.door import Asked, Visit
from parlay.front.errors import Failure
from parlay.front.schema import ChatRequest
from parlay.front.stored_responses import StoredResponses
from tests.serving import wait_for

FACTS = Facts(
    names=("m",),
    context_size=512,
    n_slots=1,
    mode="exact",
    form=CallForm(name="none", kind="json", open="<tool_call>", close="</tool_call>"),
)
ACCEPTED = Accepted(n_prompt=(3,), seed=7, temperature=0.8, mode="exact", policy="chat")
FIGURES = Figures(n_prompt=3, n_generated=2, e2e_s=0.5, speculation={"generated": 2})
GONE = Refused(503, "the engine died; it is started anew", "server_error", "engine_died")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
}
WHOLE: list[list[Reply]] = [
    [ACCEPTED, SoFar(Figures())],
    [Pieces(0, ("on ", "and"), 2)],
    [End(0, "stop", FIGURES), Done(FIGURES)],
]


class Scripted:
    """Answers with what it was given; a number in it is a pause in seconds."""

    facts = FACTS

    def __init__(self, script: Sequence[list[Reply] | float]) -> None:
        self.script = script
        self.asked: list[tuple[Ask, bool]] = []
        self.taken_back = False

    async def answer(
        self, ask: Ask, *, whole: bool = False
    ) -> AsyncGenerator[Sequence[Reply], None]:
        self.asked.append((ask, whole))
        self.taken_back = True
        for step in self.script:
            if isinstance(step, list):
                yield step
            else:
                await asyncio.sleep(step)
        self.taken_back = False

    async def render(self, ask: Ask) -> str:
        return ""

    async def count(self, ask: Ask) -> int:
        return 0

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        return []

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return ""


class Bare:
    """A front that lets everybody in and writes down what became of them."""

    gave_up = False
    started = 0.0
    model_names = ("m",)

    def __init__(self, backend: Scripted) -> None:
        self.backend = backend
        self.n_open = 0
        self.outcomes: list[Outcome] = []

    def visit(self, request: Request) -> Visit:
        return Visit("", StoredResponses(0))

    def checked(self, asked: Asked, request: Request) -> tuple[Ask, tuple[Remark, ...]]:
        return asked.ask, asked.remarks

    def choose(self, model: str) -> tuple[Answerer, str, tuple[Remark, ...]]:
        return self.backend, "m", ()

    def admit(self, n: int) -> None:
        self.n_open += n

    def leave(self, n: int) -> None:
        self.n_open -= n

    def between(self, seconds: float) -> None:
        """Nobody counts."""

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


async def _fail(request: Request, error: Exception) -> Response:
    assert isinstance(error, Failure)
    return JSONResponse(error.body_for(request.url.path), error.status)


def asked(front: Bare, path: str, body: dict[str, Any], app: FastAPI | None = None) -> str:
    """What comes back, as text."""
    app = FastAPI() if app is None else app
    app.state.service = front
    app.include_router(routes.router)
    app.add_exception_handler(Failure, _fail)

    async def send() -> str:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.post(path, json=body)).text

    return asyncio.run(send())


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_before_it_is_accepted_was_never_promised(path: str, stream: bool) -> None:
    front = Bare(Scripted([[Refused(400, "too long", code="context_length_exceeded")]]))
    told = json.loads(asked(front, path, {**BODIES[path], "stream": stream}))
    assert told["error"]["message"] == "too long"
    assert (told.get("type") == "error") == (path == "/v1/messages")
    assert front.outcomes == [] and front.n_open == 0  # whoever counts refusals does


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_that_breaks_off_ends_with_an_error_in_its_doors_form(path: str) -> None:
    front = Bare(Scripted([*WHOLE[:2], [SoFar(FIGURES)], [GONE]]))
    told = asked(front, path, {**BODIES[path], "stream": True})
    last = [event for event in told.split("\n\n") if event and event != "data: [DONE]"][-1]
    if path == "/v1/messages":
        assert last.startswith("event: error\n") and '"overloaded_error"' in last
    elif path == "/v1/responses":
        assert last.startswith("event: response.failed\n") and '"engine_died"' in last
    else:
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_died"
    (outcome,) = front.outcomes
    assert (outcome.status, outcome.error) == (503, "engine_died")
    assert outcome.figures == FIGURES  # what is known of it is logged, however it ends


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """An application on loopback, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_the_official_clients_hear_that_an_answer_broke_off() -> None:
    """None of them takes half an answer for a whole one."""
    app = FastAPI()
    app.state.service = Bare(Scripted([*WHOLE[:2], [GONE]]))
    app.include_router(routes.router)
    known: Any = {"api_key": "none", "max_retries": 0}
    options: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with (
        served(app) as url,
        Anthropic(base_url=url, **known) as anthropic,
        OpenAI(base_url=f"{url}/v1", **known) as openai,
    ):
        with (
            pytest.raises(AnthropicError, match="engine died"),
            anthropic.messages.stream(max_tokens=9, **options) as stream,
        ):
            stream.get_final_message()
        with pytest.raises(OpenAIError, match="engine died"):
            list(openai.chat.completions.create(stream=True, **options))
        events = list(openai.responses.create(input="hi", stream=True))
        assert events[-1].type == "response.failed"


@pytest.mark.parametrize("path", BODIES)
def test_a_whole_answer_that_breaks_off_is_an_error_and_may_begin_anew_before(path: str) -> None:
    front = Bare(Scripted([*WHOLE[:2], [GONE]]))
    told = json.loads(asked(front, path, BODIES[path]))
    assert "engine died" in told["error"]["message"]
    assert [whole for _, whole in front.backend.asked] == [True]
    assert [outcome.status for outcome in front.outcomes] == [503] and front.n_open == 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_everything_may_come_at_once(path: str, stream: bool) -> None:
    """A quick backend's acceptance and its end may be one message."""
    front = Bare(Scripted([[reply for batch in WHOLE for reply in batch]]))
    told = asked(front, path, {**BODIES[path], "stream": stream})
    assert "on and" in told
    (outcome,) = front.outcomes
    assert (outcome.status, outcome.finish_reason, outcome.stream) == (200, "stop", stream)


class Watched(ChatDoor):
    """Writes down on which thread it was asked."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def ask(self, body: ChatRequest, visit: Visit) -> Asked:
        self.threads.append(threading.get_ident())
        return super().ask(body, visit)


@pytest.mark.parametrize(("n", "beside"), [(10, False), (1 << 20, True)])
def test_a_large_request_is_understood_once_and_beside_the_event_loop(n: int, beside: bool) -> None:
    front, app, door = Bare(Scripted(WHOLE)), FastAPI(), Watched()

    async def knock(request: Request) -> Response:
        return await answer(request, door, front)

    app.post("/watched")(knock)
    told = asked(front, "/watched", {"messages": [{"role": "user", "content": "x" * n}]}, app)
    assert "on and" in told
    (thread,) = door.threads
    assert (thread != threading.get_ident()) == beside


class Clumsy(ChatWriter):
    """Cannot write what it is told."""

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        raise RuntimeError("no words")


class ClumsyDoor(ChatDoor):
    def ask(self, body: ChatRequest, visit: Visit) -> Asked:
        found = super().ask(body, visit)
        return Asked(
            found.ask,
            found.stream,
            lambda accepted, model: Clumsy(body, "id", model, accepted),
        )


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_writer_fails_is_taken_back(stream: bool) -> None:
    front, app = Bare(Scripted([*WHOLE[:2], 60.0])), FastAPI()

    async def knock(request: Request) -> Response:
        return await answer(request, ClumsyDoor(), front)

    app.post("/clumsy")(knock)
    told = asked(front, "/clumsy", {**BODIES["/v1/chat/completions"], "stream": stream}, app)
    assert "internal error" in told and "no words" not in told
    assert front.backend.taken_back and front.n_open == 0
    assert [outcome.status for outcome in front.outcomes] == [500]


@pytest.mark.parametrize(
    ("path", "first", "again"),
    [
        ("/v1/chat/completions", ": the prompt is being read", ": the prompt is being read"),
        ("/v1/responses", "event: response.created", ": the prompt is being read"),
        ("/v1/messages", "event: message_start", "event: ping"),
    ],
)
def test_a_long_prompt_shows_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, path: str, first: str, again: str
) -> None:
    monkeypatch.setattr(answers, "IDLE_S", 0.01)
    front = Bare(Scripted([WHOLE[0], 0.2, *WHOLE[1:]]))
    lines = asked(front, path, {**BODIES[path], "stream": True}).splitlines()
    assert lines[0] == first and again in lines[1:]
    assert any("on " in line for line in lines)


def test_a_body_is_no_json_is_said_in_one_line() -> None:
    front = Bare(Scripted([]))
    told = json.loads(asked(front, "/v1/chat/completions", {"messages": 5}))
    assert told["error"]["message"].startswith("messages: ")
    assert front.backend.asked == []

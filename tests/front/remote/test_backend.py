"""Remote servers behind the front's protocol: what they say, and who answers when one is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from parlay.ask import Accepted, Ask, Done, Form, Gap, Pieces, Refused, Reply, Samplers
from parlay.deployment import Deployment
from parlay.front.errors import Failure
from parlay.front.remote.backend import RemoteBackend
from parlay.front.remote.request import body_of
from parlay.front.remote.spoken import CALLS, THINKING, Speaker
from tests.front.remote.fakes import WORDS, Engine, engines
from tests.front.remote.running import QUICK
from tests.serving import PATIENCE_S

TEXT = "".join(WORDS)
ASK = Ask(door="chat", messages=({"role": "user", "content": "rain?"},), max_tokens=16)


def run(
    work: Callable[[RemoteBackend], Awaitable[None]], *given: Engine, **gateway: Any
) -> dict[str, str | None]:
    """Over one pool; returns the last of each alert."""
    told: dict[str, str | None] = {}

    async def main() -> None:
        pools = [{"name": "all", "urls": [engine.url for engine in given]}]
        content: dict[str, Any] = {**QUICK, "engine": "endpoints", "upstreams": pools}
        content["gateway"] = {**content["gateway"], **gateway}
        deployment = Deployment.model_validate(content)
        backend = RemoteBackend(deployment, told.__setitem__)
        await backend.start()
        try:
            await asyncio.wait_for(work(backend), PATIENCE_S)
        finally:
            await backend.close()

    with engines(*given):
        asyncio.run(main())
    return told


async def answer(backend: RemoteBackend, ask: Ask = ASK, *, whole: bool = False) -> list[Reply]:
    return [reply async for batch in backend.answer(ask, whole=whole) for reply in batch]


def text_of(replies: list[Reply]) -> str:
    return "".join(text for reply in replies if isinstance(reply, Pieces) for text in reply.texts)


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_server_says_comes_through(whole: bool) -> None:
    async def work(backend: RemoteBackend) -> None:
        replies = await answer(backend, whole=whole)
        assert isinstance(replies[0], Accepted) and text_of(replies) == TEXT
        last = replies[-1]
        assert isinstance(last, Done) and last.figures.n_generated == len(WORDS)
        assert last.figures.speculation["pool"] == "all"
        assert backend.facts.names == ("m",)

    run(work, Engine())


def test_of_two_servers_the_least_busy_is_asked() -> None:
    one, other = Engine(delay_s=0.01), Engine(delay_s=0.01)

    async def work(backend: RemoteBackend) -> None:
        await asyncio.gather(*(answer(backend) for _ in range(8)))
        assert len(one.asked) == len(other.asked) == 4

    run(work, one, other)


@pytest.mark.parametrize("mode", ["http_500", "cut_early", "cut_opening"])
def test_before_its_first_words_another_server_takes_over(mode: str) -> None:
    async def work(backend: RemoteBackend) -> None:
        for _ in range(4):
            assert text_of(await answer(backend)) == TEXT

    one = Engine()
    one.mode = mode
    run(work, one, Engine())


def test_of_a_server_that_stops_in_the_midst_what_had_not_begun_the_other_answers() -> None:
    one, other = Engine(delay_s=0.05), Engine(delay_s=0.05)

    async def work(backend: RemoteBackend) -> None:
        streams = [backend.answer(ASK) for _ in range(2)]
        begun = [[await anext(stream), await anext(stream)] for stream in streams]
        wholes = [asyncio.ensure_future(answer(backend, whole=True)) for _ in range(4)]
        while len(one.asked) + len(other.asked) < 6:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(one.kill)
        ends = []
        for first, stream in zip(begun, streams, strict=True):
            rest = [reply async for batch in stream for reply in batch]
            ends.append([*first[0], *first[1], *rest])
        broken = [end for end in ends if isinstance(end[-1], Refused)]
        assert len(broken) == 1  # its words had been handed on: they are not said again
        assert [text_of(await whole) for whole in wholes] == [TEXT] * 4
        await asyncio.to_thread(one.revive)

    run(work, one, other)


def test_a_refusal_is_passed_on_and_not_repeated() -> None:
    one = Engine()
    one.mode = "http_400"

    async def work(backend: RemoteBackend) -> None:
        (refused,) = await answer(backend)
        assert isinstance(refused, Refused) and refused.status == 400
        assert len(one.asked) == 1

    run(work, one)


def test_a_client_that_leaves_ends_the_answer_there() -> None:
    one = Engine(delay_s=0.02)
    one.words = ["word "] * 100_000

    async def work(backend: RemoteBackend) -> None:
        stream = backend.answer(ASK)
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        while not one.n_left or backend.n_open:
            await asyncio.sleep(0.01)

    run(work, one)


def test_what_a_remote_server_cannot_do_is_told_by_its_name() -> None:
    async def work(backend: RemoteBackend) -> None:
        with pytest.raises(Failure, match="tokenize") as told:
            await backend.tokenize("x", add_special=False, parse_special=False, with_pieces=False)
        assert told.value.status == 501
        infill = Ask(door="infill", gap=Gap("a", "b"))
        (refused,) = await answer(backend, infill)
        assert isinstance(refused, Refused) and (refused.status, refused.param) == (501, "infill")

    run(work, Engine())


@pytest.mark.parametrize(
    ("ask", "engine", "name"),
    [
        (Ask(door="chat", messages=(), context_full="slide"), "vllm", "context_full"),
        (Ask(door="chat", messages=(), samplers=Samplers(typical_p=0.5)), "vllm", "typical_p"),
        (Ask(door="chat", messages=(), form=Form(gbnf='root ::= "a"')), "sglang", "grammar"),
        (Ask(door="chat", messages=(), reasoning_budget=5), "vllm", "reasoning_budget"),
    ],
)
def test_no_field_is_dropped_in_silence(ask: Ask, engine: str, name: str) -> None:
    with pytest.raises(Failure) as told:
        body_of(ask, engine, "m")
    assert (told.value.status, told.value.param) == (501, name)
    body_of(ask, "parlay", "m")


def test_each_engine_hears_its_own_names() -> None:
    ask = Ask(door="chat", messages=(), samplers=Samplers(repeat_penalty=1.1))
    assert body_of(ask, "vllm", "m")["repetition_penalty"] == 1.1
    assert body_of(ask, "llamacpp", "m")["repeat_penalty"] == 1.1


def test_thinking_and_calls_stand_between_marks_that_one_parser_reads() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see \ue003"},
        {"content": "It is "},
        {"content": "so."},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "go", "arguments": ""}}]},
    ]
    speaker = Speaker(0)
    said = [speaker.push({"delta": delta}, 0.0) for delta in deltas]
    said.append(speaker.push({"delta": {}, "finish_reason": "tool_calls"}, 0.0))
    text = "".join("".join(pieces.texts) for pieces in said if pieces is not None)
    thought, _, rest = text.partition(THINKING.close)
    assert thought == f"{THINKING.open}Let me see "  # a mark that a server writes is taken out
    content, *calls = rest.split(CALLS.open)
    assert content == "It is so."
    assert [json.loads(call.removesuffix(CALLS.close)) for call in calls] == [
        {"name": "look", "arguments": {"a": 1}},
        {"name": "go", "arguments": {}},
    ]
    assert speaker.reason == "stop"

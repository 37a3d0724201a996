"""Slots, the queue, cancellation, time limits and fairness, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI, RateLimitError

from tests import doors
from tests.serving import wait_for

ENDLESS = {"prompt": "hello", **doors.ENDLESS}
PROMPTS = [f"{word} {i}" for i, word in enumerate(["hello", "on and on", "the sea", "in here"] * 2)]


@pytest.fixture(scope="module")
def small(model: Path, guesser: Path) -> Iterator[doors.Server]:
    """One slot, one place in the queue."""
    with doors.server(
        model, model__drafter=str(guesser), runtime__slots=1, server__queue_size=1
    ) as found:
        yield found


def ask(client: OpenAI, prompt: str, **more: Any) -> str:
    answer = client.completions.create(
        model="", prompt=prompt, max_tokens=48, temperature=0, **more
    )
    text: str = answer.choices[0].text
    return text


def test_eight_concurrent_streams_equal_eight_sequential_ones(server: doors.Server) -> None:
    """In exact mode, with a draft model and suffixes at work."""
    client = server.openai()

    def streamed(prompt: str) -> tuple[str, dict[str, Any]]:
        chunks = list(
            client.completions.create(
                model="", prompt=prompt, max_tokens=64, temperature=0, stream=True
            )
        )
        numbers = (chunks[-1].model_extra or {})["speculation"]
        return "".join(chunk.choices[0].text for chunk in chunks), numbers

    sequential = [streamed(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(streamed, PROMPTS))
    assert [text for text, _ in together] == [text for text, _ in sequential]
    assert all(numbers["exact"] for _, numbers in (*sequential, *together))
    assert sum(numbers["accepted"] for _, numbers in together) > 0


def test_a_client_that_leaves_frees_its_slot(small: doors.Server) -> None:
    with httpx.stream("POST", f"{small.url}/v1/completions", json={**ENDLESS, "stream": True}) as r:
        lines = r.iter_lines()  # kept: httpx closes the stream with it
        next(lines)
        assert small.n_busy == 1
    wait_for(small.is_idle)


def test_a_client_that_leaves_without_streaming_frees_its_slot(small: doors.Server) -> None:
    with small.sending(ENDLESS, "completions"):
        wait_for(lambda: small.n_busy == 1)
    wait_for(small.is_idle)


def test_a_full_queue_says_when_to_come_back(small: doors.Server) -> None:
    url = f"{small.url}/v1/completions"
    with httpx.stream("POST", url, json={**ENDLESS, "stream": True}) as first:
        lines = first.iter_lines()  # kept: httpx closes the stream with it
        next(lines)
        with httpx.stream("POST", url, json={**ENDLESS, "stream": True}):
            wait_for(lambda: small.n_waiting == 1)
            with pytest.raises(RateLimitError) as caught:
                ask(small.openai(), "hello")
            assert int(caught.value.response.headers["retry-after"]) >= 1
    wait_for(small.is_idle)
    assert ask(small.openai(), "hello")


def test_a_time_limit_keeps_what_was_made(model: Path) -> None:
    """However slow the machine: a first token that comes too late is tried again."""
    with doors.server(model, runtime__slots=1, server__request_timeout_s=2) as server:
        for _ in range(20):
            answer = server.post("/v1/completions", ENDLESS)
            if answer.status_code == 200:
                break
            assert answer.json()["error"]["code"] == "timeout"
        found = answer.json()
        assert found["choices"][0]["finish_reason"] == "length"
        assert 0 < found["usage"]["completion_tokens"] < ENDLESS["max_tokens"]


def test_who_waits_longer_than_the_limit_is_told_so(model: Path) -> None:
    """Its slot is held by an answer that began before it and has as long a limit."""
    with doors.server(model, runtime__slots=1, server__request_timeout_s=3) as server:
        with server.stream("hello", "completions", **doors.ENDLESS) as first:
            first.first_words()
            late = server.post("/v1/completions", ENDLESS)
        if late.status_code != 200:  # unless it got a slot just in time
            assert late.json()["error"]["code"] == "timeout"


def test_the_next_turn_reuses_the_cache(server: doors.Server) -> None:
    client = server.openai()
    turn = [{"role": "user", "content": "a rather unusual beginning: zebra"}]

    def answer(messages: list[dict[str, str]]) -> Any:
        return client.chat.completions.create(
            model="",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=8,
            temperature=0,
        )

    first = answer(turn)
    again = answer([*turn, {"role": "assistant", "content": "yes"}, *turn])
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 20


@pytest.mark.parametrize("shared", [False, True])
def test_a_cached_prompt_is_reused_among_holders_of_one_key_only(model: Path, shared: bool) -> None:
    options = {"server__api_keys": "one,other", "server__share_prompt_cache": shared}
    with doors.server(model, runtime__slots=2, **options) as server:

        def cached(key: str) -> int:
            answer = (
                server.as_key(key)
                .openai()
                .completions.create(
                    model="", prompt="a rather unusual beginning", max_tokens=4, temperature=0
                )
            )
            details = answer.usage.prompt_tokens_details if answer.usage else None
            return (details.cached_tokens if details else 0) or 0

        assert cached("one") == 0
        assert (cached("other") > 0) == shared
        assert cached("one") > 0


def test_too_many_answers_at_once_are_refused(small: doors.Server) -> None:
    with pytest.raises(APIStatusError, match="holds 2 answers at once"):
        ask(small.openai(), "hello", n=3)

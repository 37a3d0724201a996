"""Slots, the queue, cancellation, time limits and fairness, over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI, RateLimitError

from parlay.llama.context import Context
from tests.server.running import Running, running
from tests.serving import PATIENCE_S, wait_for

# Greedy: a tiny model's greedy text does not end by chance.
ENDLESS: dict[str, Any] = {
    "prompt": "hello",
    "max_tokens": 10**6,
    "temperature": 0,
    "context_full": "slide",
}
PROMPTS = [f"{word} {i}" for i, word in enumerate(["hello", "on and on", "the sea", "in here"] * 2)]


@pytest.fixture(scope="module")
def small(target: Path, drafter: Path) -> Iterator[Running]:
    """One slot, one place in the queue."""
    with running(
        target, model__drafter=str(drafter), runtime__slots=1, server__queue_size=1
    ) as found:
        yield found


def free(server: Running) -> bool:
    return not server.service.engine.active and server.service.engine.n_waiting == 0


def ask(client: OpenAI, prompt: str, **more: Any) -> str:
    answer = client.completions.create(
        model="", prompt=prompt, max_tokens=48, temperature=0, **more
    )
    text: str = answer.choices[0].text
    return text


def test_eight_concurrent_streams_equal_eight_sequential_ones(server: Running) -> None:
    """In exact mode, with a draft model and suffixes at work."""
    client = server.client()

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


def test_a_client_that_leaves_frees_its_slot(small: Running) -> None:
    with httpx.stream("POST", f"{small.url}/v1/completions", json={**ENDLESS, "stream": True}) as r:
        lines = r.iter_lines()  # kept: httpx closes the stream with it
        next(lines)
        assert small.service.engine.active
    wait_for(lambda: free(small))


def test_a_client_that_leaves_without_streaming_frees_its_slot(small: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{small.url}/v1/completions", json=ENDLESS, timeout=httpx.Timeout(60, read=0.3))
    wait_for(lambda: free(small))


def test_a_full_queue_says_when_to_come_back(small: Running) -> None:
    url = f"{small.url}/v1/completions"
    with httpx.stream("POST", url, json={**ENDLESS, "stream": True}) as first:
        lines = first.iter_lines()  # kept: httpx closes the stream with it
        next(lines)
        with httpx.stream("POST", url, json={**ENDLESS, "stream": True}):
            wait_for(lambda: small.service.engine.n_waiting == 1)
            with pytest.raises(RateLimitError) as caught:
                ask(small.client(), "hello")
            assert int(caught.value.response.headers["retry-after"]) >= 1
    wait_for(lambda: free(small))
    assert ask(small.client(), "hello")


def test_a_time_limit_keeps_what_was_made(target: Path) -> None:
    with running(target, runtime__slots=1, server__request_timeout_s=2) as server:
        assert ask(server.client(), "hello")  # what a first answer waits for is over
        began = time.monotonic()
        answer = httpx.post(f"{server.url}/v1/completions", json=ENDLESS).json()
        assert 1.9 < time.monotonic() - began < PATIENCE_S
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] > 0
        begun = threading.Event()

        def keep_the_slot() -> None:
            body = {**ENDLESS, "stream": True}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
                for _ in response.iter_lines():
                    begun.set()

        waiting = threading.Thread(target=keep_the_slot)
        waiting.start()
        assert begun.wait(PATIENCE_S)
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**ENDLESS, "stream": True}
        ) as late:
            events = [line for line in late.iter_lines() if line]
        waiting.join()
        # Either it got a slot just in time, or it is told that it did not.
        first = json.loads(events[0].removeprefix("data: "))
        assert first.get("error", {"code": "timeout"})["code"] == "timeout"
        assert events[-1] == "data: [DONE]"


def test_a_long_prompt_does_not_stall_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two chunks of it, who decodes beside it has a round."""
    target, passes = server.service.engine.target, list[list[int]]()
    real = Context._launch

    def launch(self: Context, spans: Any) -> Any:
        if self is target:
            passes.append([len(span.tokens) for span in spans])
        return real(self, spans)

    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**ENDLESS, "stream": True}
    ) as r:
        lines = r.iter_lines()
        next(lines)
        monkeypatch.setattr(Context, "_launch", launch)
        assert ask(server.client(), "q" * 900)
    chunks = [i for i, rows in enumerate(passes) if max(rows) > 64]
    assert len(chunks) >= 4
    for before, after in pairwise(chunks):
        assert any(max(rows) <= 64 for rows in passes[before + 1 : after])


def test_the_next_turn_reuses_the_cache(server: Running) -> None:
    client = server.client()
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
def test_a_cached_prompt_is_reused_among_holders_of_one_key_only(
    target: Path, shared: bool
) -> None:
    options = {"server__api_keys": "one,other", "server__share_prompt_cache": shared}
    with running(target, runtime__slots=2, **options) as server:

        def cached(key: str) -> int:
            answer = server.client(key).completions.create(
                model="", prompt="a rather unusual beginning", max_tokens=4, temperature=0
            )
            details = answer.usage.prompt_tokens_details if answer.usage else None
            return (details.cached_tokens if details else 0) or 0

        assert cached("one") == 0
        assert (cached("other") > 0) == shared
        assert cached("one") > 0


def test_too_many_answers_at_once_are_refused(small: Running) -> None:
    with pytest.raises(APIStatusError, match="holds 2 answers at once"):
        ask(small.client(), "hello", n=3)

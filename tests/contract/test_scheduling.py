"""Slots, the queue, cancellation, time limits and fairness, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests import doors
from tests.scripted import ScriptedModel, hashed_logits
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


def test_eight_concurrent_streams_equal_eight_sequential_ones(server: doors.Server) -> None:
    """In exact mode, with a draft model and suffixes at work."""

    def streamed(prompt: str) -> doors.Told:
        return server.streamed(prompt, "completions", max_tokens=64)

    sequential = [streamed(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(streamed, PROMPTS))
    assert [told.text for told in together] == [told.text for told in sequential]
    assert all(told.speculation["exact"] for told in (*sequential, *together))
    assert sum(told.speculation["accepted"] for told in together) > 0


def test_a_client_that_leaves_frees_its_slot(small: doors.Server) -> None:
    with small.stream("hello", "completions", **doors.ENDLESS) as stream:
        stream.first_words()
        assert small.n_busy == 1
    wait_for(small.is_idle)


def test_a_client_that_leaves_without_streaming_frees_its_slot(small: doors.Server) -> None:
    with small.sending(ENDLESS, "completions"):
        wait_for(lambda: small.n_busy == 1)
    wait_for(small.is_idle)


def test_a_full_queue_says_when_to_come_back(small: doors.Server) -> None:
    with small.stream("hello", "completions", **doors.ENDLESS) as first:
        first.first_words()
        with small.sending({**ENDLESS, "stream": True}, "completions"):
            wait_for(lambda: small.n_waiting == 1)
            refused = small.refused("hello", "completions")
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    wait_for(small.is_idle)
    assert small.ask("hello", "completions").text


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


def n_cached(told: doors.Told) -> int:
    return int(told.body["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_next_turn_reuses_the_cache(server: doors.Server) -> None:
    turn = [{"role": "user", "content": "a rather unusual beginning: zebra"}]
    first = server.ask(turn, max_tokens=8)
    again = server.ask([*turn, {"role": "assistant", "content": "yes"}, *turn], max_tokens=8)
    assert n_cached(again) >= first.n_prompt - 20


@pytest.mark.parametrize("shared", [False, True])
def test_a_cached_prompt_is_reused_among_holders_of_one_key_only(model: Path, shared: bool) -> None:
    options = {"server__api_keys": ("one", "other"), "server__share_prompt_cache": shared}
    with doors.server(model, runtime__slots=2, **options) as server:

        def cached(key: str) -> int:
            asked = server.as_key(key).ask("a rather unusual beginning", "completions")
            return n_cached(asked)

        assert cached("one") == 0
        assert (cached("other") > 0) == shared
        assert cached("one") > 0


def test_too_many_answers_at_once_are_refused(small: doors.Server) -> None:
    refused = small.refused("hello", "completions", n=3)
    assert "holds 2 answers at once" in refused.json()["error"]["message"]


class Watched(ScriptedModel):
    """Keeps who had rows in each pass, and how many."""

    def __init__(self) -> None:
        super().__init__(hashed_logits(32), 32, 4096)
        self.passes: list[dict[int, int]] = []

    def decode(self, spans: Sequence[Any]) -> list[Any]:
        self.passes.append({span.seq_id: len(span.tokens) for span in spans})
        return super().decode(spans)


@pytest.mark.quick
def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    """Between any two chunks of it, who decodes beside it has a round."""
    target = Watched()
    with doors.scripted_engine(target=target, slots=2, chunk=8, context_size=4096) as engine:
        beside = engine.start([1, 2, 3], max_tokens=3000).begun()
        long = engine.start(list(range(1, 30)) * 8, max_tokens=1)
        long.wait()
        beside.leave()
        doors.until(lambda: beside.ended)
    chunks = [i for i, rows in enumerate(target.passes) if 1 in rows]
    assert len(chunks) >= 29
    for before, after in pairwise(chunks):
        assert any(0 in rows for rows in target.passes[before : after + 1])

"""Bodies are read once, as JSON and nothing more, and large ones beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, ClassVar

import pytest
from fastapi import Request
from pydantic import BaseModel, model_validator

from parlay.front.bodies import parsed, read
from parlay.front.errors import Failure
from parlay.front.schema import ChatRequest


class Seen(BaseModel):
    """Writes down on which thread it was checked."""

    text: str
    threads: ClassVar[list[int]] = []

    @model_validator(mode="before")
    @classmethod
    def _see(cls, given: Any) -> Any:
        cls.threads.append(threading.get_ident())
        return given


def request_with(raw: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize(("n", "beside"), [(10, False), (1 << 20, True)])
def test_a_large_body_is_checked_once_and_beside_the_event_loop(n: int, beside: bool) -> None:
    Seen.threads.clear()
    raw = json.dumps({"text": "x" * n}).encode()
    found = asyncio.run(read(request_with(raw), Seen))
    assert len(found.text) == n
    (thread,) = Seen.threads
    assert (thread != threading.get_ident()) == beside


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "send one JSON object"),
        (b"{", "not valid JSON"),
        (b"[1]", "send one JSON object"),
        (b'{"temperature": NaN, "messages": []}', "not valid JSON"),
        (b'{"temperature": 1e999, "messages": []}', "Number out of range"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "Integer value out of range"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"messages": "\xff"}', "not valid text"),
        (b'{"messages": 5}', "messages: "),
    ],
)
def test_what_is_no_sound_request_is_told_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(Failure) as caught:
        parsed(raw, ChatRequest)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.status == 400


def test_what_only_looks_like_no_json_is_read() -> None:
    text = "NaN, Infinity, 1e999 and \\ud83d\\ude00"
    raw = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'.encode()
    (message,) = parsed(raw, ChatRequest).messages
    assert message.content == "NaN, Infinity, 1e999 and \U0001f600"

"""What a supervisor is told of an answer: a stream that has said nothing can be begun anew."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from starlette.types import Message

from parlay.web import supervisor_link
from parlay.web.streaming import WAITING, frame
from parlay.web.supervisor_link import KeptRequest, SupervisorLink


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = SupervisorLink()
    link.channel = theirs
    with ours, theirs:
        yield link, ours


async def _sent(_message: Message) -> None: ...


def told(ends: tuple[SupervisorLink, socket.socket], *bodies: bytes) -> list[str]:
    """The stages of an answer of these parts that goes on."""
    link, ours = ends
    send = KeptRequest(link, 1).sending(_sent)

    async def all_of_it() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})

    asyncio.run(all_of_it())
    link.tell(supervisor_link.Note("idle", 1))
    found = []
    while (note := supervisor_link.receive(ours)) is not None and note.kind != "idle":
        found.append(note.kind)
    return found


def test_a_comment_while_the_prompt_is_read_begins_no_answer(
    ends: tuple[SupervisorLink, socket.socket],
) -> None:
    assert told(ends, WAITING, WAITING + WAITING, b"") == ["headed"]


def test_the_first_event_does_begin_it(ends: tuple[SupervisorLink, socket.socket]) -> None:
    assert told(ends, WAITING, frame({"text": "a"}), WAITING) == ["headed", "begun"]


def test_a_comment_and_an_event_in_one_write_begin_it(
    ends: tuple[SupervisorLink, socket.socket],
) -> None:
    assert told(ends, WAITING + frame({"text": "a"})) == ["headed", "begun"]

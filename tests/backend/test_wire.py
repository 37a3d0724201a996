"""Frames between front and engine: whole, in parts, and of nonsense."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.ask import Ask, Done, Figures, Pieces, Samplers
from parlay.backend import wire

ASK = Ask(
    door="chat",
    messages=({"role": "user", "content": "hello \u20ac"},),
    samplers=Samplers(temperature=0.5, logit_bias={7: -1.5}),
    stop=("x",),
)
MESSAGES: list[wire.FromFront] = [
    wire.Answer(3, ASK),
    wire.Cancel(3),
    wire.Call(4, "tokenize", {"text": "x" * 100_000}),
    wire.Stop(),
]


def test_messages_arrive_as_they_were_sent_however_they_are_cut() -> None:
    data = b"".join(wire.frame(message) for message in MESSAGES)
    for seed in range(20):
        cut, frames, found, at = random.Random(seed), wire.Frames(), [], 0
        while at < len(data):
            n = cut.choice([1, 3, 50, 70_000])
            found += [wire.from_front(body) for body in frames.push(data[at : at + n])]
            at += n
        assert found == MESSAGES


def test_a_pass_of_many_answers_is_one_frame() -> None:
    pieces = Pieces(choice=0, texts=("a", "b"), n_tokens=2)
    done = Done(Figures(n_generated=2))
    (body,) = wire.Frames().push(wire.told([(1, (pieces,)), (2, (pieces, done))]))
    assert wire.from_engine(body) == wire.Told(((1, (pieces,)), (2, (pieces, done))))


def test_what_is_larger_than_may_be_is_refused_by_its_head_alone() -> None:
    frames = wire.Frames(1000)
    with pytest.raises(wire.WireError, match="1000 are the most"):
        list(frames.push(struct.pack("!I", 1001)))


@given(st.binary(max_size=300))
def test_nonsense_is_an_error_and_nothing_else(body: bytes) -> None:
    for read in (wire.from_front, wire.from_engine):
        with contextlib.suppress(wire.WireError):
            read(body)


@given(st.integers(0, 2**32), st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_a_damaged_message_is_an_error_or_another_message(
    seed: int, at: int, damage: bytes
) -> None:
    (body,) = wire.Frames().push(wire.frame(random.Random(seed).choice(MESSAGES[:2])))
    at %= len(body)
    damaged = body[:at] + damage + body[at + len(damage) :]
    try:
        found = wire.from_front(damaged)
    except wire.WireError:
        return
    assert isinstance(found, wire.FromFront)


def test_a_deeply_nested_message_is_an_error() -> None:
    deep = b"\x91" * 100_000 + b"\x90"
    head = b"\x84\xa4type\xa4call\xa6number\x01\xa4name\xa5slots\xa9arguments\x81\xa1x"
    with pytest.raises(wire.WireError):
        wire.from_front(head + deep)

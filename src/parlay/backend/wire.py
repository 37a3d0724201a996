"""What a front and an engine process say to each other: messages, framed on one stream socket.

A frame is four bytes of length and that many bytes of MessagePack, read into the types below and
nothing else: what is no such message breaks the connection. Knows no sockets and no engine.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import Struct

from parlay.ask import Ask, Facts, Refused, Reply
from parlay.errors import BadRequest, ParlayError

# Said first by both sides: an engine process that is begun after an update may be another's.
VERSION = 1
# The largest body that a server may be told to take (`server.max_body_mb`), and as much again.
MOST_BYTES = 256 << 20
_HEAD = struct.Struct("!I")

CallName = Literal[
    "render", "count", "tokenize", "detokenize", "save_slot", "restore_slot", "erase_slot",
    "slots", "memory", "forget", "state", "figures", "live", "trace", "follow", "fits_beside",
]  # fmt: skip


class WireError(ParlayError):
    """The other side said what cannot be understood."""


# -- from the front --------------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag="hello"):
    """The first word: who speaks, and what is to be served."""

    version: int
    deployment: dict[str, Any]


class Answer(Struct, frozen=True, tag="answer"):
    """A request to be answered, under a number of its own."""

    number: int
    ask: Ask


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for it any more."""

    number: int


class Call(Struct, frozen=True, tag="call"):
    """One of the backend's other doings; its result comes back under the same number."""

    number: int
    name: CallName
    arguments: dict[str, Any] = {}


class Stop(Struct, frozen=True, tag="stop"):
    """Keep what was learned, free everything, end."""


FromFront = Hello | Answer | Cancel | Call | Stop


# -- from the engine process -----------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded: requests are answered from here on."""

    version: int
    facts: Facts


class Unable(Struct, frozen=True, tag="unable"):
    """It cannot be loaded, and why, in one line; the process ends."""

    kind: str  # the error's class
    message: str


class Told(Struct, frozen=True, tag="told"):
    """What a pass brought to everyone, by the numbers of their requests."""

    parts: tuple[tuple[int, tuple[Reply, ...]], ...]


class Returned(Struct, frozen=True, tag="returned"):
    """What came of a call."""

    number: int
    value: Any = None
    failed: Refused | None = None


class Pulse(Struct, frozen=True, tag="pulse"):
    """Once a second: for how long the pass under way has been, where there is work."""

    passing_s: float


class Trouble(Struct, frozen=True, tag="trouble"):
    """Something to alert of has begun; without a message it is over."""

    kind: str
    message: str | None = None


FromEngine = Ready | Unable | Told | Returned | Pulse | Trouble

_encoder = msgspec.msgpack.Encoder()
_from_front: msgspec.msgpack.Decoder[FromFront] = msgspec.msgpack.Decoder(FromFront)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def frame(message: FromFront | FromEngine) -> bytes:
    """A message as it is sent."""
    try:
        body = _encoder.encode(message)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise BadRequest(
            f"it cannot be sent to the engine: {error}; send smaller numbers"
        ) from None
    if len(body) > MOST_BYTES:
        raise BadRequest(f"a message of {len(body) >> 20} MB is too large to be sent to the engine")
    return _HEAD.pack(len(body)) + body


def told(parts: Sequence[tuple[int, tuple[Reply, ...]]]) -> bytes:
    """One frame for all that a pass brought."""
    return frame(Told(tuple(parts)))


class Frames:
    """Bytes as they come, cut into the frames they are made of."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._rest = bytearray()

    def push(self, data: bytes) -> Iterator[bytes]:
        """Every frame that is complete now."""
        self._rest += data
        start = 0
        try:
            while len(self._rest) - start >= _HEAD.size:
                (n,) = _HEAD.unpack_from(self._rest, start)
                if n > self._most:
                    raise WireError(f"a message of {n} bytes; {self._most} are the most")
                if len(self._rest) - start < _HEAD.size + n:
                    return
                start += _HEAD.size + n
                yield bytes(self._rest[start - n : start])
        finally:
            del self._rest[:start]


def from_front(body: bytes) -> FromFront:
    with _understood():
        return _from_front.decode(body)


def from_engine(body: bytes) -> FromEngine:
    with _understood():
        return _from_engine.decode(body)


@contextmanager
def _understood() -> Generator[None, None, None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a message that is none: {error}") from None

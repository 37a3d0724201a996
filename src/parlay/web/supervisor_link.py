"""Requests kept by the supervisor while the server answers them, so that none dies with the server.

The server's side: it hands over a copy of a client's connection and of the request, and says how
far the answer is. Knows sockets and HTTP as bytes; knows no engine.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from starlette.types import Message, Scope, Send

log = logging.getLogger("parlay.server")
HEAD = struct.Struct("!II")  # bytes of the note, bytes of the request
TRIES = b"x-parlay-tries"  # how often a request was begun before
HEADED = b"x-parlay-headed"  # its client has the head of an answer from before
# The connection that a request came over; set where its bytes arrive.
connection: ContextVar[tuple[socket.socket, int] | None] = ContextVar("connection", default=None)
_DROPPED = frozenset({b"content-length", b"transfer-encoding", b"expect", TRIES, HEADED})


@dataclass(frozen=True, slots=True)
class Note:
    """One thing said between server and supervisor."""

    kind: str  # ready, open, data, idle, closed, kept, headed, begun, done; adopt
    key: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    request: bytes = b""
    fd: int | None = None


def send(channel: socket.socket, note: Note) -> None:
    """Say it; a connection travels with the first bytes."""
    text = json.dumps([note.kind, note.key, note.about]).encode()
    head = HEAD.pack(len(text), len(note.request))
    if note.fd is None:
        channel.sendall(head)
    else:
        socket.send_fds(channel, [head], [note.fd])
    channel.sendall(text + note.request)


def receive(channel: socket.socket) -> Note | None:
    """The next note; None where nobody is there any more."""
    try:
        head, fds, _, _ = socket.recv_fds(channel, HEAD.size, 1)
        head += _exactly(channel, HEAD.size - len(head)) if head else b""
        if len(head) < HEAD.size:
            return None
        n_text, n_request = HEAD.unpack(head)
        kind, key, about = json.loads(_exactly(channel, n_text))
        return Note(kind, key, about, _exactly(channel, n_request), fds[0] if fds else None)
    except (OSError, ValueError):
        return None


def _exactly(channel: socket.socket, n: int) -> bytes:
    found = bytearray()
    while len(found) < n:
        part = channel.recv(min(n - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the other side is gone")
        found += part
    return bytes(found)


class SupervisorLink:
    """The server's end. Without a supervisor nothing is kept."""

    def __init__(self, channel: socket.socket | None = None) -> None:
        self.channel = channel
        self._keys = count(1)

    def keep(self, scope: Scope, body: bytes) -> KeptRequest | None:
        """Hand a request over; None where there is nobody to keep it."""
        found = connection.get()
        if self.channel is None or found is None or not scope["path"].startswith("/v1/"):
            return None
        client, at = found
        kept = KeptRequest(self, next(self._keys))
        headers = dict(scope["headers"])
        about = {
            "path": scope["path"],
            "tries": _number(headers.get(TRIES)),
            "headed": HEADED in headers,
            "connection": at,
        }
        self.tell(Note("kept", kept.key, about, written(scope, body), client.fileno()))
        return kept

    def connected(self, client: socket.socket) -> int:
        """Somebody came, who may have sent something that nobody has read yet."""
        key = next(self._keys)
        if self.channel is not None:
            self.tell(Note("open", key, fd=client.fileno()))
        return key

    def tell(self, note: Note) -> None:
        """A supervisor that is gone costs its help, and nobody's answer."""
        if self.channel is None:
            return
        try:
            send(self.channel, note)
        except OSError:
            log.error("the supervisor is gone: a crash would now end the server")
            self.channel = None


class KeptRequest:
    """One request that the supervisor would save."""

    def __init__(self, supervisor_link: SupervisorLink, key: int) -> None:
        self._supervisor_link = supervisor_link
        self.key = key
        self._stage = "kept"

    def sending(self, send: Send) -> Send:
        """Tell how far the answer is, as it goes by."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._reach("headed")
            elif not message.get("more_body", False):
                self.done()  # first: what the client asks next must not be taken for this
            elif self._stage == "headed" and not _says_nothing(message.get("body", b"")):
                self._reach("begun")
            await send(message)

        return watched

    def done(self) -> None:
        if self._stage != "done":
            self._reach("done")

    def _reach(self, stage: str) -> None:
        self._stage = stage
        self._supervisor_link.tell(Note(stage, self.key))


def _says_nothing(body: bytes) -> bool:
    """Comments of a stream, such as that its prompt is being read: it can still be begun anew."""
    return all(part.startswith(b":") for part in body.split(b"\n\n") if part)


def written(scope: Scope, body: bytes) -> bytes:
    """A request as it could come over a connection."""
    query = b"?" + scope["query_string"] if scope.get("query_string") else b""
    target = scope.get("raw_path") or scope["path"].encode()
    tries = _number(dict(scope["headers"]).get(TRIES)) + 1
    headers = [(name, value) for name, value in scope["headers"] if name not in _DROPPED]
    headers += [(b"content-length", b"%d" % len(body)), (TRIES, b"%d" % tries)]
    lines = [scope["method"].encode() + b" " + target + query + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _number(text: bytes | None) -> int:
    return int(text) if text and text.isdigit() and len(text) < 4 else 0

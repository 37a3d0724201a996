"""Starts the server and starts it anew when it dies; keeps what nobody has been answered yet.

A small parent: it holds the address and a copy of every open request, and answers nothing itself
but `/health` while there is no server. Knows processes and sockets; loads no model.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from types import FrameType
from typing import Any

from parlay.deployment import Deployment
from parlay.front.errors import Failure
from parlay.web import supervisor_link
from parlay.web.hosting import bind
from parlay.web.request_log import RequestLog, endpoint_of, timestamp
from parlay.web.security import checked_keys
from parlay.web.supervised import CHILD
from parlay.web.supervisor_link import Note

log = logging.getLogger("parlay.server")
_MAX_HELD = 512  # connections that wait for the server to come back
_MAX_UNREAD = 1 << 23
_MAX_TRIES = 2  # a request that was there at so many deaths may be their cause
_FORGIVE_S = 600.0
_LONGEST_S = 30.0
_ENDED = Failure(
    500, "the engine died while it made this answer; send it again", "server_error", "engine_died"
)
_HEALTH = (b"GET /health ", b"GET /v1/health ", b"HEAD /health ", b"HEAD /v1/health ")
Held = tuple[socket.socket, bytes, bool]  # a connection, its request, whether a head was sent


@dataclass(slots=True)
class _Open:
    """A request that the server has."""

    client: socket.socket
    request: bytes
    path: str
    tries: int
    connection: int
    stage: str = "kept"


class Supervisor:
    """One address, one server at a time."""

    def __init__(self, read: Callable[[], Deployment]) -> None:
        self._read = read
        self._deployment = read()
        checked_keys(self._deployment)
        server = self._deployment.server
        self._listener = bind(server.host, server.port)
        self._listener.setblocking(False)
        self._limit = server.max_restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._open: dict[int, _Open] = {}
        self._held: list[Held] = []
        self._handing: Thread | None = None  # gives those held to the server that came
        self._clients: dict[int, socket.socket] = {}  # every connection of the server
        self._unread: dict[int, bytes] = {}  # what came over them since the last whole request
        self._stopping = False
        self._ready = False
        self._deaths: list[float] = []

    def run(self) -> int:
        """Until the server ends of its own will, or dies too often; its exit status."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            signal.signal(getattr(signal, name), self._pass_on)
        code = 0
        try:
            while not self._stopping:
                status, was_ready = self._serve_once()
                code = status if status >= 0 else 128 - status
                never = not was_ready and not self._deaths  # it cannot start at all, and said why
                if status == 0 or never:
                    break
                if not self._stopping and not self._may_restart(status):
                    return 1
            return code
        finally:
            for client, _, _ in self._held:
                client.close()
            self._listener.close()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not self._ready:
            return  # whoever is being started reads the file anyway
        if number != signal.SIGHUP:
            self._stopping = True
            if self._ready:  # else who comes now would wait, unheard, for the last answer's end
                self._listener.close()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    # -- one life of the server ---------------------------------------------------

    def _serve_once(self) -> tuple[int, bool]:
        """Its exit status, and whether it ever answered."""
        ours, theirs = socket.socketpair()
        with ours:
            self._child = self._start(theirs)
            theirs.close()
            if self._stopping:  # the signal came when there was nobody to pass it on to
                self._child.terminate()
            was_ready = self._watch(ours)
        status = self._child.wait()
        if self._handing is not None:  # whom it could not hand over is held again
            self._handing.join()
            self._handing = None
        self._child = None
        if status != 0:
            self._settle()
        return status, was_ready

    def _start(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        fds = (self._listener.fileno(), channel.fileno())
        given = ",".join(map(str, (*fds, len(self._deaths))))
        return subprocess.Popen(
            sys.orig_argv, env={**os.environ, CHILD: given}, pass_fds=fds, start_new_session=True
        )

    def _watch(self, channel: socket.socket) -> bool:
        """Hear what the server says until it is gone; hold who comes before it is ready."""
        self._ready = False
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            self._listen(selector)
            while True:
                for key, _ in selector.select(1.0):
                    if key.fileobj is not channel:
                        self._hear(key.fileobj, selector)
                    elif (note := supervisor_link.receive(channel)) is None:
                        was_ready, self._ready = self._ready, False
                        return was_ready
                    elif note.kind == "ready":
                        self._ready = True
                        self._let_go(channel, selector)
                        break  # what else was seen is the server's by now
                    else:
                        self._take(note)

    def _follow(self, note: Note) -> None:
        """Connections, and what came over them that is not a whole request yet."""
        if note.kind == "open" and note.fd is not None:
            self._clients[note.key] = socket.socket(fileno=note.fd)
        elif note.kind == "data":
            self._unread[note.key] = (self._unread.get(note.key, b"") + note.request)[:_MAX_UNREAD]
        else:
            self._unread.pop(note.key, None)
            if note.kind == "closed" and note.key in self._clients:
                self._clients.pop(note.key).close()
            if note.kind == "idle":
                self._answered(note.key)

    def _answered(self, connection: int) -> None:
        """Its last byte is out, also where `done` was never said: a word more would be taken for
        the answer to the next request."""
        for key in [k for k, entry in self._open.items() if entry.connection == connection]:
            self._open.pop(key).client.close()

    def _let_go(self, channel: socket.socket, selector: selectors.BaseSelector) -> None:
        """The server is there: nobody but it hears those who come, and those who waited."""
        for key in list(selector.get_map().values()):
            if key.fileobj is not channel:
                selector.unregister(key.fileobj)
        held, self._held = self._held, []
        # Apart: the server may speak of the first before it has heard of the last.
        self._handing = Thread(target=self._hand_over, args=(channel, held), daemon=True)
        self._handing.start()

    def _hand_over(self, channel: socket.socket, held: list[Held]) -> None:
        """It gets everyone who waited; should it die again, the rest wait."""
        for client, request, headed in held:
            note = Note("adopt", 0, {"headed": headed}, request, client.fileno())
            try:
                supervisor_link.send(channel, note)
                client.close()
            except OSError:
                self._held.append((client, request, headed))

    def _take(self, note: Note) -> None:
        if note.kind == "kept":
            self._unread[note.about["connection"]] = b""  # read whole, and kept as such
        if note.kind in ("open", "data", "idle", "closed"):
            self._follow(note)
        elif note.kind == "kept" and note.fd is not None:
            client = socket.socket(fileno=note.fd)
            about = note.about
            stage = "headed" if about["headed"] else "kept"
            self._open[note.key] = _Open(
                client, note.request, about["path"], about["tries"], about["connection"], stage
            )
        elif note.kind == "done" and note.key in self._open:
            self._open.pop(note.key).client.close()
        elif note.key in self._open:
            self._open[note.key].stage = note.kind

    # -- while there is no server ---------------------------------------------------

    def _rest(self, seconds: float) -> None:
        """Between two servers: who comes is held or told, and a signal to stop ends the rest."""
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            self._listen(selector)
            while not self._stopping and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, 0.2)):
                    self._hear(key.fileobj, selector)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        """For whoever comes, and whoever is held and has said nothing so far."""
        selector.register(self._listener, selectors.EVENT_READ)
        for client, request, _ in self._held:
            if not request:
                selector.register(client, selectors.EVENT_READ)

    def _hear(self, who: object, selector: selectors.BaseSelector) -> None:
        if who is self._listener:
            self._accept(selector)
        else:
            self._look_at(who, selector)  # type: ignore[arg-type]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        if len(self._held) >= _MAX_HELD:
            _answer(client, 503, {"error": {"message": "the server is starting", "code": "busy"}})
        else:
            selector.register(client, selectors.EVENT_READ)
            self._held.append((client, b"", False))

    def _look_at(self, client: socket.socket, selector: selectors.BaseSelector) -> None:
        """Whoever asks how we are is told; everyone else waits for the server, unread."""
        selector.unregister(client)
        try:
            begin = client.recv(64, socket.MSG_PEEK)
        except OSError:
            begin = b""
        if begin.startswith(_HEALTH) or not begin:
            self._held = [held for held in self._held if held[0] is not client]
            status = "restarting" if self._deaths else "loading"
            body = {"status": status, "restarts": len(self._deaths)}
            _answer(client, 503, body, bare=begin.startswith(b"HEAD"))

    # -- after a death ----------------------------------------------------------------

    def _settle(self) -> None:
        """Whose answer had not begun waits for the next server; the others are told."""
        lost, self._open = self._open, {}
        self._save_connections({entry.connection for entry in lost.values()})
        broken = [entry for entry in lost.values() if not self._saves(entry)]
        for entry in broken:
            _break_off(entry)
        self._write_down(broken)
        self._held += [
            (entry.client, entry.request, entry.stage == "headed")
            for entry in lost.values()
            if self._saves(entry)
        ]

    def _save_connections(self, answered: set[int]) -> None:
        """Whoever was not being answered goes on with the next server where this one stopped."""
        for key, client in self._clients.items():
            unread = self._unread.get(key, b"")
            if key in answered or not (unread == b"" or unread.startswith(b"POST /v1/")):
                client.close()
            else:
                self._held.append((client, unread, False))
        self._clients, self._unread = {}, {}

    def _saves(self, entry: _Open) -> bool:
        return entry.stage in ("kept", "headed") and entry.tries + 1 < _MAX_TRIES

    def _write_down(self, broken: list[_Open]) -> None:
        if not broken:
            return
        try:
            written = RequestLog.of(self._read().monitoring)
        except Exception as error:  # whatever it is: the server must come back
            log.error("the lost requests are not in the request log: %s", error)
            return
        if written is not None:
            for entry in broken:
                about = {"endpoint": endpoint_of(entry.path), "status": 500, "error": _ENDED.code}
                written.write({"time": timestamp(), **about})
            written.close()

    def _may_restart(self, status: int) -> bool:
        """Bounded, and slower each time; old deaths are forgiven."""
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < _FORGIVE_S] + [now]
        n = len(self._deaths)
        if n > self._limit:
            log.error("the engine died %d times in ten minutes; giving up", n)
            return False
        wait_s = 0.0 if n == 1 else min(_LONGEST_S, 2.0 ** (n - 2))
        log.error("the engine died (status %d); it is started anew in %g s", status, wait_s)
        self._rest(wait_s)
        return True


def _break_off(entry: _Open) -> None:
    """An error in the form of what was begun: an event, or an answer."""
    body = _ENDED.body_for(entry.path)
    with entry.client as client:
        try:
            client.setblocking(True)
            client.settimeout(1.0)
            if entry.stage in ("begun", "headed"):
                event = f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n".encode()
                client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            else:
                _answer(client, 500, body)
        except OSError:
            return


def _answer(
    client: socket.socket, status: int, body: dict[str, Any], *, bare: bool = False
) -> None:
    """`bare`: the headers of it, which is all that HEAD asks for."""
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    head += f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
    with client:
        try:
            client.setblocking(True)
            client.settimeout(1.0)
            client.sendall(head.encode() + (b"" if bare else text))
            client.shutdown(socket.SHUT_WR)
        except OSError:
            return

"""The engine process's end of the socket: written from any thread, without ever waiting.

Knows bytes and one file descriptor; what is said is the wire's business. The engine's own thread
writes at the end of a pass, so a front that reads slowly must not hold it up: what does not fit
into the socket waits here, and a front that has not read so much for so long is taken for dead.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable

# A thousand tokens a second are some 100 kB of it: a front that lags by minutes has stopped.
MOST_WAITING = 64 << 20
_PIECE = 1 << 18


class Link:
    """One stream socket to the front."""

    def __init__(self, sock: socket.socket, most_waiting: int = MOST_WAITING) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._most = most_waiting
        self._waiting: deque[bytes] = deque()
        self._n_waiting = 0
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self.broken = False  # the front reads no more

    def send(self, frame: bytes) -> None:
        """In the order of the calls; nothing where nobody reads any more."""
        with self._lock:
            if self.broken:
                return
            if not self._waiting:
                frame = self._write(frame)
            if frame and not self.broken:
                self._waiting.append(frame)
                self._n_waiting += len(frame)
                if self._n_waiting > self._most:
                    self.broken = True
        if frame or self.broken:
            self._nudge()

    def read(self, take: Callable[[bytes], None]) -> None:
        """Pass on what comes and write what waits, until the front is gone; one thread's work."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while not self.broken:
                writes = selectors.EVENT_WRITE if self._waiting else 0
                selector.modify(self._socket, selectors.EVENT_READ | writes)
                for key, events in selector.select():
                    if key.fileobj is self._woken:
                        self._woken.recv(_PIECE)
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._flush()
                    if events & selectors.EVENT_READ and not self._pass_on(take):
                        return

    def drain(self, seconds: float) -> None:
        """The last words: wait so long for the front to take what is waiting."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_WRITE)
            while self._waiting and not self.broken and selector.select(seconds):
                self._flush()

    def end(self) -> None:
        """Nothing is said or heard any more: whoever reads returns."""
        self.broken = True
        self._nudge()

    def close(self) -> None:
        for sock in (self._socket, self._wake, self._woken):
            sock.close()

    def _pass_on(self, take: Callable[[bytes], None]) -> bool:
        try:
            data = self._socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if data:
            take(data)
        return bool(data)

    def _flush(self) -> None:
        with self._lock:
            while self._waiting and not self.broken:
                frame = self._waiting.popleft()
                rest = self._write(frame)
                self._n_waiting -= len(frame) - len(rest)
                if rest:
                    self._waiting.appendleft(rest)
                    return

    def _write(self, frame: bytes) -> bytes:
        """What did not fit."""
        try:
            return frame[self._socket.send(frame) :]
        except (BlockingIOError, InterruptedError):
            return frame
        except OSError:
            self.broken = True
            return b""

    def _nudge(self) -> None:
        """The reader writes what is left, or sees that it is over."""
        try:
            self._wake.send(b"x")
        except OSError:  # it is awake already, or gone
            return

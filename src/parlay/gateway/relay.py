"""One attempt at one server: send, wait until it begins to answer, pass on what comes.

Nothing is buffered past the first text: the next piece is read when the last one is gone.
Knows HTTP and OpenAI's stream; knows no client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from parlay.front import errors as failures
from parlay.front.remote.server import Server as Upstream
from parlay.gateway.asking import Asked
from parlay.reading import answers
from parlay.reading.answers import AnswerEvent
from parlay.reading.typed_answers import ENDS, is_typed
from parlay.reading.typed_answers import event_of as typed_event

MAX_LINE = 4_000_000
_FAREWELL_S = 0.5
MAX_FIRST_PIECES = 256  # pieces without text before the first one; more is no answer
_END = b"[DONE]"
# What another server may still answer well; anything else is the request's own fault.
_RETRY = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
_OWN_FAULT = frozenset({401, 403, 404})  # the gateway's key or address is wrong there


@dataclass(eq=False)
class UpstreamFailed(Exception):
    """A server did not begin to answer, or stopped in the middle."""

    reason: str  # refused, cut, timeout, http_500, garbled, too_large
    gone: bool = False  # nobody listens
    answer: failures.Failure | None = None  # what to tell a client, if nobody does better


@dataclass(frozen=True, slots=True)
class RelayedPiece:
    """One chunk: as an object, and what it says."""

    chunk: dict[str, Any]
    event: AnswerEvent


class Attempt:
    """A request sent to one server. Close it, however it ends."""

    def __init__(self, up: Upstream, asked: Asked, stall_s: float, max_bytes: int) -> None:
        self.up = up
        self._asked = asked
        self._stall_s = stall_s
        self._max_bytes = max_bytes
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[list[RelayedPiece]] | None = None
        self.first_pieces: list[RelayedPiece] = []
        self.done = False  # the end mark came
        # The engine has the client's format itself: nothing is translated.
        self.native = asked.original is not None and asked.endpoint in up.pool.formats

    async def begin(self, left_s: float) -> None:
        """Returns when it answers: the first text of a stream, or all of a whole answer."""
        try:
            await asyncio.wait_for(self._begin(left_s), left_s)
        except asyncio.TimeoutError:
            raise UpstreamFailed("timeout", answer=failures.timed_out(left_s)) from None

    async def _begin(self, left_s: float) -> None:
        silence = min(self._stall_s, left_s) if self._asked.stream else left_s
        try:
            await self._send(silence)
            if self._asked.stream:
                await self._open()
            else:
                self.first_pieces = [await self._whole()]
        except httpx.ConnectError:
            raise UpstreamFailed("refused", gone=True) from None
        except httpx.TimeoutException:
            raise UpstreamFailed("timeout", answer=failures.timed_out(silence)) from None
        except httpx.HTTPError:
            raise UpstreamFailed("cut") from None

    async def _send(self, silence: float) -> None:
        http = self.up.http
        timeout = httpx.Timeout(silence, connect=http.timeout.connect, pool=silence)
        body = self._asked.body_for(self.up.model, native=self.native)
        path = self._asked.path(native=self.native)
        request = http.build_request("POST", path, json=body, timeout=timeout)
        self._response = await http.send(request, stream=True)
        if self._response.status_code != 200:
            raise _refusal(self._response, await self._text(MAX_LINE))

    async def _text(self, limit: int) -> bytes:
        assert self._response is not None
        found = bytearray()
        async for data in self._response.aiter_bytes():
            found += data
            if len(found) > limit:
                raise UpstreamFailed("too_large", answer=_too_large())
        return bytes(found)

    async def _whole(self) -> RelayedPiece:
        chunk = answers.object_of(await self._text(self._max_bytes))
        if not chunk or not ("choices" in chunk or (self.native and is_typed(chunk))):
            raise UpstreamFailed("garbled")
        return RelayedPiece(chunk, self._event(chunk))

    def _event(self, chunk: dict[str, Any]) -> AnswerEvent:
        return typed_event(chunk) if self.native else answers.event_of(chunk)

    async def _open(self) -> None:
        """Hold everything back until there is text: until then another server could take over."""
        self._pieces = self._read()
        async for pieces in self._pieces:
            self.first_pieces += pieces
            if self.done or any(p.event.text or p.event.finish_reason for p in pieces):
                break
            if len(self.first_pieces) > MAX_FIRST_PIECES:
                raise UpstreamFailed("garbled")
        if not self.first_pieces:
            raise UpstreamFailed("cut")

    # -- the rest of a stream -----------------------------------------------------

    async def rest(self, deadline: float) -> AsyncIterator[list[RelayedPiece]]:
        """What comes after the first pieces, as it comes; ends silently at the deadline."""
        if self._pieces is None:
            return
        try:
            while True:
                left = deadline - time.perf_counter()
                coming = anext(self._pieces)
                # A timer for every piece would cost more than the piece.
                wait = coming if left > self._stall_s else asyncio.wait_for(coming, max(0.0, left))
                yield await wait
                if self.done:
                    return
        except (StopAsyncIteration, asyncio.TimeoutError):
            return
        except httpx.TimeoutException:
            raise UpstreamFailed("timeout") from None
        except httpx.HTTPError:
            raise UpstreamFailed("cut") from None

    async def _read(self) -> AsyncIterator[list[RelayedPiece]]:
        assert self._response is not None
        rest = b""
        n_bytes = 0
        async for data in self._response.aiter_bytes():
            n_bytes += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE or n_bytes > self._max_bytes:
                raise UpstreamFailed("too_large", answer=_too_large())
            if self.done:
                continue  # nothing counts any more
            pieces = self._parse(lines)
            if pieces or self.done:
                yield pieces
        if not self.done and (pieces := self._parse([rest])):
            yield pieces

    def _parse(self, lines: list[bytes]) -> list[RelayedPiece]:
        found = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blanks and comments
            data = line[5:].strip()
            if data == _END:
                self.done = True
                break
            chunk = answers.object_of(data)
            if chunk is None:
                raise UpstreamFailed("garbled")
            event = self._event(chunk)
            self.done = self.native and chunk.get("type") in ENDS
            if event.error is not None:
                raise UpstreamFailed("error", answer=_told(chunk, event.error))
            found.append(RelayedPiece(chunk, event))
            if self.done:
                break
        return found

    async def close(self) -> None:
        """Let go: a server that still writes sees that nobody reads."""
        if self._response is None:
            return
        with suppress(httpx.HTTPError, asyncio.TimeoutError):
            if self.done and self._pieces is not None:  # read to the end it can be used again
                await asyncio.wait_for(anext(self._pieces, None), _FAREWELL_S)
        with suppress(httpx.HTTPError):
            await self._response.aclose()


# -- what others say when they say no -----------------------------------------------------------


def _refusal(response: httpx.Response, body: bytes) -> Exception:
    status = response.status_code
    chunk = answers.object_of(body) or {}
    message = answers.error_of(chunk) or answers.error_of({"error": chunk.get("message")})
    if status in _RETRY:
        known = _told(chunk, message) if message and status not in _OWN_FAULT else None
        if status == 429:
            wait = response.headers.get("retry-after", "")
            known = failures.busy(int(wait) if wait.isdigit() and int(wait) < 3600 else 1)
        return UpstreamFailed(f"http_{status}", answer=known)
    error = answers.mapping(chunk.get("error")) or chunk
    return failures.Failure(
        status if 400 <= status < 600 else 502,
        message or "the engine refused this request and did not say why",
        answers.string(error.get("type")) or "invalid_request_error",
        answers.string(error.get("code")),
        answers.string(error.get("param")),
    )


def _told(chunk: dict[str, Any], message: str) -> failures.Failure | None:
    """An engine's own error in our form; what broke inside it is not for its clients."""
    code = answers.mapping(chunk.get("error")).get("code")
    if isinstance(code, int) and 400 <= code < 500:
        return failures.Failure(code, message, code="upstream")
    return None


def _too_large() -> failures.Failure:
    return failures.Failure(
        502, "the engine's answer is larger than gateway.max_answer_mb", "server_error", "upstream"
    )

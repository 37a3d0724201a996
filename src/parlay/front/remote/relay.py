"""One attempt at one remote server: sent, begun, and what comes of it, chunk by chunk.

Nothing is buffered past the first words: the next chunk is read when the last one is gone. Knows
HTTP and OpenAI's stream; knows no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from parlay.front import errors as failures
from parlay.front.errors import Failure
from parlay.front.remote.server import Server
from parlay.reading import answers

MAX_LINE = 4_000_000
_FAREWELL_S = 0.5
MAX_FIRST_CHUNKS = 256  # without a word before the first one; more is no answer
_END = b"[DONE]"
# What another server may still answer well; anything else is the request's own fault.
_RETRY = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
_OWN_FAULT = frozenset({401, 403, 404})  # the key or address that stands in the deployment is wrong
Chunk = dict[str, Any]


@dataclass(eq=False)
class ServerFailed(Exception):
    """A server did not begin to answer, or stopped in the midst."""

    reason: str  # refused, cut, timeout, http_500, garbled, too_large
    gone: bool = False  # nobody listens
    answer: Failure | None = None  # what to tell a client, if nobody does better


class Attempt:
    """A request sent to one server. Close it, however it ends."""

    def __init__(self, server: Server, path: str, body: Chunk, stall_s: float, most: int) -> None:
        self.server = server
        self._path, self._body = path, body
        self._stall_s, self._most = stall_s, most
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[list[Chunk]] | None = None
        self.first: list[Chunk] = []  # up to the first words
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the end mark came."""
        return self._done

    async def begin(self) -> None:
        """Returns with the first words: until then another server could take over."""
        try:
            await self._send()
            self._chunks = self._read()
            async for chunks in self._chunks:
                self.first += chunks
                if self.done or any(map(_says_something, chunks)):
                    return
                if len(self.first) > MAX_FIRST_CHUNKS:
                    raise ServerFailed("garbled")
        except httpx.ConnectError:
            raise ServerFailed("refused", gone=True) from None
        except httpx.TimeoutException:
            answer = failures.timed_out(self._stall_s)
            raise ServerFailed("timeout", answer=answer) from None
        except httpx.HTTPError:
            raise ServerFailed("cut") from None
        if not self.first:
            raise ServerFailed("cut")

    async def _send(self) -> None:
        http = self.server.http
        timeout = httpx.Timeout(self._stall_s, connect=http.timeout.connect, pool=self._stall_s)
        request = http.build_request("POST", self._path, json=self._body, timeout=timeout)
        self._response = await http.send(request, stream=True)
        if self._response.status_code != 200:
            text = bytearray()
            async for data in self._response.aiter_bytes():
                text += data
                if len(text) > MAX_LINE:
                    break
            raise _refusal(self._response, bytes(text))

    async def rest(self) -> AsyncIterator[list[Chunk]]:
        """What comes after the first words, as it comes."""
        if self._chunks is None or self.done:
            return
        try:
            async for chunks in self._chunks:
                yield chunks
                if self._done:
                    return
        except httpx.TimeoutException:
            raise ServerFailed("timeout") from None
        except httpx.HTTPError:
            raise ServerFailed("cut") from None

    async def _read(self) -> AsyncIterator[list[Chunk]]:
        assert self._response is not None
        rest, n_bytes = b"", 0
        async for data in self._response.aiter_bytes():
            n_bytes += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE or n_bytes > self._most:
                raise ServerFailed("too_large", answer=_TOO_LARGE)
            if self.done:
                continue  # nothing counts any more
            chunks = self._parse(lines)
            if chunks or self.done:
                yield chunks
        if not self.done and (chunks := self._parse([rest])):
            yield chunks

    def _parse(self, lines: list[bytes]) -> list[Chunk]:
        found = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blanks and comments
            data = line[5:].strip()
            if data == _END:
                self._done = True
                break
            chunk = answers.object_of(data)
            if chunk is None:
                raise ServerFailed("garbled")
            if (message := answers.error_of(chunk)) is not None:
                raise ServerFailed("error", answer=_told(chunk, message))
            found.append(chunk)
        return found

    async def close(self) -> None:
        """Let go: a server that still writes sees that nobody reads."""
        if self._response is None:
            return
        with suppress(httpx.HTTPError, asyncio.TimeoutError, ServerFailed):
            if self.done and self._chunks is not None:  # read to the end it can be used again
                await asyncio.wait_for(anext(self._chunks, None), _FAREWELL_S)
        with suppress(httpx.HTTPError):
            await self._response.aclose()


def _says_something(chunk: Chunk) -> bool:
    event = answers.event_of(chunk)
    return bool(event.text or event.finish_reason)


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
        return ServerFailed(f"http_{status}", answer=known)
    error = answers.mapping(chunk.get("error")) or chunk
    return Failure(
        status if 400 <= status < 600 else 502,
        message or "the server refused this request and did not say why",
        answers.string(error.get("type")) or "invalid_request_error",
        answers.string(error.get("code")),
        answers.string(error.get("param")),
    )


def _told(chunk: Chunk, message: str) -> Failure | None:
    """A server's own error in our form; what broke inside it is not for its clients."""
    code = answers.mapping(chunk.get("error")).get("code")
    if isinstance(code, int) and 400 <= code < 500:
        return Failure(code, message, code="upstream")
    return None


_TOO_LARGE = Failure(
    502, "the server's answer is larger than a gateway passes on", "server_error", "upstream"
)

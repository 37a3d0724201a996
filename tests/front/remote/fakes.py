"""Engines made of a few lines: OpenAI's routes on loopback, well or broken in every way.

Raw sockets, so that a connection can be cut in the middle of a chunk.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from parlay.front.life import take_no_more
from tests.serving import PATIENCE_S, kept_port

WORDS = ["The", " rain", " falls", " on", " the", " roof", "."]


class Engine:
    """One fake server. Its attributes may be changed while it runs."""

    def __init__(self, name: str = "m", *, speculates: bool = False, delay_s: float = 0.0) -> None:
        self.name = name
        self.speculates = speculates
        self.delay_s = delay_s  # between two words
        self.first_s = 0.0  # before the first one
        self.held = False  # nothing is said until it is not
        self.mode = "ok"
        self.health = 200
        self.words = list(WORDS)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.n_left = 0  # clients that went away in the middle
        self.n_sent = 0  # bytes of streams
        self.n_looks = 0  # health checks that were read
        self.drafts = self.drafted = self.accepted = 0
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._port = 0

    # -- life -------------------------------------------------------------------

    async def start(self, port: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._port = port or self._port
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        assert self._server is not None
        await take_no_more([self._server])
        self._server.close()
        while self._open:
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await _turns()

    def call(self, work: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def kill(self) -> None:
        """Everything it was doing ends, and nobody listens any more."""
        self.call(self.stop())

    def revive(self) -> None:
        self.call(self.start())

    # -- HTTP -------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        # Also where the task is ended before it began.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.n_left += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "POST":
            self.headers.append(headers)
            return await self._answer(path, json.loads(body), reader, writer)
        await self._get(path, writer)
        return True

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/health":
            self.n_looks += 1
            if self.mode == "hang_health":
                await asyncio.sleep(60)
            await _reply(writer, self.health, b"{}")
        elif path == "/v1/models":
            row = {"id": self.name, "object": "model", "owned_by": "vllm"}
            await _reply(writer, 200, json.dumps({"data": [row]}).encode())
        elif path == "/metrics" and self.speculates:
            await _reply(writer, 200, self._page())
        else:
            await _reply(writer, 404, b"{}")

    def _page(self) -> bytes:
        rows = []
        for name, value in (
            ("num_drafts", self.drafts),
            ("num_draft_tokens", self.drafted),
            ("num_accepted_tokens", self.accepted),
        ):
            half = value // 2  # two engines behind one page
            for engine, part in ((0, half), (1, value - half)):
                rows.append(f'vllm:spec_decode_{name}_total{{engine="{engine}"}} {part}.0')
        return "\n".join([*rows, ""]).encode()

    async def _answer(
        self,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        self.asked.append(body)
        while self.held:
            await asyncio.sleep(0.01)
        chat = path == "/v1/chat/completions"
        if self.mode in ("http_500", "http_429", "http_400", "http_401"):
            status = int(self.mode[-3:])
            error = {"message": "bad\nthing", "type": "SomeError", "param": "x", "code": status}
            await _reply(writer, status, json.dumps({"error": error}).encode())
            return True
        if self.mode == "hang":
            await asyncio.sleep(60)
        if self.mode == "cut_once":
            self.mode = "ok"
            return False
        if self.mode == "cut_early":
            return False
        if self.speculates:
            self.drafts, self.drafted = self.drafts + 2, self.drafted + 6
            self.accepted += 3
        if body.get("stream"):
            return await self._stream(chat, body, reader, writer)
        await asyncio.sleep(self.first_s + self.delay_s * len(self.words))
        if self.mode == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
            await writer.drain()
            return False
        if self.mode == "garbled":
            await _reply(writer, 200, b"<html>")
            return True
        if self.mode == "oversize":
            await _reply(writer, 200, b"x" * 300_000)
            return True
        text = "".join(self.words)
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "stop"}
        whole = {**self._head(chat), "choices": [choice], **self._numbers()}
        await _reply(writer, 200, json.dumps(whole).encode())
        return True

    async def _stream(
        self,
        chat: bool,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        writer.write(head + b"\r\n\r\n")
        gone = asyncio.create_task(reader.read(1))
        try:
            if chat:
                await self._event(writer, self._chunk({"delta": {"role": "assistant"}}))
            await asyncio.sleep(self.first_s)
            if self.mode == "cut_opening":
                return False
            for i, word in enumerate(self.words):
                said = {"delta": {"content": word}} if chat else {"text": word}
                await self._event(writer, self._chunk(said))
                await asyncio.sleep(self.delay_s)
                if gone.done():
                    raise ConnectionError
                if i == 2 and self.mode == "cut":
                    return False
                if i == 2 and self.mode == "stall":
                    await asyncio.sleep(60)
                if i == 2 and self.mode == "garbled":
                    await self._raw(writer, b"data: {nonsense\n\n")
                if i == 2 and self.mode == "error":
                    error = {"message": "out of /secret/path", "code": 500}
                    await self._event(writer, {"error": error})
                if i == 2 and self.mode == "oversize":
                    await self._raw(writer, b"data: " + b"x" * 300_000)
                    await self._raw(writer, b"x" * 5_000_000)
            end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            await self._event(writer, self._chunk(end, "stop"))
            if self.mode == "cut_farewell":
                return False
            if body.get("stream_options", {}).get("include_usage"):
                await self._event(writer, {**self._head(chat), "choices": [], **self._numbers()})
            await self._raw(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            gone.cancel()
        return False

    async def _event(self, writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
        await self._raw(writer, b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def _raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        self.n_sent += len(data)

    def _head(self, chat: bool = True) -> dict[str, Any]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": "x-1", "object": kind, "created": 1, "model": self.name}

    def _chunk(self, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**self._head(), "choices": [{"index": 0, **said, "finish_reason": reason}]}

    def _numbers(self) -> dict[str, Any]:
        usage = {"prompt_tokens": 9, "completion_tokens": len(self.words), "total_tokens": 16}
        told = {
            "acceptance_histogram": [0, 1, 1, 0],
            "num_spec_steps": 2,
            "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 6,
        }
        metrics = {"metrics": {"speculative_decoding": told}} if self.mode == "telling" else {}
        return {"usage": usage, **metrics}


async def _reply(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


@contextmanager
def engines(*given: Engine) -> Iterator[tuple[Engine, ...]]:
    """Fakes that run in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-engines")
    thread.start()
    ports = ExitStack()  # also while an engine is dead: whoever took its port would answer for it
    try:
        for engine in given:
            port = ports.enter_context(kept_port())
            asyncio.run_coroutine_threadsafe(engine.start(port), loop).result(PATIENCE_S)
        yield given
    finally:
        ports.close()
        for engine in given:
            asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(PATIENCE_S)
        asyncio.run_coroutine_threadsafe(_turns(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


async def _turns() -> None:
    """Transports close some turns of the loop after they were told to."""
    for _ in range(10):
        await asyncio.sleep(0)

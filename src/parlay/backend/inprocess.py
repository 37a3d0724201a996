"""The backend whose engine is in this process: from the engine's thread to the event loop.

Knows asks and how they are answered; knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from parlay.ask import Ask, Done, Facts, Refused, Reply, Token
from parlay.backend.answering import Answering, Making
from parlay.refusals import refusal

log = logging.getLogger("parlay.server")
_READING_S = 5.0  # between words about a prompt that is being read


class InProcess:
    """Answers by an engine of our own; everything here runs on one event loop."""

    def __init__(
        self, answering: Answering, names: Callable[[], tuple[str, ...]], build: str = ""
    ) -> None:
        """`names`: by which the model may be asked for."""
        self._answering = answering
        self._names = names
        self._build = build
        self._mailbox: Mailbox | None = None  # made with the first request
        self.open: dict[str, Making] = {}  # by the answer's id
        self.on_begin: Callable[[Making], None] = lambda _making: None

    @property
    def facts(self) -> Facts:
        n_slots = self._answering.engine.settings.context.n_sequences
        return self._answering.prompter.facts(self._names(), n_slots, self._build)

    async def answer(
        self, ask: Ask, *, whole: bool = False
    ) -> AsyncGenerator[Sequence[Reply], None]:
        """What came since the last look, at once. This engine dies with its process, so that
        nothing is ever begun anew, `whole` or not."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None:
            self._mailbox = Mailbox(loop)
        stream = Stream(self._mailbox)
        beginning = asyncio.ensure_future(
            asyncio.to_thread(self._answering.begin, ask, stream.tell)
        )
        beginning.add_done_callback(stream.begun)
        try:
            try:
                making = await asyncio.shield(beginning)
            except Exception as error:
                refused = refusal(error)
                if refused.code is None and refused.status >= 500:
                    log.error("a request could not be begun", exc_info=error)
                yield (refused,)
                return
            self.open[ask.id] = making
            self.on_begin(making)
            if ask.time_limit_s is not None:
                stream.timer = loop.call_later(ask.time_limit_s, making.expire)
            over = False
            while not over:
                patience_s = _READING_S if making.reads_prompts else None
                batch = await stream.take(patience_s) or making.reading()
                over = bool(batch) and isinstance(batch[-1], (Done, Refused))
                if batch:
                    yield batch
        finally:
            stream.close()
            self.open.pop(ask.id, None)

    async def render(self, ask: Ask) -> str:
        return await asyncio.to_thread(self._answering.prompter.render, ask)

    async def count(self, ask: Ask) -> int:
        return await asyncio.to_thread(self._answering.prompter.count, ask)

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        """All of it off the event loop: a million tokens take seconds."""
        vocabulary = self._answering.engine.model.vocabulary

        def work() -> list[Token]:
            found = vocabulary.tokenize(text, bos=add_special, special=parse_special)
            pieces = {t: vocabulary.text_of(t) for t in set(found)} if with_pieces else {}
            return [Token(token, pieces.get(token, "")) for token in found]

        return await asyncio.to_thread(work)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        vocabulary = self._answering.engine.model.vocabulary
        return await asyncio.to_thread(vocabulary.detokenize, list(tokens))

    @property
    def n_open(self) -> int:
        """Sequences in slots and in the queue."""
        return sum(making.n_open for making in self.open.values())

    def cancel_all(self) -> None:
        """Answers end where they are, and say why."""
        for making in tuple(self.open.values()):
            making.cancel()


class Stream:
    """What was told of one request and not taken yet."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._mailbox = mailbox
        self._inbox: list[Reply] = []
        self._news: asyncio.Future[None] | None = None
        self._making: Making | None = None
        self._closed = False

    def begun(self, beginning: asyncio.Future[Making]) -> None:
        """Also where nobody waits for it any more: then it is taken back."""
        if not beginning.cancelled() and beginning.exception() is None:
            self._making = beginning.result()
            if self._closed:
                self._making.cancel()

    def tell(self, replies: Sequence[Reply]) -> None:
        """Called on any thread."""
        self._mailbox.put(self, replies)

    def arrive(self, replies: Sequence[Reply]) -> None:
        self._inbox += replies
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def take(self, patience_s: float | None) -> list[Reply]:
        """All that has come; nothing where nothing came for so long."""
        if not self._inbox:
            self._news = asyncio.get_running_loop().create_future()
            if patience_s is None:
                await self._news
            else:
                await asyncio.wait({self._news}, timeout=patience_s)
        found, self._inbox = self._inbox, []
        return found

    def close(self) -> None:
        """Nobody listens any more: what is not done is given up."""
        self._closed = True
        if self.timer is not None:
            self.timer.cancel()
        if self._making is not None:
            self._making.cancel()


class Receiver(Protocol):
    """Somebody on the event loop who waits."""

    def arrive(self, replies: Sequence[Reply]) -> None: ...

    def close(self) -> None: ...


class Mailbox:
    """Filled by the engine's thread, emptied on the loop, which is woken once for all that came.

    On a CPU whose cores all compute, each wake-up takes one of them away from the pass, so eight
    streams of one pass must not cost eight of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Receiver, Sequence[Reply]]] = deque()
        self._woken = False

    def put(self, receiver: Receiver, replies: Sequence[Reply]) -> None:
        """Called on any thread."""
        self._items.append((receiver, replies))
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the event loop has ended: nobody waits for this any more
            receiver.close()

    def _deliver(self) -> None:
        self._woken = False  # first: what comes from now on wakes the loop again
        while self._items:
            receiver, replies = self._items.popleft()
            receiver.arrive(replies)

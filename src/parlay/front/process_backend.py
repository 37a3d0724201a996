"""A backend in a process of its own: its requests, its deaths, and who is answered after them.

Knows asks and one engine process at a time, or two while one takes over from the other. A request
of which nothing was handed on is asked again after a death, unless it was there at two: it may be
their cause. Knows no HTTP and no llama.cpp.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from parlay.ask import (
    Accepted,
    Ask,
    Done,
    End,
    Facts,
    Pieces,
    Reading,
    Refused,
    Reply,
    SoFar,
    State,
    Token,
)
from parlay.backend import wire
from parlay.deployment import DeploymentError
from parlay.errors import BadRequest, LoadError, ModelFileError, ModelUnavailable, ParlayError
from parlay.front.engine_process import COMMAND, EngineProcess, Gone, Hear
from parlay.front.errors import Failure, of_refused

log = logging.getLogger("parlay.server")
T = TypeVar("T")
# Asks beyond its slots that an engine process has: the next one is there when a slot comes free.
_FEW = 4
_MOST_DEATHS = 2  # a request that was there at so many may be their cause
_FORGIVEN_S = 600.0
_LONGEST_PAUSE_S = 30.0
_WATCH_S = 1.0
# What one client has not taken yet; whoever lags by more is let go. A long answer is a tenth.
MOST_UNREAD = 4 << 20
_STOP_S = 20.0  # for keeping what was learned, when it is told to stop

ENGINE_DIED = Refused(
    500, "the engine died while it made this answer; send it again", "server_error", "engine_died"
)
_GIVEN_UP = Refused(
    503, "the engine died too often and is not started again", "server_error", "engine_died"
)
_CLOSED = Refused(503, "the server is shutting down", "server_error", "shutting_down", None, 5)
_UNREAD = Refused(408, "the answer was not read for too long", "server_error", "stalled")
_KINDS: dict[str, type[ParlayError]] = {
    kind.__name__: kind for kind in (DeploymentError, LoadError, ModelFileError, ModelUnavailable)
}
_NOT_THERE = Failure(
    503, "the engine is being started; try again", "server_error", "loading", retry_after=5
)


class Unable(Exception):
    """The engine cannot be started at all; `kind` is the error's class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message

    def as_error(self) -> ParlayError:
        """As it would have been raised here."""
        kind = _KINDS.get(self.kind, ParlayError)
        return kind(self.message)


class Stream:
    """One request: what came for it and was not taken yet."""

    def __init__(self, number: int, ask: Ask, whole: bool) -> None:
        self.number = number
        self.frame = wire.frame(wire.Answer(number, ask))
        self.n_answers = ask.n * len(ask.prompts or (0,))
        self.process: EngineProcess | None = None  # that has it
        self.n_deaths = 0
        self.over = False
        self._whole = whole  # nothing is handed on before its end
        self._accepted = False
        self._begun = False  # something of the answer was handed on
        self._came: list[Reply] = []
        self._n_bytes = 0
        self._news = asyncio.Event()

    @property
    def can_begin_anew(self) -> bool:
        return not self._begun and self.n_deaths < _MOST_DEATHS

    @property
    def lags(self) -> bool:
        """Whether more is waiting for its client than may."""
        return self._n_bytes > MOST_UNREAD

    def put(self, replies: Sequence[Reply]) -> None:
        if self.over:
            return
        for reply in replies:
            self._came.append(reply)
            if isinstance(reply, Pieces):
                self._n_bytes += sum(map(len, reply.texts)) + 32 * len(reply.texts)
            elif isinstance(reply, (Done, Refused)):
                self.over = True
        self._news.set()

    def begin_anew(self) -> None:
        """What came from the process that died is forgotten."""
        self.process = None
        self._came = [reply for reply in self._came if isinstance(reply, Accepted)]
        self._n_bytes = 0

    async def take(self) -> list[Reply]:
        """Everything that may be handed on, once there is something."""
        while True:
            await self._news.wait()
            self._news.clear()
            found = [reply for reply in self._came if self._may_go(reply)]
            self._came = [reply for reply in self._came if not self._may_go(reply)]
            again = [reply for reply in found if isinstance(reply, Accepted)]
            if again and self._accepted:
                found.remove(again[0])  # by the process before
            self._accepted = self._accepted or bool(again)
            if any(isinstance(reply, (Pieces, End)) for reply in found):
                self._begun = True
                self._n_bytes = 0
            if found:
                return found

    def _may_go(self, reply: Reply) -> bool:
        early = isinstance(reply, (Accepted, Reading, SoFar))
        return early or self.over or not self._whole


class ProcessBackend:
    """One model in an engine process; it is begun anew when it dies."""

    def __init__(
        self,
        hello: wire.Hello,
        *,
        max_restarts: int,
        most_pass_s: float,
        alert: Callable[[str, str | None], None],
        given_up: Callable[[], None],
        command: Sequence[str] = COMMAND,
        process: Callable[[Hear, Gone], EngineProcess] = EngineProcess,
    ) -> None:
        """`most_pass_s`: a pass that takes longer does not end. `given_up`: it died too often."""
        self._hello, self._command, self._make = hello, command, process
        self._max_restarts, self._most_pass_s = max_restarts, most_pass_s
        self._alert, self._on_given_up = alert, given_up
        self._numbers = itertools.count(1)
        self._waiting: deque[Stream] = deque()
        self._sent: dict[int, Stream] = {}
        self._calls: dict[int, tuple[EngineProcess, asyncio.Future[Any]]] = {}
        self._process: EngineProcess | None = None  # that is asked
        self._coming: EngineProcess | None = None  # being loaded
        self._ready: asyncio.Future[Facts] | None = None  # of the one that is coming
        self._facts: Facts | None = None
        self._deaths: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal: Refused | None = None  # for everyone who asks from now on
        self._holding = False  # nobody is sent on: one engine waits for another's end

    # -- its life -------------------------------------------------------------

    async def start(self) -> Facts:
        """The first time; raises Unable where it cannot be loaded."""
        facts = await self._load(self._hello)
        self._later(self._watch())
        return facts

    async def _load(self, hello: wire.Hello) -> Facts:
        """Begin a process and wait until it is ready; it is asked from then on."""
        ready = self._ready = asyncio.get_running_loop().create_future()
        coming = self._coming = self._make(self._hear, self._gone)
        await coming.start(self._command, hello)
        facts: Facts = await ready
        before, self._process, self._coming = self._process, coming, None
        self._facts, self._hello = facts, hello
        if before is not None:
            self._later(self._retire(before))
        self._dispatch()
        return facts

    async def replace(self, deployment: dict[str, Any], *, beside: bool) -> None:
        """Another engine takes over when it is ready; where both do not fit, after a drain.

        One that cannot be loaded changes nothing.
        """
        hello, before = wire.Hello(wire.VERSION, deployment), self._hello
        if beside or self._process is None:
            await self._load(hello)
            return
        self._holding = True
        try:
            old, self._process = self._process, None
            await self._retire(old)
            try:
                await self._load(hello)
            except Unable:
                await self._load(before)
                raise
        finally:
            self._holding = False
            self._dispatch()

    async def _retire(self, old: EngineProcess) -> None:
        """Its last answers are made to their ends."""
        while any(stream.process is old for stream in self._sent.values()):
            await asyncio.sleep(0.05)
        await old.stop(_STOP_S)

    def _gone(self, process: EngineProcess, status: int) -> None:
        """A process has ended, asked to or not."""
        for number, (asked, result) in list(self._calls.items()):
            if asked is process:
                del self._calls[number]
                if not result.done():
                    result.set_exception(_NOT_THERE)
        if process is self._coming:
            self._coming = None
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(Unable("ParlayError", _ended_early(status)))
            return
        lost = [stream for stream in self._sent.values() if stream.process is process]
        if process is self._process:
            self._process = None
            if self._refusal is None:
                self._later(self._begin_anew(status))
        self._settle(lost)

    def _settle(self, lost: Sequence[Stream]) -> None:
        """Of whom nothing was handed on waits for the next process; the others are told."""
        again = []
        for stream in lost:
            del self._sent[stream.number]
            stream.n_deaths += 1
            if stream.can_begin_anew and self._refusal is None:
                stream.begin_anew()
                again.append(stream)
            else:
                stream.put((self._refusal or ENGINE_DIED,))
        self._waiting.extendleft(reversed(again))

    async def _begin_anew(self, status: int) -> None:
        """Bounded, and slower each time; old deaths are forgiven."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            self._deaths = [at for at in self._deaths if now - at < _FORGIVEN_S] + [now]
            n = len(self._deaths)
            if n > self._max_restarts:
                log.error("the engine died %d time(s) in ten minutes; giving up", n)
                self._give_up(_GIVEN_UP)
                self._on_given_up()
                return
            pause_s = 0.0 if n == 1 else min(_LONGEST_PAUSE_S, 2.0 ** (n - 2))
            log.error("the engine died (status %d); it is started anew in %g s", status, pause_s)
            self._alert("engine", f"the engine died (status {status}) and is started anew")
            await asyncio.sleep(pause_s)
            try:
                await self._load(self._hello)
            except Unable as error:
                log.error("the engine could not be started anew: %s", error.message)
                continue
            self._alert("engine", None)
            return

    def _give_up(self, refusal: Refused) -> None:
        """Everybody is told, and nobody is asked any more."""
        self._refusal = self._refusal or refusal
        for stream in (*self._waiting, *self._sent.values()):
            stream.put((refusal,))
        self._waiting.clear()

    async def _watch(self) -> None:
        """End a process of whose work nothing is heard: a pass that does not end, or a hang."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            process = self._process
            if process is not None and loop.time() - process.heard > self._most_pass_s:
                log.error("nothing was heard of the engine for %g s", self._most_pass_s)
                process.kill()

    # -- what it says ---------------------------------------------------------

    def _hear(self, process: EngineProcess, message: wire.FromEngine) -> None:
        if isinstance(message, wire.Told):
            for number, replies in message.parts:
                stream = self._sent.get(number)
                if stream is not None and stream.process is process:
                    self._take(stream, replies)
        elif isinstance(message, wire.Returned):
            self._return(message)
        elif isinstance(message, wire.Pulse):
            if message.passing_s > self._most_pass_s and process is self._process:
                log.error("a pass has taken %.0f s and does not end", message.passing_s)
                process.kill()
        elif isinstance(message, wire.Trouble):
            self._alert(message.kind, message.message)
        elif process is self._coming and self._ready is not None and not self._ready.done():
            if isinstance(message, wire.Unable):
                self._ready.set_exception(Unable(message.kind, message.message))
            elif message.version != wire.VERSION:
                self._ready.set_exception(
                    Unable("ParlayError", "the engine process is of another version; restart")
                )
                process.kill()
            else:
                self._ready.set_result(message.facts)

    def _take(self, stream: Stream, replies: Sequence[Reply]) -> None:
        stream.put(replies)
        if stream.lags and not stream.over:
            self._end(stream)
            stream.put((_UNREAD,))
        elif stream.over:
            self._sent.pop(stream.number, None)
            self._dispatch()

    def _return(self, message: wire.Returned) -> None:
        _, result = self._calls.pop(message.number, (None, None))
        if result is None or result.done():
            return
        if message.failed is not None:
            result.set_exception(of_refused(message.failed))
        else:
            result.set_result(message.value)

    # -- requests -------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """Of the model; while another engine is begun, of the one before."""
        if self._facts is None:
            raise _NOT_THERE
        return self._facts

    @property
    def n_open(self) -> int:
        """Answers in the making, or waiting."""
        return sum(stream.n_answers for stream in (*self._waiting, *self._sent.values()))

    @property
    def n_waiting(self) -> int:
        return sum(stream.n_answers for stream in self._waiting)

    async def answer(self, ask: Ask, *, whole: bool = False) -> AsyncGenerator[list[Reply], None]:
        """`whole`: nothing goes to the client before the end, so until then all can begin anew."""
        if ask.seed is None:  # said once, so that it is the same by whichever process
            ask = msgspec.structs.replace(ask, seed=secrets.randbelow(1 << 31))
        try:
            stream = Stream(next(self._numbers), ask, whole)
        except BadRequest as error:  # what cannot be sent never stands in anybody's way
            yield [Refused(400, error.message)]
            return
        if self._refusal is not None:
            yield [self._refusal]
            return
        self._waiting.append(stream)
        self._dispatch()
        try:
            while True:
                found = await stream.take()
                yield found
                if isinstance(found[-1], (Done, Refused)):
                    return
        finally:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        """Nobody waits for it; where it is still made, its slot is free within a round."""
        if self._sent.pop(stream.number, None) is not None and stream.process is not None:
            stream.process.send(wire.Cancel(stream.number))
        elif stream in self._waiting:
            self._waiting.remove(stream)
        self._dispatch()

    def _dispatch(self) -> None:
        """Send on, in order, as many as the engine has slots for, and a few more."""
        if self._process is None or self._facts is None or self._holding:
            return
        n_sent = sum(s.n_answers for s in self._sent.values() if s.process is self._process)
        while self._waiting:
            stream = self._waiting[0]
            if n_sent and n_sent + stream.n_answers > self._facts.n_slots + _FEW:
                return
            self._waiting.popleft()
            n_sent += stream.n_answers
            stream.process = self._process
            self._sent[stream.number] = stream
            self._process.write(stream.frame)

    # -- everything else ------------------------------------------------------

    async def call(self, what: wire.CallName, kind: type[T], /, **arguments: Any) -> T:
        """One of the backend's other doings, in the engine process."""
        if self._process is None:
            raise _NOT_THERE
        number = next(self._numbers)
        frame = wire.frame(wire.Call(number, what, arguments))
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = self._process, result
        self._process.write(frame)
        try:
            return msgspec.convert(await result, kind)
        finally:
            self._calls.pop(number, None)

    async def render(self, ask: Ask) -> str:
        return await self.call("render", str, ask=ask)

    async def count(self, ask: Ask) -> int:
        return await self.call("count", int, ask=ask)

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        return await self.call(
            "tokenize",
            list[Token],
            text=text,
            add_special=add_special,
            parse_special=parse_special,
            with_pieces=with_pieces,
        )

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await self.call("detokenize", str, tokens=list(tokens))

    async def save_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        return await self.call("save_slot", dict[str, Any], slot=slot, name=name, owner=owner)

    async def restore_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        return await self.call("restore_slot", dict[str, Any], slot=slot, name=name, owner=owner)

    async def erase_slot(self, slot: int, owner: str) -> dict[str, Any]:
        return await self.call("erase_slot", dict[str, Any], slot=slot, owner=owner)

    async def slots(self) -> list[dict[str, Any]]:
        return await self.call("slots", list[dict[str, Any]])

    async def memory(self) -> dict[str, Any]:
        return await self.call("memory", dict[str, Any])

    async def forget(self, owner: str | None) -> None:
        await self.call("forget", type(None), owner=owner)

    async def figures(self) -> dict[str, Any]:
        return await self.call("figures", dict[str, Any])

    async def trace(self, answer_id: str) -> dict[str, Any] | None:
        return await self.call("trace", dict[str, Any] | None, answer_id=answer_id)  # type: ignore[arg-type]

    async def live(self) -> dict[str, Any]:
        return await self.call("live", dict[str, Any])

    async def follow(self, deployment: dict[str, Any]) -> None:
        """What of a deployment a running engine takes over at once; it is begun anew with it."""
        self._hello = wire.Hello(wire.VERSION, deployment)
        if self._process is not None:
            self._facts = await self.call("follow", Facts, deployment=deployment)

    async def fits_beside(self, deployment: dict[str, Any]) -> bool:
        """Whether another engine has room while this one is loaded."""
        if self._process is None:
            return True
        return await self.call("fits_beside", bool, deployment=deployment)

    @property
    def n_places(self) -> int:
        """Answers that are made at once; so many wait as long as there is no engine."""
        return 0 if self._facts is None else self._facts.n_slots

    async def state(self) -> State:
        """Told even while there is no engine."""
        if self._refusal is not None:
            return State(status="draining" if self._refusal is _CLOSED else "died")
        if self._process is None:
            status: Literal["loading", "restarting"] = "restarting" if self._deaths else "loading"
            return State(status=status, n_waiting=self.n_waiting)
        state = await self.call("state", State)
        return msgspec.structs.replace(state, n_waiting=state.n_waiting + self.n_waiting)

    def give_up(self) -> None:
        """Nobody waits any longer: everybody is told."""
        self._give_up(_CLOSED)
        for number, stream in list(self._sent.items()):
            if stream.process is not None:
                stream.process.send(wire.Cancel(number))

    async def close(self) -> None:
        """Let the engine keep what it learned, and end."""
        self._give_up(_CLOSED)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._coming is not None:  # it has learned nothing yet, and hears nothing while it loads
            self._coming.kill()
            await self._coming.ended.wait()
        if self._process is not None:
            await self._process.stop(_STOP_S)

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)


def _ended_early(status: int) -> str:
    return f"the engine process ended (status {status}) before its model was loaded"

"""Requests in an engine process: answered, taken back, and what its deaths cost whom."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from parlay.ask import Accepted, Ask, Done, Pieces, Refused, Reply
from parlay.backend import wire
from parlay.front import process_backend
from parlay.front.errors import Failure
from parlay.front.process_backend import ProcessBackend, Unable
from tests.serving import PATIENCE_S, wait_for

COMMAND = (sys.executable, "-m", "tests.scripted_engine")


class Front:
    """A backend on a scripted engine, and what it told its front."""

    def __init__(self, told: dict[str, Any], **options: Any) -> None:
        self.alerts: list[tuple[str, str | None]] = []
        self.given_up = asyncio.Event()
        self.backend = ProcessBackend(
            wire.Hello(wire.VERSION, told),
            alert=lambda kind, message: self.alerts.append((kind, message)),
            given_up=self.given_up.set,
            command=COMMAND,
            **{"max_restarts": 5, "most_pass_s": 60.0, **options},
        )

    def ask(self, text: str, *, whole: bool = False, n: int = 1) -> Asked:
        ask = Ask(door="chat", messages=({"role": "user", "content": text},), n=n)
        return Asked(self.backend.answer(ask, whole=whole))

    async def pid(self) -> int:
        while True:
            try:
                return int((await self.backend.figures())["pid"])
            except Failure:
                await asyncio.sleep(0.01)


class Asked:
    """One request, followed."""

    def __init__(self, stream: AsyncGenerator[list[Reply], None]) -> None:
        self._stream = stream
        self.replies: list[Reply] = []

    async def begun(self) -> Asked:
        """Until its first words."""
        while not self.text:
            self.replies += await anext(self._stream)
        return self

    async def end(self) -> Asked:
        async for batch in self._stream:
            self.replies += batch
        return self

    async def leave(self) -> None:
        await self._stream.aclose()

    @property
    def text(self) -> str:
        return "".join(
            text for reply in self.replies if isinstance(reply, Pieces) for text in reply.texts
        )

    @property
    def refused(self) -> Refused | None:
        last = self.replies[-1]
        return last if isinstance(last, Refused) else None

    @property
    def n_accepted(self) -> int:
        return sum(isinstance(reply, Accepted) for reply in self.replies)


def run(
    work: Callable[[Front], Awaitable[None]], told: dict[str, Any] | None = None, **options: Any
) -> None:
    async def main() -> None:
        front = Front(told or {}, **options)
        await front.backend.start()
        try:
            await asyncio.wait_for(work(front), PATIENCE_S)
        finally:
            await front.backend.close()

    asyncio.run(main())


def words(n: int) -> str:
    return "".join(f"w{i} " for i in range(n))


def test_requests_are_answered_in_their_order_and_as_many_at_once_as_it_has_slots() -> None:
    async def work(front: Front) -> None:
        asked = [front.ask(f"say {n}", whole=bool(n % 2)) for n in range(1, 31)]
        ended = await asyncio.gather(*(each.end() for each in asked))
        assert [each.text for each in ended] == [words(n) for n in range(1, 31)]
        assert all(each.n_accepted == 1 for each in ended)
        assert all(isinstance(each.replies[-1], Done) for each in ended)
        figures = await front.backend.figures()
        assert figures["most_asked"] <= 2 + 4  # its slots and a few more
        assert front.backend.n_open == 0

    run(work)


def test_what_the_engine_refuses_is_refused() -> None:
    async def work(front: Front) -> None:
        asked = await front.ask("refuse").end()
        assert asked.refused is not None and asked.refused.param == "messages"
        assert asked.n_accepted == 0

    run(work)


def test_what_cannot_be_sent_is_refused_and_stands_in_nobodys_way() -> None:
    async def work(front: Front) -> None:
        for _ in range(10):
            message = {"role": "user", "content": "say 2", "index": 1 << 70}
            ask = Ask(door="chat", messages=(message,))
            asked = await Asked(front.backend.answer(ask)).end()
            assert asked.refused is not None and asked.refused.status == 400
        assert (await front.ask("say 2").end()).text == words(2)
        assert front.backend.n_open == 0

    run(work)


def test_a_request_that_is_left_is_taken_back() -> None:
    async def work(front: Front) -> None:
        asked = await front.ask("say 100000").begun()
        await asked.leave()
        while (await front.backend.state()).n_busy:
            await asyncio.sleep(0.01)
        assert front.backend.n_open == 0

    run(work, {"pass_s": 0.005})


def test_a_death_costs_only_the_answers_that_had_begun() -> None:
    async def work(front: Front) -> None:
        begun = [await front.ask("say 100000").begun() for _ in range(2)]
        waiting = [front.ask("say 3"), front.ask("say 4", whole=True)]
        whole = front.ask("say 50", whole=True)  # made, but nothing of it has been sent
        ends = [asyncio.ensure_future(each.end()) for each in (*begun, *waiting, whole)]
        pid = await front.pid()
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*ends)
        for each in begun:
            assert each.refused is not None and each.refused.code == "engine_died"
        assert [each.text for each in (*waiting, whole)] == [words(3), words(4), words(50)]
        assert all(each.n_accepted == 1 for each in waiting)
        assert await front.pid() != pid
        assert ("engine", None) in front.alerts

    run(work, {"pass_s": 0.005})


def test_a_request_that_kills_the_engine_is_tried_twice_and_no_more() -> None:
    async def work(front: Front) -> None:
        ended = await asyncio.gather(front.ask("die").end(), front.ask("say 2").end())
        deadly, other = ended
        assert deadly.refused is not None and deadly.refused.code == "engine_died"
        assert deadly.refused.status == 500
        assert other.text == words(2) or other.refused is not None  # it was there both times
        assert (await front.ask("say 5").end()).text == words(5)

    run(work)


def test_answers_that_kill_it_after_they_have_begun_are_not_made_again() -> None:
    async def work(front: Front) -> None:
        asked = [front.ask("die after 3") for _ in range(2)]
        deadly = await asyncio.gather(*(each.end() for each in asked))
        assert all(each.refused is not None for each in deadly)
        assert (await front.ask("say 2").end()).text == words(2)

    run(work)


def test_a_pass_that_does_not_end_ends_the_process() -> None:
    async def work(front: Front) -> None:
        hung = front.ask("hang").end()
        assert (await hung).refused is not None
        assert (await front.ask("say 3").end()).text == words(3)

    run(work, {"slots": 1}, most_pass_s=0.5)


def test_a_process_that_says_nothing_is_ended() -> None:
    async def work(front: Front) -> None:
        pid = await front.pid()
        os.kill(pid, signal.SIGSTOP)
        assert (await front.ask("say 3").end()).text == words(3)
        assert not psutil.pid_exists(pid)

    run(work, most_pass_s=2.0)


def test_an_engine_that_dies_too_often_stays_dead() -> None:
    async def work(front: Front) -> None:
        for _ in range(2):
            os.kill(await front.pid(), signal.SIGKILL)
        await front.given_up.wait()
        asked = await front.ask("say 1").end()
        assert asked.refused is not None and asked.refused.status == 503
        assert (await front.backend.state()).status == "died"

    run(work, max_restarts=1)


def test_an_engine_that_cannot_be_loaded_says_why() -> None:
    async def main() -> None:
        front = Front({"unable": "no room for it"})
        with pytest.raises(Unable, match="no room for it") as told:
            await front.backend.start()
        assert told.value.kind == "LoadError"
        await front.backend.close()

    asyncio.run(main())


def test_whoever_ends_a_front_does_not_wait_for_a_model_to_be_loaded() -> None:
    async def main() -> None:
        front = Front({"load_s": 600})
        starting = asyncio.ensure_future(front.backend.start())
        await asyncio.sleep(0.1)  # it has been launched
        await asyncio.wait_for(front.backend.close(), PATIENCE_S / 10)
        with pytest.raises((Unable, asyncio.CancelledError)):
            await starting

    asyncio.run(main())


def test_other_doings_are_passed_on_and_their_errors_too() -> None:
    async def work(front: Front) -> None:
        assert await front.backend.detokenize([1, 2]) == "1 2"
        found = await front.backend.tokenize(
            "a b", add_special=False, parse_special=False, with_pieces=True
        )
        assert [token.piece for token in found] == ["a", "b"]
        assert (await front.backend.save_slot(1, "talk.bin", "me"))["name"] == "talk.bin"
        with pytest.raises(Failure, match="internal error"):
            await front.backend.slots()

    run(work)


def test_another_engine_takes_over_and_what_the_old_one_began_it_ends(tmp_path: Path) -> None:
    async def work(front: Front) -> None:
        for beside in (True, False):
            old = await front.pid()
            begun = await front.ask("say 40").begun()
            told = {"pass_s": 0.01, "name": "new"}
            replaced = asyncio.ensure_future(front.backend.replace(told, beside=beside))
            late = asyncio.ensure_future(front.ask("say 2").end())
            assert (await begun.end()).text == words(40)
            assert (await late).text == words(2)
            await replaced
            assert await front.pid() != old
            assert front.backend.facts.names == ("new",)
            while psutil.pid_exists(old):
                await asyncio.sleep(0.01)

    run(work, {"pass_s": 0.01, "born": str(tmp_path / "born")})
    assert "closed" in (tmp_path / "born").read_text()  # it had the time to keep what it learned


@pytest.mark.parametrize("beside", [True, False])
def test_another_engine_that_cannot_be_loaded_changes_nothing(beside: bool) -> None:
    async def work(front: Front) -> None:
        with pytest.raises(Unable):
            await front.backend.replace({"unable": "no"}, beside=beside)
        assert (await front.ask("say 2").end()).text == words(2)

    run(work)


def test_who_does_not_read_is_let_go_and_nobody_else_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_backend, "MOST_UNREAD", 20_000)

    async def work(front: Front) -> None:
        slow, quick = await front.ask("say 100000").begun(), front.ask("say 50")
        assert (await quick.end()).text == words(50)
        while (await front.backend.state()).n_busy:  # it is no longer made
            await asyncio.sleep(0.01)
        await slow.end()
        assert slow.refused is not None and slow.refused.code == "stalled"

    run(work, {"pass_s": 0.0001})


def test_a_front_that_is_killed_takes_its_engine_along(tmp_path: Path) -> None:
    """Within two seconds, whether it answers or loads."""
    script = f"""
import asyncio, sys
from parlay.ask import Ask
from parlay.backend import wire
from parlay.front.process_backend import ProcessBackend

async def main():
    told = {{"born": {str(tmp_path / "born")!r}, "pass_s": 0.01}}
    backend = ProcessBackend(wire.Hello(wire.VERSION, told), max_restarts=1, most_pass_s=60.0,
        alert=print, given_up=print, command=(sys.executable, "-m", "tests.scripted_engine"))
    await backend.start()
    async for batch in backend.answer(Ask(door="completions", prompts=("say 100000",))):
        print(len(batch), flush=True)

asyncio.run(main())
"""
    front = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert front.stdout is not None
    front.stdout.readline()
    engine = psutil.Process(int((tmp_path / "born").read_text().split()[0]))
    front.kill()
    front.wait()
    front.stdout.close()
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # nobody may be there to reap it
    end = time.monotonic() + 2.0
    while engine.is_running() and engine.status() not in ended:
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.02)


def test_an_engine_whose_front_dies_while_it_loads_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = theirs.fileno()
            engine = subprocess.Popen([*COMMAND, str(fd)], pass_fds=[fd])
        ours.sendall(wire.frame(wire.Hello(wire.VERSION, {"load_s": 600})))
        wait_for(lambda: psutil.Process(engine.pid).num_threads() > 1)  # it reads
    assert engine.wait(PATIENCE_S) == 0


def test_nonsense_on_the_socket_ends_the_process_and_not_the_front() -> None:
    async def work(front: Front) -> None:
        asked = await front.ask("nonsense").end()  # instead of an answer, each time
        assert asked.refused is not None and asked.refused.code == "engine_died"
        assert (await front.ask("say 2").end()).text == words(2)

    run(work)

"""What must not end a front of remote servers: checks that break, limits that are bent."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from parlay.deployment import GatewaySection
from parlay.front.alerts import Alerts, keep_running
from parlay.front.remote.server import Server as Upstream
from parlay.upstreams import Pool
from tests.front.remote.fakes import Engine, engines
from tests.front.remote.running import gateway
from tests.front.remote.test_relay import ASK, ask, pool, stream, text_of
from tests.serving import wait_for


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about checks that take long."""
    monkeypatch.setattr(GatewaySection, "health_timeout_s", 30)


def test_a_check_that_breaks_ends_neither_the_checks_nor_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, faults = Upstream.check, iter([ZeroDivisionError("check"), KeyError("check")])

    async def check(self: Upstream) -> None:
        for fault in faults:
            raise fault
        await real(self)

    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        assert ask(running).status_code == 200
        monkeypatch.setattr(Upstream, "check", check)
        wait_for(lambda: next(faults, None) is None)
        one.health = 500
        wait_for(lambda: running.state(0) == "out")  # somebody still looks
        one.health = 200
        wait_for(lambda: running.state(0) == "up")
        assert ask(running).status_code == 200


def test_a_server_that_leaves_while_it_is_looked_at_is_merely_gone() -> None:
    async def leave(one: Engine) -> str | None:
        pool_ = Pool(name="a", urls=(one.url,))
        up = Upstream(pool_, one.url, GatewaySection())
        looking = asyncio.create_task(up.check())
        while not one.n_looks:  # a connection that is only being made is not closed with the others
            await asyncio.sleep(0.01)
        await up.close()
        await looking
        await up.check()  # and once more, on what is closed
        return up.health.reason

    with engines(Engine("m")) as (one,):
        one.mode = "hang_health"
        assert asyncio.run(leave(one)) == "unreachable"


def test_the_longest_answer_and_the_temperature_of_a_deployment_hold() -> None:
    limits = {"max_answer_tokens": 50, "default_temperature": 0.3}
    with engines(Engine("m")) as (one,), gateway(pool(one), server=limits) as running:
        ask(running, max_tokens=1000)
        ask(running, max_tokens=20, temperature=0.9)
        httpx.post(f"{running.url}/v1/chat/completions", json={"messages": ASK["messages"]})
        found = [(asked["max_tokens"], asked["temperature"]) for asked in one.asked]
        assert found == [(50, 0.3), (20, 0.9), (50, 0.3)]


def test_a_name_that_is_echoed_has_a_length() -> None:
    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        assert ask(running, model="x" * 513).status_code == 400
        assert ask(running, model="x" * 512).status_code == 200


def test_a_stream_of_several_choices_is_complete_when_each_is() -> None:
    with engines(Engine("m")) as (one,), gateway(pool(one)) as running:
        one.mode = "cut_farewell"
        chunks, _ = stream(running, n=2)  # one of them never ended
        assert text_of(chunks) and chunks[-1]["error"]["code"] == "upstream"
        chunks, _ = stream(running)
        assert "error" not in chunks[-1]


def test_work_that_ends_is_begun_anew_and_told() -> None:
    ran: list[str] = []

    async def work() -> None:
        ran.append("again")
        if len(ran) == 1:
            raise ValueError("once")
        if len(ran) > 2:
            await asyncio.Event().wait()

    async def main() -> list[str]:
        alerts = Alerts()
        told: list[str] = []
        task = asyncio.create_task(keep_running("the observed", work, alerts, first_s=0.01))
        while len(ran) < 3:
            told += [alert.message for alert in alerts.active.values()]
            await asyncio.sleep(0)
        task.cancel()
        return told

    told = asyncio.run(main())
    assert any("the observed failed (ValueError)" in text for text in told)
    assert any("the observed ended" in text for text in told)


def test_the_alerts_of_two_kinds_of_work_are_two() -> None:
    async def main() -> set[str]:
        alerts = Alerts()

        async def fail() -> None:
            raise ValueError("again")

        names = ("the one", "the other")
        tasks = [asyncio.create_task(keep_running(name, fail, alerts)) for name in names]
        while len(alerts.active) < 2:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        return set(alerts.active)

    assert asyncio.run(main()) == {"task: the one", "task: the other"}


@pytest.mark.parametrize(("n_cut", "well"), [(1, True), (2, False)])
def test_a_connection_that_is_closed_as_it_is_taken_up_is_not_a_server_that_is_gone(
    n_cut: int, well: bool
) -> None:
    """It took a server out for a while, and its pool with it."""
    left = n_cut

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        await reader.readline()
        left -= 1
        if left < 0:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async def look() -> str | None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        up = Upstream(Pool(name="one", urls=(url,)), url, GatewaySection())
        try:
            return (await up.fetch("/health")).problem
        finally:
            await up.close()
            server.close()

    assert asyncio.run(look()) == (None if well else "unreachable")

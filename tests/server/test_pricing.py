"""Windows by measured time in a running server: prices come later, guard rails stay on top."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay import store
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.round import Fallback
from parlay.deployment import Deployment, load_deployment
from parlay.engine.startup import calibration
from parlay.pairing.alignment import check_pair
from parlay.pairing.records import record
from parlay.routing import Rule
from parlay.server.lifecycle import monitor
from parlay.server.lifecycle.reload import reload
from parlay.server.lifecycle.service import Service
from parlay.server.lifecycle.warmup import WarmUp
from tests.control.synthetic import finished
from tests.server.running import Running, running
from tests.serving import PATIENCE_S, wait_for

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 60, "temperature": 0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))


@contextmanager
def priced(target: Path, drafter: Path | None = None, **more: Any) -> Iterator[Running]:
    """A server that leaves the window to the controller."""
    named = {"model__drafter": "suffix" if drafter is None else str(drafter)}
    chosen = {"runtime__speculative_window": None, "runtime__controller": "auto"}
    with running(target, **{**chosen, **named, **more}) as server:
        yield server


def ask(server: Running, **more: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/completions", json={**BODY, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def settled(server: Running) -> None:
    """Everything was measured, and the drafter, if any, is there."""
    wait_for(lambda: not server.service.warm_up._steps)
    wait_for(lambda: server.service.drafter.state in ("none", "ready"))


def price(key: str, row_ms: float) -> None:
    """Write down that a pass takes 10 ms and every row more so much, for the next start.

    When the server is gone: one that runs may still write what it measured itself.
    """
    rows = {str(b): 10 + row_ms * (b - 1) for b in range(1, 35)}
    target = [{"context": 256, "sequences": n, "steady_ms": rows} for n in (1, 2)]
    store.save("costs", key, {"parlay_costs": 1, "target": target, "drafter": None})


@contextmanager
def unpriced(target: Path) -> Iterator[Running]:
    """Leaves a probe of exact shapes on file, and no prices."""
    with priced(target) as server:
        yield server
    (store.cache_folder() / "costs").mkdir(exist_ok=True)
    for path in (store.cache_folder() / "costs").iterdir():
        path.unlink()


@pytest.fixture
def asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is there before the server begins to measure."""
    run = WarmUp.run

    async def later(self: WarmUp, patience_s: float) -> None:
        while not self._engine.slots.last_used:
            await asyncio.sleep(0.01)
        await run(self, patience_s)

    monkeypatch.setattr(WarmUp, "run", later)


class Clock:
    """Stands still unless it is put on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_asked = 0

    def monotonic(self) -> float:
        self.n_asked += 1
        return self.now

    def wait(self) -> None:
        """Until it was looked at in one whole attempt more."""
        before = self.n_asked
        wait_for(lambda: self.n_asked > before + 3)


@contextmanager
def asked_without_end(server: Running, n_streams: int = 2) -> Iterator[list[dict[str, Any]]]:
    """Clients that send the next request as soon as they have an answer."""
    answers: list[dict[str, Any]] = []
    enough = threading.Event()

    def go_on(stream: int) -> None:
        while not enough.is_set():
            answers.append(ask(server, prompt=f"stream {stream}"))

    with ThreadPoolExecutor(n_streams) as pool:
        asking = [pool.submit(go_on, i) for i in range(n_streams)]
        try:
            yield answers
        finally:
            enough.set()
        for one in asking:
            one.result()


def test_the_target_answers_before_it_is_measured_and_bets_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_self: WarmUp, _patience_s: float) -> None:
        return None

    with unpriced(target) as server:
        expected = ask(server, speculation=False)["choices"]
    monkeypatch.setattr(WarmUp, "run", never)
    monkeypatch.setattr("parlay.control.trials._SHARE", 0.0)  # nor are prices tried
    with priced(target) as server:
        assert server.service.pricing is not None and not server.service.pricing.measured
        early = ask(server)
    assert early["choices"] == expected
    assert early["speculation"]["drafted"] == 0
    assert early["speculation"]["fallbacks"].keys() <= {"unprofitable", "no_draft"}


def test_prices_are_measured_in_idle_moments_and_kept(target: Path) -> None:
    with priced(target) as server:
        first = ask(server)
        settled(server)
        pricing = server.service.pricing
        assert pricing is not None
        curve = pricing.controller.costs.curve(256, 1)
        assert curve.known >= {1, 2, 3, 4, 8, 16}
        assert server.service.observer.baseline.pass_s.keys() == {1, 2}
        # What the passes left in the slots is no answer's prefix.
        again = ask(server)
        assert again["choices"] == first["choices"]
        kept = pricing.measured
    if kept:  # a machine that was not too busy to believe
        with priced(target) as server:
            assert server.service.pricing is not None and server.service.pricing.measured


@pytest.mark.usefixtures("asked_first")
def test_prices_are_learned_although_requests_never_stop(target: Path) -> None:
    with unpriced(target) as server:
        plain = [ask(server, prompt=f"stream {i}", speculation=False) for i in range(2)]
    with priced(target) as server, asked_without_end(server) as answers:
        pricing = server.service.pricing
        assert pricing is not None and not pricing.measured
        n_left = len(server.service.warm_up._steps)
        wait_for(lambda: pricing.controller.costs.name == "tried")
        wait_for(lambda: pricing.controller.costs.curve(256, 2).known >= {2, 3, 4, 5})
        assert len(server.service.warm_up._steps) == n_left  # no answer waited for a measurement
    assert {found["choices"][0]["text"] for found in answers} == {
        found["choices"][0]["text"] for found in plain
    }


@pytest.mark.usefixtures("asked_first")
def test_who_goes_on_at_once_finds_the_prompt_read_whatever_is_left_to_measure(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unpriced(target):
        pass
    long = "a prompt that is worth keeping " * 8
    clock = Clock()
    monkeypatch.setattr("parlay.server.lifecycle.warmup.time", clock)
    with priced(target) as server:
        n_left = len(server.service.warm_up._steps)
        ask(server, prompt=long)
        clock.wait()
        for _ in range(3):  # less than a quiet moment goes by between two answers
            clock.now += 0.9
            assert ask(server, prompt=long, max_tokens=2)["timings"]["cache_n"] > 0
            clock.wait()
        assert len(server.service.warm_up._steps) == n_left
        clock.now += 1.0  # nobody asks
        settled(server)


def test_a_measurement_gives_way_to_an_answer(target: Path) -> None:
    body = {**BODY, "max_tokens": 10**6, "context_full": "slide", "stream": True}
    with priced(target) as server:
        settled(server)
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body) as response:
            lines = response.iter_lines()  # kept: httpx closes the stream with it
            first = next(lines)
            made: list[int] = []
            step = server.service.warm_up._on_worker(lambda: made.append(1))
            assert step.result(PATIENCE_S) is False and not made, first
        wait_for(lambda: server.service.n_open == 0)
        wait_for(
            lambda: server.service.warm_up._on_worker(lambda: made.append(1)).result(PATIENCE_S)
        )


def test_a_measurement_nobody_waits_for_any_more_is_no_failure(
    target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the server ends while one is being made."""
    with priced(target) as server:
        settled(server)
        warm_up, began, go_on = server.service.warm_up, threading.Event(), threading.Event()

        def step() -> None:
            began.set()
            go_on.wait(PATIENCE_S)

        made = warm_up._on_worker(step)
        assert began.wait(PATIENCE_S)
        after = warm_up._on_worker(lambda: None)
        made.cancel(), after.cancel()
        go_on.set()
        assert ask(server)["choices"]
    assert "failed" not in caplog.text


@pytest.fixture
def cheap_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of it costs a tenth of a millisecond, however busy the machine is."""
    cost = DrafterCost(Curve(dict.fromkeys(range(1, 35), 1e-4), {}), single_steps=False)
    monkeypatch.setattr(calibration, "measure_drafter", lambda _passes: cost)


@pytest.mark.usefixtures("cheap_drafter")
def test_cheap_rows_are_bet_on_and_what_was_learned_is_kept(target: Path, drafter: Path) -> None:
    with priced(target, drafter) as server:
        plain = ask(server, speculation=False)["choices"][0]["text"]
        costs = server.service.engine.pair_key(())
    price(costs, row_ms=0.01)
    with priced(target, drafter) as server:
        settled(server)
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: ask(server), range(6)))
        key = server.service.engine.pair_key([drafter])
        prices = server.service.engine.prices
        assert prices is not None and prices.drafter is not None
    assert {answer["choices"][0]["text"] for answer in answers} == {plain}
    assert sum(answer["speculation"]["drafted"] for answer in answers) > 0
    kept = store.load("learned", key)
    assert kept is not None and "model/greedy/answering" in kept["survival"]


def test_dear_rows_are_not(target: Path, drafter: Path) -> None:
    with priced(target, drafter) as server:
        costs = server.service.engine.pair_key(())
    price(costs, row_ms=10)
    with priced(target, drafter) as server:
        settled(server)
        found = ask(server)["speculation"]
    assert found["drafted"] == 0
    assert found["fallbacks"].keys() == {"unprofitable", "no_draft"}  # one token left: no draft


def test_guard_rails_act_on_top(target: Path) -> None:
    """Whether a drafter is asked at all depends on the time of its passes: so it is told here."""
    with priced(target, runtime__min_token_acceptance=0.9) as server:
        settled(server)
        assert "low_acceptance" not in ask(server)["speculation"]["fallbacks"]
        lost = [finished("suffix", 4, 0)] * 16
        server.service.engine.call(lambda: server.service.guard.observe(lost)).result(PATIENCE_S)
        assert ask(server)["speculation"]["fallbacks"]["low_acceptance"] > 0


def test_auto_rules_are_only_advice_to_a_controller_that_measures(target: Path) -> None:
    plain = Rule(name="plain", policy="plain", reason=Fallback.PROMPT_HEAVY, auto=True)
    with priced(target, routes=(plain,)) as server:
        assert "prompt_heavy" not in ask(server)["speculation"]["fallbacks"]
    with running(target, routes=(plain,)) as server:
        assert ask(server)["speculation"]["fallbacks"].keys() == {"prompt_heavy"}


def test_structured_output_is_drafted_even_without_a_controller_that_measures(
    target: Path,
) -> None:
    schema = {"type": "object", "properties": {"name": {"const": "x" * 40}}, "required": ["name"]}
    with running(target) as server:
        told = ask(server, json_schema=schema)["speculation"]
    assert "grammar" not in told["fallbacks"] and told["proposers"].get("skeleton", 0) > 0


def test_a_set_window_is_the_widest_unless_a_fixed_one_is_asked_for(target: Path) -> None:
    with running(target, runtime__speculative_window=2) as server:
        assert server.service.pricing is None
        windows = ask(server, speculation=True)["speculation"]["windows"]
        assert max(map(int, windows)) == 2
    with priced(target, runtime__speculative_window=2) as server:
        assert server.service.pricing is not None
        assert server.service.guard.limits.max_window == 2


def test_a_window_of_0_in_the_file_decodes_plainly_and_says_so(target: Path) -> None:
    with priced(target, runtime__speculative_window=0) as server:
        assert ask(server)["speculation"]["fallbacks"].keys() == {"request"}


async def _reloaded(server: Running, new: Deployment) -> bool:
    return await reload(server.service, lambda: new)


def test_a_reload_changes_the_way_windows_are_chosen(target: Path) -> None:
    with running(target) as server:
        fixed = server.service.deployment
        by_time = fixed.runtime.model_copy(update={"controller": "auto"})
        loop = server.service.loop
        assert loop is not None
        for runtime in (by_time, fixed.runtime):
            new = fixed.model_copy(update={"runtime": runtime})
            changed = asyncio.run_coroutine_threadsafe(_reloaded(server, new), loop)
            assert changed.result(PATIENCE_S)
            assert (server.service.pricing is not None) == runtime.adaptive
            assert ask(server)["choices"]
            wait_for(lambda: not server.service.warm_up._steps)


def test_only_a_target_is_named_and_the_manifest_knows_the_drafter(
    target: Path, drafter: Path
) -> None:
    record(target, drafter, check_pair(target, drafter))
    with running(target) as server:
        wait_for(lambda: server.service.drafter.state == "ready")
        assert server.service.engine.bets.named == ["model", "suffix"]
    assert load_deployment(environ={}).model.drafter == "auto"


def test_what_was_learned_survives_a_sudden_death(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch saves it while the server runs; nothing is saved at the end of one that dies."""
    with priced(target, drafter) as server:
        costs = server.service.engine.pair_key(())
    price(costs, row_ms=0.01)
    monkeypatch.setattr(monitor, "_KEEP_EVERY", 1)
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.05)
    with priced(target, drafter) as server:
        settled(server)
        key = server.service.engine.pair_key([drafter])
        wait_for(lambda: ask(server)["speculation"]["drafted"] > 0)
        wait_for(lambda: bool((store.load("learned", key) or {}).get("survival")))
        monkeypatch.setattr(Service, "keep_learned", lambda _self: None)
        assert server.service.pricing is not None
        monkeypatch.setattr(server.service.pricing, "save", lambda: None)
    with priced(target, drafter) as server:
        settled(server)
        assert server.service.pricing is not None
        assert server.service.pricing.controller.survival.to_dict()  # before anything was asked

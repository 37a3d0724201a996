"""Which pool answers: by request, by policy, by measured time; and the answer says so."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from parlay.deployment import Deployment
from parlay.gateway.choice import RouteTiming
from parlay.gateway.in_flight import left_behind
from tests.gateway.fakes import WORDS, Engine, engines
from tests.gateway.running import Running, gateway
from tests.gateway.test_relay import ask, only, stream
from tests.serving import wait_for


def pools(betting: Engine, plain: Engine) -> list[dict[str, Any]]:
    return [
        {"name": "betting", "urls": [betting.url], "speculative": True},
        {"name": "plain", "urls": [plain.url]},
    ]


def pool_of(running: Running, **more: Any) -> tuple[str, str]:
    chunks, response = stream(running, **more)
    told = chunks[-1]["speculation"]
    assert told["pool"] == response.headers["x-parlay-pool"]
    assert told["reason"] == response.headers["x-parlay-reason"]
    assert told["speculates"] is (response.headers["x-parlay-speculative"] == "true")
    return told["pool"], told["reason"]


def test_a_request_may_pick_its_pool() -> None:
    with engines(Engine(), Engine()) as (a, b), gateway(*pools(a, b)) as running:
        assert pool_of(running, speculation=True) == ("betting", "request")
        assert pool_of(running, speculation=False) == ("plain", "request")
        assert ask(running, speculation=False).json()["speculation"]["fallback"] == "request"


def test_a_route_that_says_plain_is_obeyed_and_says_why() -> None:
    rule = {"name": "short", "when": {"max_answer_tokens": 4}, "policy": "plain"}
    rule["reason"] = "prompt_heavy"
    with (
        engines(Engine(), Engine()) as (a, b),
        gateway(*pools(a, b), routes=[rule, {"name": "rest"}]) as running,
    ):
        told = ask(running, max_tokens=4).json()["speculation"]
        assert (told["pool"], told["policy"]) == ("plain", "short")
        assert (told["reason"], told["fallback"]) == ("policy", "prompt_heavy")
        assert ask(running, max_tokens=5).json()["speculation"]["policy"] == "rest"
        named = ask(running, speculation={"policy": "short"}).json()["speculation"]
        assert named["pool"] == "plain"


@pytest.mark.parametrize("betting_is_faster", [True, False])
def test_traffic_follows_measured_time_and_the_answer_says_both_times(
    betting_is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times are told here: a busy machine's could say anything."""
    measured: list[tuple[float, int]] = []
    observe = RouteTiming.observe

    def told_time(route: RouteTiming, speculated: bool, seconds: float, tokens: int) -> None:
        measured.append((seconds, tokens))
        observe(route, speculated, 0.05 if speculated is betting_is_faster else 0.2, tokens)

    monkeypatch.setattr(RouteTiming, "observe", told_time)
    with engines(Engine(), Engine()) as (a, b), gateway(*pools(a, b)) as running:
        made = [pool_of(running) for _ in range(30)]
        assert {why for _, why in made[:6]} == {"measuring"}
        winner = "betting" if betting_is_faster else "plain"
        assert [name for name, _ in made[10:]].count(winner) >= 18
        assert made[-1] == (winner, "faster")
        told = stream(running)[0][-1]["speculation"]
        times = told["ms_per_token"]
        assert (times["speculative"] < times["plain"]) is betting_is_faster
        assert told["fallback"] == (None if betting_is_faster else "unprofitable")
        assert told["baseline_ms_per_token"] == times["plain"]
        routes = httpx.get(f"{running.url}/metrics/speculative").json()["routes"]
        assert routes[0]["speculates"] is betting_is_faster
        assert only(running, "parlay_route_decisions_total") == 31
        wait_for(lambda: len(measured) == 31)
        assert all(seconds > 0 and 0 < tokens <= len(WORDS) for seconds, tokens in measured)


def test_each_route_has_its_own_answer_to_the_question() -> None:
    with engines(Engine(delay_s=0.002), Engine(delay_s=0.002)) as (a, b):
        rules = [{"name": "tagged", "when": {"tag": "t*"}}, {"name": "rest"}]
        with gateway(*pools(a, b), routes=rules) as running:
            for _ in range(8):
                stream(running)
            assert pool_of(running, metadata={"tag": "tx"})[1] == "measuring"
            assert {name for name, _ in running.gateway.routes} == {"tagged", "rest"}


def test_when_a_pool_is_gone_the_other_answers_and_says_so() -> None:
    with engines(Engine(), Engine()) as (a, b), gateway(*pools(a, b)) as running:
        a.kill()
        wait_for(lambda: running.state(0) == "out")
        assert pool_of(running) == ("plain", "unavailable")
        assert pool_of(running, speculation=True) == ("plain", "unavailable")
        wait_for(lambda: "pool_down" in running.gateway.alerts.active)


def test_one_pool_alone_leaves_no_choice() -> None:
    only_pool = {"name": "all", "speculative": True}
    with (
        engines(Engine()) as (a,),
        gateway({**only_pool, "urls": [a.url]}) as running,
    ):
        assert pool_of(running, speculation=False) == ("all", "only")


def test_limits_and_defaults_of_the_deployment_reach_the_engine() -> None:
    server = {"max_answer_tokens": 8, "default_temperature": 0.25}
    with (
        engines(Engine()) as (a,),
        gateway({"name": "p", "urls": [a.url], "model": "big"}, server=server) as running,
    ):
        ask(running, max_tokens=100)
        ask(running, max_tokens=5, temperature=1)
    assert [body["max_tokens"] for body in a.asked] == [8, 5]
    assert [body["temperature"] for body in a.asked] == [0.25, 1]
    assert {body["model"] for body in a.asked} == {"big"}


def test_prompts_are_measured_in_tokens_by_the_engines_own_counts() -> None:
    with engines(Engine()) as (a,), gateway({"name": "p", "urls": [a.url]}) as running:
        ratio = running.gateway.ratio
        assert ratio.tokens(400) == 100
        for _ in range(40):  # five characters, nine tokens by the engine's count
            ask(running)
        assert ratio.tokens(400) > 150


def test_keys_without_effect_are_named() -> None:
    content = {
        "engine": "endpoints",
        "upstreams": [{"name": "a", "urls": ["http://a"]}],
        "model": {"target": "x.gguf", "alias": ["m"]},
        "runtime": {"slots": 2},
        "server": {"max_prompt_tokens": 10, "port": 1},
        "routes": [{"name": "r", "window": 3}],
    }
    found = left_behind(Deployment.model_validate(content))
    assert found == "model.target, runtime.slots, server.max_prompt_tokens, routes.r.window"

"""Two real llama.cpp servers behind the gateway: one speculates, one does not, one dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.shared.traffic import Got, streamed
from parlay.bench.peer import LlamaServer, PeerSettings
from tests import tiny_models
from tests.front.remote.running import Running, gateway
from tests.serving import wait_for

pytest.importorskip("xllamacpp")


@dataclass
class Behind:
    """The gateway, and both servers."""

    running: Running
    betting: LlamaServer
    plain: LlamaServer


@contextmanager
def behind(target: Path, **betting: Any) -> Iterator[Behind]:
    common: dict[str, Any] = {"threads": 1, "n_context": 1024}
    one = LlamaServer(PeerSettings(str(target), **betting, **common))
    try:
        other = LlamaServer(PeerSettings(str(target), **common))
        try:
            pools = (
                {"name": "betting", "urls": [one.url], "speculative": True},
                {"name": "plain", "urls": [other.url]},
            )
            with gateway(*pools, server={"request_timeout_s": 60}) as running:
                yield Behind(running, one, other)
        finally:
            other.close()
    finally:
        one.close()


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Path:
    """Eight bits: passes are exact in every shape."""
    return tiny_models.write_llama(tiny_folder / "behind.gguf", ftype="q8_0")


@pytest.fixture
def pair(tiny: Path, tiny_folder: Path) -> Iterator[Behind]:
    drafter = tiny_models.perturb(tiny, tiny_folder / "behind-drafter.gguf")
    with behind(tiny, spec_type="draft-simple", drafter=str(drafter), n_max=4) as found:
        yield found


def ask(running: Running, prompt: str, **more: Any) -> Got:
    body = {"prompt": prompt, "max_tokens": 48, "temperature": 0, **more}
    return streamed(f"{running.url}/v1/completions", body)


def metric(running: Running, name: str) -> float:
    page = httpx.get(f"{running.url}/metrics").text
    return sum(float(x.rsplit(" ", 1)[1]) for x in page.splitlines() if x.startswith(name))


def test_routing_streams_metrics_and_equal_text(pair: Behind) -> None:
    running = pair.running
    prompts = ["abc abc abc", "one two three", "x"]
    for prompt in prompts:
        fast, slow = (ask(running, prompt, speculation=kind) for kind in (True, False))
        assert fast.failed is slow.failed is None
        assert fast.text == slow.text != ""
        told = fast.last["speculation"]
        assert (told["pool"], told["generated"]) == ("betting", 48)
        assert told["drafted"] >= told["accepted"] > 0
        assert told["token_acceptance"] == round(told["accepted"] / told["drafted"], 4)
        assert slow.last["speculation"]["drafted"] == 0
    whole = httpx.post(
        f"{running.url}/v1/completions",
        json={"prompt": "x", "max_tokens": 48, "temperature": 0, "speculation": True},
    ).json()
    # Half a character at the end is written in a whole answer and held back in a stream.
    assert whole["choices"][0]["text"].rstrip("\ufffd") == fast.text.rstrip("\ufffd")
    found = httpx.get(f"{running.url}/metrics/speculative").json()
    assert found["generated"] == 7 * 48
    # llama.cpp's own page, read by the gateway, says the same as its answers.
    wait_for(
        lambda: metric(running, "parlay_upstream_drafted_tokens_total") == found["drafted"] > 0
    )
    assert metric(running, "parlay_upstream_accepted_tokens_total") == found["accepted"]
    assert metric(running, "parlay_drafted_tokens_total") == found["drafted"]


def test_a_server_killed_mid_run_fails_no_request_that_had_not_begun(pair: Behind) -> None:
    running = pair.running
    wanted = ask(running, "abc abc", speculation=False).text
    found: list[Got] = []

    def client(n: int) -> None:
        for i in range(6):
            found.append(ask(running, "abc abc", speculation=(n + i) % 2 == 0))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(found) >= 4)
    pair.betting._process.kill()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    assert [got.failed for got in found if got.failed and not got.begun] == []
    assert all(got.text == wanted for got in found if got.failed is None)
    assert sum(got.failed is not None for got in found) <= 4  # only what was under way
    wait_for(lambda: running.state(0) == "out")
    late = ask(running, "abc abc", speculation=True)
    assert (late.text, late.last["speculation"]["reason"]) == (wanted, "unavailable")


@pytest.mark.weights
def test_on_real_weights_traffic_follows_time_and_text_stays(smollm2: Path) -> None:
    with behind(smollm2, spec_type="ngram-simple") as found:
        prompt = "Count: one two three one two three one two three"
        fast, slow = (
            ask(found.running, prompt, max_tokens=24, speculation=kind) for kind in (True, False)
        )
        assert fast.text == slow.text != ""
        made = [ask(found.running, prompt, max_tokens=8).last["speculation"] for _ in range(10)]
        assert {told["reason"] for told in made[:4]} == {"measuring"}
        assert made[-1]["reason"] in ("faster", "exploring")
        assert None not in made[-1]["ms_per_token"].values()

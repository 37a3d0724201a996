"""llama.cpp's contexts belong to one thread each: nobody else calls the library with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay.backend.drafter_care import LOADER
from parlay.llama.binding import FUNCTIONS
from parlay.llama.library import C
from tests.front.running import running
from tests.serving import wait_for

WORKER = "parlay-worker"
OWNED = (
    "llama_decode", "llama_encode", "llama_free", "llama_get_", "llama_memory_", "llama_n_",
    "llama_set_", "llama_state_", "llama_synchronize",
)  # fmt: skip
# What is called with a context or its memory, which have an owner.
CALLS = [name for name in FUNCTIONS if name.startswith(OWNED)]


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, str]]]:
    """Every call with a context or its memory: by whom, and which."""
    found: set[tuple[str, str]] = set()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            found.add((threading.current_thread().name, name))
            return real(*args)

        return call

    for name in CALLS:
        monkeypatch.setattr(C, name, watched(name, getattr(C, name)))
    yield found


def test_only_the_worker_calls_llama_cpp_while_a_server_runs(
    target: Path, drafter: Path, callers: set[tuple[str, str]]
) -> None:
    body = {"prompt": "hello", "max_tokens": 900, "temperature": 0, "context_full": "slide"}
    options = {"runtime__context_size": 128, "monitoring__cache_compaction_interval": 64}
    with running(target, model__drafter=f"suffix,{drafter}", **options) as server:
        wait_for(lambda: server.drafter == "ready")
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}) as response:
            for n, _ in enumerate(response.iter_lines()):
                if n % 50 == 0:  # whoever looks must not call llama.cpp, however often
                    for path in ("/metrics", "/metrics/speculative", "/slots", "/health"):
                        assert httpx.get(f"{server.url}{path}").status_code == 200
        httpx.post(f"{server.url}/tokenize", json={"content": "hello", "with_pieces": True})
        found = set(callers)
    assert {"llama_decode", "llama_memory_seq_pos_max"} <= {name for _, name in found}
    assert {thread for thread, _ in found} == {
        WORKER,
        f"{LOADER}_0",
    }  # the drafter's, until it is ready

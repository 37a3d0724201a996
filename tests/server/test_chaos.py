"""200 requests of every kind, half of them hostile: nothing leaks, nothing hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from benchmarks.shared.traffic import Traffic
from tests.server.running import running
from tests.serving import wait_for

_GROWTH = 24_000_000  # bytes; allocators keep some of what a burst needed


def test_nothing_leaks_under_mixed_and_hostile_traffic(target: Path, drafter: Path) -> None:
    options = {"runtime__slots": 4, "server__queue_size": 8}
    with running(target, model__drafter=f"suffix,{drafter}", **options) as server:
        wait_for(lambda: server.service.drafter.state == "ready")
        process = psutil.Process()
        asyncio.run(Traffic(server.url, seed=1).run(60, 8))  # buffers reach their size
        wait_for(lambda: server.service.n_open == 0)
        n_bytes, n_files = process.memory_info().rss, process.num_fds()
        report = asyncio.run(Traffic(server.url, seed=2).run(200, 12))
        wait_for(lambda: server.service.n_open == 0)
        engine = server.service.engine
        assert not engine.active and engine.n_waiting == 0
        assert not any(slot.busy for slot in engine.slots.all)
        assert process.memory_info().rss - n_bytes < _GROWTH
        wait_for(lambda: process.num_fds() <= n_files + 4)
    assert len(report.outcomes) == 200
    assert report.broken == []
    results = report.by_result
    assert results["complete"] > 20 and results["error"] > 15 and results["left"] > 20

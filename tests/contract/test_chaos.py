"""200 requests of every kind, half of them hostile: nothing leaks, nothing hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from benchmarks.shared.traffic import Traffic
from tests import doors
from tests.serving import wait_for

_GROWTH = 24_000_000  # bytes; allocators keep some of what a burst needed
# How each kind ends; any may find the queue full, as much as a machine is busy.
_ENDS = {
    **dict.fromkeys(("stream", "whole", "chat", "grammar", "several", "slow_reader"), "complete"),
    **dict.fromkeys(("oversize", "invalid_json", "bad_value"), "error"),
    **dict.fromkeys(("leaves", "disconnects"), "left"),
}


def test_nothing_leaks_under_mixed_and_hostile_traffic(model: Path, guesser: Path) -> None:
    options = {"runtime__slots": 4, "server__queue_size": 8}
    with doors.server(model, model__drafter=f"suffix,{guesser}", **options) as server:
        asyncio.run(Traffic(server.url, seed=1).run(60, 8))  # buffers reach their size
        wait_for(server.is_idle)
        n_files = psutil.Process().num_fds()
        assert any(_grows(server, seed) < _GROWTH for seed in (2, 3, 4))
        assert server.is_idle()
        wait_for(lambda: psutil.Process().num_fds() <= n_files + 4)


def _grows(server: doors.Server, seed: int) -> int:
    """Bytes of 200 requests. Each time, if something leaks; once, if a burst was the largest."""
    n_bytes = psutil.Process().memory_info().rss
    report = asyncio.run(Traffic(server.url, seed=seed).run(200, 12))
    wait_for(server.is_idle)
    assert len(report.outcomes) == 200
    assert [o for o in report.outcomes if o.result not in (_ENDS[o.kind], "busy")] == []
    assert {outcome.kind for outcome in report.outcomes} == _ENDS.keys()
    assert all(report.by_result[end] > 0 for end in ("complete", "error", "left"))
    return psutil.Process().memory_info().rss - n_bytes

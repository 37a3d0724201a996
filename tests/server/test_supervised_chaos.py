"""A short run of benchmarks/proofs/chaos.py: kills, poison and reloads cost clients nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.proofs.chaos import Chaos, write
from benchmarks.shared import served


def test_honest_streams_get_their_texts_through_kills_poison_and_reloads(
    target: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.yaml", target, threads=1)
    with served.parlay(str(path)) as server:
        outcome = asyncio.run(Chaos(server, path, seed=1).run(8, 8, 3))
    assert outcome.problems() == [], outcome.details
    assert outcome.n_kills >= 1 and outcome.n_reloads >= 2
    assert outcome.honest["complete"] > 20 and sum(outcome.hostile.values()) > 10

"""A short run of benchmarks/proofs/chaos.py: kills, poison and reloads cost clients nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.proofs.chaos import Chaos, Outcome, write
from benchmarks.shared import served
from tests.serving import PATIENCE_S


def enough(seen: Outcome) -> bool:
    """Killed and well again, reloaded, and asked all the while."""
    asked = seen.honest["complete"] > 20 and sum(seen.hostile.values()) > 10
    return asked and seen.n_reloads >= 2 and len(seen.down_s) >= 1


def test_honest_streams_get_their_texts_through_kills_poison_and_reloads(
    target: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.yaml", target, threads=1)
    with served.parlay(str(path)) as server:
        chaos = Chaos(server, path, seed=1)
        run = asyncio.wait_for(chaos.run(0, 8, 1.5, enough), PATIENCE_S)
        outcome = asyncio.run(run)
    assert outcome.problems() == [], outcome.details

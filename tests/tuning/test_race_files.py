"""What a tuning leaves behind for the map."""

from __future__ import annotations

from parlay.bench.sample import Sample
from parlay.tuning.race_files import _whole_laps


def sample(repeat: int, prompt: str, arm: str) -> Sample:
    return Sample(prompt=prompt, arm=arm, repeat=repeat, position=0, at_s=0.0, outcome="ok")


def test_a_lap_in_which_the_time_was_over_is_left_out() -> None:
    whole = [sample(r, p, a) for r in (0, 1) for p in ("x", "y") for a in ("plain", "suffix")]
    cut = [sample(2, "x", "plain"), sample(2, "x", "suffix")]
    assert _whole_laps([*whole, *cut], 4) == whole
    assert _whole_laps(cut, 4) == []

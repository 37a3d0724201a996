"""The benchmark of choosing on the device: a short run, both ways, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measurements import device_sampling


def test_the_device_chooses_the_tokens_and_leads_that_the_host_does(
    tiny_llama: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "found.json"
    device_sampling.main(
        ["--drafter", str(tiny_llama), "--tokens", "12", "--repeats", "1", "--json", str(kept)]
    )
    found = json.loads(kept.read_text("utf-8"))
    assert found["on_device"]
    assert found["same_tokens"] == found["n_tokens"] == 12
    assert found["largest_difference"] == 0.0
    assert found["host_us"] > 0 and found["device_us"] > 0

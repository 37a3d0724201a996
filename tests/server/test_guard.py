"""The deployment's thresholds act in a running server, and say so."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests import tiny_models
from tests.server.running import running
from tests.serving import wait_for


@pytest.fixture(scope="module")
def bad_drafter(tiny_folder: Path, target: Path) -> Path:
    """Almost never right."""
    return tiny_models.perturb(target, tiny_folder / "bad-drafter.gguf", noise=3.0)


@pytest.mark.parametrize("key", ["min_token_acceptance", "min_sequence_acceptance"])
def test_low_acceptance_switches_speculation_off(target: Path, bad_drafter: Path, key: str) -> None:
    body = {"prompt": "hello", "max_tokens": 120, "temperature": 0}
    options = {f"runtime__{key}": 0.5}
    with running(target, model__drafter=str(bad_drafter), **options) as server:
        wait_for(lambda: server.service.drafter.state == "ready")
        spec = httpx.post(f"{server.url}/v1/completions", json=body).json()["speculation"]
        assert spec["token_acceptance"] < 0.5
        assert spec["fallbacks"]["low_acceptance"] > 50
        wait_for(lambda: server.service.alerts.n_raised["low_acceptance"] == 1)


def test_without_thresholds_nothing_is_switched_off(target: Path, bad_drafter: Path) -> None:
    body = {"prompt": "hello", "max_tokens": 120, "temperature": 0}
    with running(target, model__drafter=str(bad_drafter)) as server:
        wait_for(lambda: server.service.drafter.state == "ready")
        spec = httpx.post(f"{server.url}/v1/completions", json=body).json()["speculation"]
        assert "low_acceptance" not in spec["fallbacks"]

"""What the tests of tuning share."""

from __future__ import annotations

import pytest

from parlay.bench import statistics


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race is decided the same with fewer, in half the time."""
    monkeypatch.setattr(statistics, "N_RESAMPLES", 400)

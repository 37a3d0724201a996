"""The tour of `make demo`, on tiny models: three ways to one text, and an honest verdict."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from parlay import Parlay
from parlay.cli import demo


def test_the_tour_shows_the_drafters_acceptance_and_ends_well(
    tiny_llama: Path, tiny_drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    monkeypatch.setattr(demo, "MAX_TOKENS", 40)
    out = Console(file=io.StringIO(), width=200)
    with Parlay(tiny_llama, draft=f"suffix,{tiny_drafter}", context_size=2048, threads=1) as parlay:
        code = demo.tour(parlay, out)
        told = out.file.getvalue()  # type: ignore[attr-defined]
        assert code == 0, told
        assert parlay.engine.drafts.named == ["model", "suffix"]
    assert "the three texts are identical" in told
    first = re.search(r"(\d+)% of its first tokens were right", told)
    assert first is not None and 0 < int(first[1]) <= 100
    assert re.search(
        r"such a round takes \d+\.\d\d plain ones .*: (by these )?it (pays|does not pay)", told
    )
    assert re.search(r"controller: \d\.\d\dx .*(it bet in|it did not bet)", told)


@pytest.mark.parametrize("pays", [True, False])
def test_prices_and_the_measurement_may_disagree_and_that_is_said(pays: bool) -> None:
    assert demo._paid(1.5, pays, pays).endswith("pays here" if pays else "does not pay here")
    told = demo._paid(1.5, pays, not pays)
    assert f"by these it {'pays' if pays else 'does not pay'}, in this one answer it did" in told
    assert "parlay bench" in told

"""Several draft models at once: each by its name, priced apart, the text as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parlay import Parlay
from parlay.control.choice import FixedWindow
from parlay.engine.engine import Engine
from parlay.engine.settings import EngineSettings
from parlay.engine.start import model_names
from parlay.errors import BadRequest
from tests import tiny_drafters, tiny_models

# The class that has room for drafts: prices might choose the one of single rows.
HOW: dict[str, Any] = {"context_size": 256, "threads": 1, "mode": "exact", "exact_class": "2"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("several")
    return {
        "target": tiny_models.write_llama(folder / "target.gguf"),
        "one": tiny_models.write_llama(folder / "one.gguf", seed=1),
        "two": tiny_models.write_llama(folder / "two.gguf", seed=2),
        "block": tiny_drafters.write_dflash(folder / "block.gguf"),
        "other block": tiny_drafters.write_dflash(folder / "other.gguf"),
    }


def test_draft_models_are_called_by_number() -> None:
    assert model_names(0) == []
    assert model_names(3) == ["model", "model2", "model3"]


def test_each_drafts_when_asked_and_the_text_stays(files: dict[str, Path]) -> None:
    draft = f"suffix,{files['one']},{files['two']}"
    with Parlay(files["target"], draft=draft, window=3, **HOW) as parlay:
        assert parlay.engine.drafts.named == ["model", "model2", "suffix"]
        texts = {}
        for name in ("none", "model", "model2"):
            answer = parlay.generate("abc def", temperature=0, max_tokens=24, raw=True, draft=name)
            texts[name] = answer.text
            drafted = {name for name, n in answer.speculation.drafted_by.items() if n}
            assert drafted == (set() if name == "none" else {name})
        assert len(set(texts.values())) == 1


def test_each_has_its_own_price(files: dict[str, Path]) -> None:
    settings = EngineSettings(files["target"], (str(files["one"]), str(files["two"])))
    with Engine(settings) as engine:
        assert engine.prices is not None
        assert engine.prices.drafter is not None
        assert set(engine.prices.drafters) == {"model2"}
        assert set(engine.prices.copy().drafters) == {"model2"}


def test_two_that_read_the_targets_states_are_refused_in_one_line(files: dict[str, Path]) -> None:
    settings = EngineSettings(files["target"], (str(files["block"]), str(files["other block"])))
    with pytest.raises(BadRequest, match="name one such") as refused:
        Engine(settings, FixedWindow(2))
    assert "\n" not in str(refused.value)


def test_they_come_and_go_together_beside_a_running_target(files: dict[str, Path]) -> None:
    with Parlay(files["target"], draft="suffix", window=2, **HOW) as parlay:
        parlay.engine.load_drafters([files["one"], files["two"]])
        assert parlay.generate(
            "abc", temperature=0, max_tokens=8, raw=True, draft="model2"
        ).speculation.n_drafted
        assert parlay.engine.drafts.named == ["model", "model2", "suffix"]
        parlay.engine.load_drafters([files["two"]])
        parlay.generate("abc", temperature=0, max_tokens=8, raw=True)
        assert parlay.engine.drafts.named == ["model", "suffix"]

"""LoRA adapters on a tiny model: what they change, and which are refused before anything loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.errors import BadRequest, ModelFileError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import Adapter, ContextSettings, ModelSettings
from tests.tiny_adapters import write_lora


def logits(path: Path, *adapters: Adapter) -> NDArray[np.float32]:
    with Model(path, ModelSettings(adapters=adapters)) as model:
        context = Context(model, ContextSettings(64, threads=1))
        rows: NDArray[np.float32] = context.decode([Span(0, 0, [5, 6, 7], 1)])[0].copy()
        context.close()
    return rows


def test_an_adapter_changes_the_logits_by_its_scale(tiny_llama: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora.gguf", tiny_llama)
    plain = logits(tiny_llama)
    assert np.array_equal(logits(tiny_llama, Adapter(lora, 0.0)), plain)
    once, twice = (logits(tiny_llama, Adapter(lora, scale)) for scale in (1.0, 2.0))
    assert not np.allclose(once, plain)
    assert not np.allclose(twice, once)


def test_two_adapters_add_up(tiny_llama: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora.gguf", tiny_llama)
    halves = logits(tiny_llama, Adapter(lora, 0.5), Adapter(lora, 0.5))
    assert np.allclose(halves, logits(tiny_llama, Adapter(lora, 1.0)), atol=1e-4)


def test_an_adapter_of_another_shape_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "wide.gguf", tiny_llama, extra=32)
    with pytest.raises(BadRequest, match=r"wide.gguf changes blk\.0\.ffn_down\.weight in another"):
        Model(tiny_llama, ModelSettings(adapters=(Adapter(lora),)))


def test_an_adapter_of_another_architecture_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "other.gguf", tiny_llama, architecture="qwen3")
    with pytest.raises(BadRequest, match="made for qwen3"):
        Model(tiny_llama, ModelSettings(adapters=(Adapter(lora),)))


def test_a_model_is_no_adapter(tiny_llama: Path, tiny_gemma3: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is no LoRA adapter"):
        Model(tiny_llama, ModelSettings(adapters=(Adapter(tiny_gemma3),)))
    with pytest.raises(ModelFileError, match=r"no.gguf"):
        Model(tiny_llama, ModelSettings(adapters=(Adapter(tmp_path / "no.gguf"),)))


def test_a_scale_is_read_after_the_last_colon() -> None:
    assert Adapter.parse("a.gguf:0.5") == Adapter(Path("a.gguf"), 0.5)
    assert Adapter.parse("a:b.gguf") == Adapter(Path("a:b.gguf"), 1.0)

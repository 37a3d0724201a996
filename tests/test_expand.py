"""A stand-in says what its source says, in a larger shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.models.expand import Expansion, Shape, Source, write
from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.facts import read_facts
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from tests import tiny_models

TEXT = [5, 9, 40, 7, 101, 33, 8, 12]


def logits(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    exact = ContextSettings(64, cache_type_k="f32", cache_type_v="f32", flash_attention="off")
    model = Model(path, ModelSettings())
    context = Context(model, exact)
    try:
        return np.array(context.decode([Span(0, 0, TEXT, len(TEXT))])[0])
    finally:
        context.close()
        model.close()


def test_a_stand_in_computes_what_its_source_computes(tmp_path: Path) -> None:
    small = tiny_models.write_llama(tmp_path / "small.gguf", n_embd=128, n_ff=128, ftype="f16")
    large = tmp_path / "large.gguf"
    shape = Shape(width=512, n_layers=5, n_heads=12, n_kv_heads=3, inner=256)
    n = write(Expansion(Source(small), shape, "f16"), large, 1024)
    facts = read_facts(large)
    assert (facts.n_layers, facts.n_ctx_train) == (5, 1024)
    assert n > 4 * sum(tensor.n_elements for tensor in Source(small).tensors.values())
    assert np.allclose(logits(large), logits(small), atol=1e-3)


def test_a_shape_smaller_than_its_source_is_refused(tmp_path: Path) -> None:
    small = tiny_models.write_llama(tmp_path / "small.gguf", n_embd=128, n_ff=128)
    with pytest.raises(SystemExit, match="layers: 1 is less"):
        Expansion(Source(small), Shape(512, 1, 12, 3, 256), "f16")

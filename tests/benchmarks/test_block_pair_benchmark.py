"""The block drafter that the benchmark of pairs writes: it runs beside any width, and numbers stay
numbers however large the target's states are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.measurements.block_pair import write_drafter
from parlay.decoding.span import Span
from parlay.decoding.states import Fed
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.state_context import StateContext
from tests import tiny_models

BLOCK = 6


@pytest.mark.parametrize("n_embd", [64, 640])  # five heads of 128 are no multiple of a group
def test_a_block_is_numbers_whatever_the_states_are(tmp_path: Path, n_embd: int) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf", n_embd=n_embd)
    path = tmp_path / "block.gguf"
    write_drafter(target, path, block_size=BLOCK, type_name="q4_0", seed=0)
    settings = ContextSettings(64, threads=1, n_batch=32, n_outputs=32)
    model, own = Model(target, ModelSettings()), Model(path, ModelSettings())
    context = Context(model, settings)
    drafter = StateContext(own, settings, context)
    try:
        states = np.random.default_rng(0).standard_normal((4, drafter.width), np.float32) * 1e6
        drafter.read([Fed(0, 0, states)])
        (rows,) = drafter.decode([Span(0, 4, [5] + [drafter.mask] * (BLOCK - 1), BLOCK)])
        assert np.isfinite(rows).all()
        assert np.abs(rows).max() > 0
    finally:
        for part in (drafter, context, own, model):
            part.close()

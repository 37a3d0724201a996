"""Chunks of a prompt share a pass only where that was tried and leaves the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact import joined_probe
from parlay.engine.exact.joined_probe import N_JOINED, joins
from parlay.llama.context import Context
from parlay.llama.kernels import can_choose
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.parlay import Parlay
from tests.engine.rig import LOGITS, N_VOCAB
from tests.scripted import ScriptedModel

CHUNK = 128
needs_choice = pytest.mark.skipif(not can_choose(), reason="this build lets nobody choose kernels")


@pytest.fixture(scope="module")
def model(tiny_wide: Path) -> Iterator[Model]:
    with Model(tiny_wide, ModelSettings()) as made:
        yield made


class Rounding(ScriptedModel):
    """A wide pass leaves something else in the cache, which only later tokens show."""

    def __init__(self) -> None:
        super().__init__(LOGITS, N_VOCAB, 64)
        self._wide = False

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = super().decode(spans)
        (span,) = spans
        if len(span.tokens) > 1:
            self._wide = len(span.tokens) > 8
        return [rows[0] + 1.0] if self._wide and len(span.tokens) == 1 else rows


def test_what_a_joined_pass_leaves_in_the_cache_must_be_the_same() -> None:
    assert joins(ScriptedModel(LOGITS, N_VOCAB, 64), 8)
    assert not joins(Rounding(), 8)


def test_a_context_that_holds_no_two_chunks_is_not_tried() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB, 16)
    assert not joins(model, 8) and model.length(0) == 0


def test_a_slow_model_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_probe, "_SLOW_S", -1.0)
    assert not joins(ScriptedModel(LOGITS, N_VOCAB, 64), 8)


@needs_choice
def test_the_kernels_of_prompts_join(model: Model) -> None:
    context = Context(model, ContextSettings(512))
    assert joins(context, CHUNK) and context.length(0) == 0
    context.close()


@needs_choice
def test_an_engine_reads_two_chunks_at_once_and_answers_as_one_that_reads_each(
    tiny_wide: Path,
) -> None:
    texts = []
    for joined in (True, False):
        with Parlay(tiny_wide, draft="suffix", mode="exact", context_size=1536) as parlay:
            planner, target = parlay.engine._loop.planner, parlay.engine.target
            if not parlay.engine.chosen.found.joined:
                pytest.skip("chunks differ on this processor")
            planner._n_joined *= joined
            widths: list[int] = []
            start = target.start

            def watched(spans: Sequence[Span], start=start, widths=widths) -> None:  # type: ignore[no-untyped-def]
                widths.extend(len(span.tokens) for span in spans)
                start(spans)

            target.start = watched  # type: ignore[method-assign]
            prompt = "The lighthouse keeper counted ships. " * 34
            answer = parlay.generate(prompt, raw=True, temperature=0, max_tokens=24)
            assert answer.exact
            assert (max(widths) == N_JOINED * CHUNK) == joined
            texts.append(answer.tokens)
    assert texts[0] == texts[1]

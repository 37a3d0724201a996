"""Text for measurements: real where a model has a vocabulary, and never twice at the same place."""

from __future__ import annotations

from pathlib import Path

from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.timing.probe_text import real_tokens
from tests.scripted import ScriptedModel, hashed_logits


def test_a_model_reads_a_page_of_real_text(tiny_llama: Path) -> None:
    with Model(tiny_llama, ModelSettings()) as model:
        context = Context(model, ContextSettings(64, threads=1))
        text = model.vocabulary.detokenize(real_tokens(context, 64))
        elsewhere = real_tokens(context, 64, place=1)
        context.close()
    assert text.startswith("The harbour wakes")
    assert elsewhere != real_tokens(context, 64)


def test_a_model_without_text_reads_tokens_that_repeat_nothing() -> None:
    model = ScriptedModel(hashed_logits(997), 997, context_size=64)
    assert len(set(real_tokens(model, 500))) == 500


def test_the_text_begins_again_at_its_end() -> None:
    model = ScriptedModel(hashed_logits(64), 64, context_size=64)
    model.sample = list(range(20))
    assert real_tokens(model, 45)[40:] == [0, 1, 2, 3, 4]

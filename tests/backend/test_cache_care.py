"""Cache care: holes are counted, compaction keeps the text going, and it must pay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from parlay.backend.cache_care import CacheCare, CareTrial, trial
from parlay.decoding.span import Span
from parlay.engine.exact.shapes import Inexact
from parlay.engine.request import Request
from parlay.engine.sequence import Sequence
from parlay.errors import DecodeError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.vocabulary import Detokenizer
from tests.front.running import running
from tests.serving import wait_for


@pytest.fixture
def context(tiny_llama: Path) -> Iterator[Context]:
    settings = ContextSettings(
        context_size=512, n_sequences=2, threads=1, cache_type_k="f16", cache_type_v="f16"
    )
    with Model(tiny_llama, ModelSettings()) as model:
        found = Context(model, settings)
        yield found
        found.close()


def test_only_a_slide_leaves_holes_and_compaction_closes_them(context: Context) -> None:
    tokens = [5 + i % 200 for i in range(400)]
    context.decode([Span(0, 0, tokens, 0)])
    context.truncate(0, 300)
    assert context.holes(0, context.length(0)) == 0
    context.shift(0, 20, 140)
    assert context.holes(0, 160) == 140 and context.length(0) == 160
    row = context.decode([Span(0, 160, [7], 1)])[0][0].copy()
    context.truncate(0, 160)
    context.compact(0)
    assert context.holes(0, 160) == 0 and context.length(0) == 160
    again = context.decode([Span(0, 160, [7], 1)])[0][0]
    # The cells' order changes the order of sums, not what is remembered.
    assert np.abs(row - again).max() < 0.01
    assert int(row.argmax()) == int(again.argmax())


def test_a_timed_compaction_leaves_the_text_as_it_was(context: Context) -> None:
    request = Request(prompt=tuple(5 + i % 200 for i in range(300)))
    seq = Sequence(request, Detokenizer(context.model.vocabulary), frozenset(), lambda *_: None)
    seq.seq_id = 0
    context.decode([Span(0, 0, seq.tokens[:-1], 0)])
    context.shift(0, 20, 140)
    del seq.tokens[20:160]
    seq.n_cached = context.length(0)
    row = context.decode([Span(0, seq.n_cached, [7], 1)])[0][0].copy()
    context.truncate(0, seq.n_cached)
    found = trial(context, seq)
    assert (
        found.cost_s > 0
        and context.length(0) == seq.n_cached
        and context.holes(0, seq.n_cached) == 0
    )
    again = context.decode([Span(0, seq.n_cached, [7], 1)])[0][0]
    assert np.abs(row - again).max() < 0.01


@pytest.mark.parametrize(
    ("fails", "reason"), [(False, Inexact.COMPACTION), (True, Inexact.RECOVERY)]
)
def test_an_answer_whose_cells_were_moved_or_read_again_is_not_exact(
    context: Context, fails: bool, reason: Inexact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> CareTrial:
        raise DecodeError("scripted failure", code=-3)

    seq = Sequence(
        Request(prompt=tuple(range(5, 205))),
        Detokenizer(context.model.vocabulary),
        frozenset(),
        lambda *_: None,
    )
    context.decode([Span(0, 0, seq.tokens[:-1], 0)])
    seq.seq_id, seq.n_cached, seq.n_firm = 0, context.length(0), 128
    if fails:
        monkeypatch.setattr("parlay.backend.cache_care.trial", broken)
    engine: Any = SimpleNamespace(target=context)
    CacheCare(engine)._compact(seq, 64)
    assert (seq.exact, seq.inexact, seq.n_firm) == (False, reason, 0)
    assert (seq.n_cached == 0) == fails


def test_a_trial_pays_only_if_the_tokens_to_come_earn_it() -> None:
    trial = CareTrial(cost_s=0.08, before_s=0.050, after_s=0.049)
    assert trial.pays(100) and not trial.pays(50)


def test_a_long_sliding_answer_is_compacted_and_goes_on(target: Path) -> None:
    body = {"prompt": "hello", "max_tokens": 10**6, "temperature": 0, "context_full": "slide"}
    options = {
        "runtime__llama__cache-type-k": "f16",
        "runtime__llama__cache-type-v": "f16",
        "monitoring__cache_compaction_interval": 64,
    }
    with running(target, **options) as server:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}) as response:
            lines = (line for line in response.iter_lines() if line)

            def compacted() -> bool:
                assert next(lines).startswith('data: {"id"')
                return bool(server.figures()["cache"]["compactions"])

            wait_for(compacted)
            for _ in range(50):
                assert '"finish_reason":null' in next(lines)
        assert httpx.get(f"{server.url}/metrics/speculative").json()["cache"]["last"]

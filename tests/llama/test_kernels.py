"""A single row past 512 cells has the bits it has among several, on llama.cpp's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.llama import context as context_module
from parlay.llama.context import Context
from parlay.llama.kernels import PROMPT_ROWS, can_choose
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from tests.llama.contexts import feed
from tests.requantise import requantise

needs_choice = pytest.mark.skipif(not can_choose(), reason="this build lets nobody choose")
TEXT = [(3 + 7 * i * i) % 240 + 3 for i in range(1300)]


@pytest.fixture(scope="module")
def model(tiny_wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Of a type whose matrix products agree at any width, so that attention decides."""
    path = tmp_path_factory.mktemp("kernels") / "q8_0.gguf"
    with Model(requantise(tiny_wide, path, "q8_0"), ModelSettings()) as made:
        yield made


def opened(model: Model, **options: object) -> Context:
    return Context(model, ContextSettings(1536, **options))  # type: ignore[arg-type]


def read(context: Context, end: int) -> None:
    for start in range(context.length(0), end, 128):
        feed(context, 0, TEXT[start : min(end, start + 128)])


def apart(context: Context, end: int, n_rows: int) -> bool:
    """Whether the next rows differ when they come one by one."""
    read(context, end)
    together = feed(context, 0, TEXT[end : end + n_rows], n_rows)
    context.truncate(0, end)
    single = [feed(context, 0, [token])[0] for token in TEXT[end : end + n_rows]]
    context.truncate(0, end)
    return not np.array_equal(together, np.stack(single))


@needs_choice
def test_rows_agree_with_single_ones_at_any_length_and_width(model: Model) -> None:
    context, usual = opened(model), opened(model, same_bits=False)
    for end in (40, 600, 1100):
        for n_rows in (2, 3, 17, PROMPT_ROWS):
            assert not apart(context, end, n_rows)
    assert apart(usual, 600, PROMPT_ROWS)  # else this test would show nothing
    context.close()
    usual.close()


@needs_choice
def test_a_pass_apart_has_the_usual_kernels_and_none_that_another_shares(model: Model) -> None:
    context, usual = opened(model, n_sequences=2), opened(model, same_bits=False)
    feed(context, 1, TEXT[:8])

    def last(context: Context, apart: bool, *beside: Span) -> NDArray[np.float32]:
        context.truncate(0, 512)
        span = Span(0, 512, TEXT[512:640], 1, apart=apart)
        found: NDArray[np.float32] = context.decode([span, *beside])[0].copy()
        return found

    for each in (context, usual):
        read(each, 512)
    plain, apart = last(context, False), last(context, True)
    assert not np.array_equal(plain, apart)
    assert np.array_equal(last(context, False), plain)  # nothing is left of the choice
    assert np.array_equal(last(usual, True), last(usual, False))
    beside = Span(1, 8, TEXT[8:9], 1)
    assert np.array_equal(last(context, True, beside), plain)
    context.close()
    usual.close()


@pytest.mark.parametrize(("same_bits", "types"), [(True, ("bf16", "f16")), (False, ("f16", "f16"))])
def test_where_kernels_cannot_be_chosen_keys_are_of_another_type(
    model: Model,
    same_bits: bool,
    types: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "can_choose", lambda: False)
    context = opened(model, same_bits=same_bits)
    assert (context.cache_types, context.kernels) == (types, None)
    if same_bits:
        assert not apart(context, 600, 3)
    context.close()


@needs_choice
def test_types_that_have_one_kernel_for_all_are_left_to_it(model: Model) -> None:
    context = opened(model, cache_type_k="bf16")
    assert context.kernels is None
    assert not apart(context, 600, 3)
    context.close()

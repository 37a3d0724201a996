"""What is made of the one string in which llama.cpp tells what it can do on this processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parlay.llama import cpu, library
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay.models import DEFAULT_DRAFTER


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    cpu.features.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    cpu.features.cache_clear()


def says(told: pytest.MonkeyPatch, text: bytes) -> None:
    told.setattr(library.C, "llama_print_system_info", lambda: text)


def test_features_are_those_that_are_there(told: pytest.MonkeyPatch) -> None:
    says(told, b"CPU : SSE3 = 1 | AVX512 = 1 | AMX_INT8 = 0 | REPACK = 1 | ")
    assert cpu.features() == {"SSE3", "AVX512", "REPACK"}


def test_weights_are_rearranged_where_the_processor_has_kernels_for_it(
    told: pytest.MonkeyPatch,
) -> None:
    says(told, b"CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 1 | ")
    assert cpu.may_rearrange()
    assert "Q4_0" in cpu.repacked_types()


def test_nothing_is_rearranged_for_kernels_that_end_the_process(told: pytest.MonkeyPatch) -> None:
    says(told, b"CPU : AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 | ")
    assert not cpu.may_rearrange()
    assert cpu.repacked_types() == frozenset()


@pytest.mark.parametrize("amx", [b"0", b"1"])
def test_a_model_is_loaded_accordingly(told: pytest.MonkeyPatch, amx: bytes) -> None:
    says(told, b"CPU : AVX2 = 1 | AMX_INT8 = " + amx + b" | REPACK = 1 | ")
    asked, load = [], library.C.llama_model_load_from_file

    def watched(path: bytes, params: object) -> object:
        asked.append(params.use_extra_bufts)  # type: ignore[attr-defined]
        return load(path, params)

    told.setattr(library.C, "llama_model_load_from_file", watched)
    Model(DEFAULT_DRAFTER, ModelSettings()).close()
    assert asked == [amx == b"0"]

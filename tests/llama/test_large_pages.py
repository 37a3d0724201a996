from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from parlay.decoding.span import Span
from parlay.llama import large_pages, library
from parlay.llama.context import Context
from parlay.llama.large_pages import LargePages, available
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone gives them so")

_MB = 1 << 20


def test_a_system_that_never_gives_them_is_not_asked(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    assert available(setting)
    setting.write_text("always madvise [never]\n")
    assert not available(setting)
    assert not available(tmp_path / "missing")


@pytest.mark.skipif(not available(), reason="this system gives no large pages")
def test_memory_taken_later_is_asked_for_and_memory_taken_before_is_not() -> None:
    # Not neighbours, or the system would make one region of both.
    before = mmap.mmap(-1, 16 * _MB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    pages = LargePages()
    assert pages.ask() == 0
    after = mmap.mmap(-1, 64 * _MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert 60 * _MB <= pages.ask() <= 80 * _MB
    for memory in (before, after):
        memory.close()


def load(path: Path, *, wanted: bool = True) -> Model:
    return Model(path, ModelSettings(gpu_layers=0, large_pages=wanted))


def test_weights_are_copied_where_there_is_room_and_wanted(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_pages, "available", lambda: True)
    with load(tiny_llama) as model, load(tiny_llama, wanted=False) as mapped:
        assert model.in_large_pages and not mapped.in_large_pages
    monkeypatch.setattr(library, "free_ram", lambda: tiny_llama.stat().st_size)
    with load(tiny_llama) as model:
        assert not model.in_large_pages


def test_the_copy_computes_the_same(tiny_llama: Path) -> None:
    logits = []
    for wanted in (True, False):
        with load(tiny_llama, wanted=wanted) as model:
            context = Context(model, ContextSettings(context_size=64, threads=1))
            logits.append(context.decode([Span(0, 0, [5, 6, 7], 3)])[0].copy())
            context.close()
    assert (logits[0] == logits[1]).all()

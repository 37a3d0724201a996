from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.span import Span
from parlay.llama import large_pages, library
from parlay.llama.context import Context
from parlay.llama.large_pages import LargePages, _without, available
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
    before = mmap.mmap(-1, 64 * _MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = LargePages()
    after = mmap.mmap(-1, 64 * _MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert pages.ask() >= 60 * _MB
    assert is_asked_for(middle(after)) and not is_asked_for(middle(before))
    for memory in (before, after):
        memory.close()


def middle(memory: mmap.mmap) -> int:
    byte = ctypes.c_char.from_buffer(memory, len(memory) // 2)
    return ctypes.addressof(byte)


def is_asked_for(address: int) -> bool:
    """What the system says of the region with this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text("utf-8", errors="replace").splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise LookupError(f"no region has {address:x}")


@given(st.lists(st.integers(0, 40), min_size=2, max_size=10, unique=True), st.data())
def test_what_was_known_is_cut_out_and_nothing_else(ends: list[int], data: st.DataObject) -> None:
    ends = sorted(ends[: len(ends) // 2 * 2])
    known = list(zip(ends[::2], ends[1::2], strict=True))
    start = data.draw(st.integers(0, 40))
    end = data.draw(st.integers(start + 1, 41))
    taken = {byte for a, b in known for byte in range(a, b)}
    left = [byte for a, b in _without((start, end), known) for byte in range(a, b)]
    assert left == [byte for byte in range(start, end) if byte not in taken]


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

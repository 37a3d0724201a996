"""The memory that a CPU's kernels work in begins where a line of the cache does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parlay.llama import fence
from parlay.llama.context import Context
from parlay.llama.hacks import records, work_memory
from parlay.llama.hacks.work_memory import LINE, WorkMemory, can_align
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from tests.llama.contexts import feed

needs_record = pytest.mark.skipif(
    fence.hacks() is None or not can_align(), reason="nothing is aligned by this engine, or here"
)
TEXT = [(3 + 7 * i * i) % 240 + 3 for i in range(600)]


@pytest.fixture(scope="module")
def model(tiny_wide: Path) -> Iterator[Model]:
    with Model(tiny_wide, ModelSettings()) as made:
        yield made


@pytest.fixture
def contexts(model: Model) -> Iterator[list[Context]]:
    """Several, by chance one in four would be aligned; attention needs more as texts grow."""
    made = [Context(model, ContextSettings(1024, flash_attention="off")) for _ in range(5)]
    yield made
    for context in made:
        context.close()


def places(context: Context) -> list[tuple[int, int]]:
    assert context._work is not None
    return [(record.work, record.n_bytes) for record in context._work._records]


@needs_record
def test_it_is_aligned_after_a_pass_and_after_one_that_needs_more(
    contexts: list[Context],
) -> None:
    for context in contexts:
        feed(context, 0, TEXT[:1])
        before = places(context)
        feed(context, 0, TEXT[1:500])
        after = places(context)
        assert len(after) == 1
        assert after[0][1] > before[0][1], "else the second pass shows nothing"
        assert [work % LINE for work, _ in (*before, *after)] == [0, 0]


@needs_record
def test_it_changes_no_bit_of_what_is_computed(contexts: list[Context]) -> None:
    aligned, usual = contexts[:2]
    usual._work = None
    for context in (aligned, usual):
        feed(context, 0, TEXT[:500])
    assert np.array_equal(
        feed(aligned, 0, TEXT[500:520], 20).copy(), feed(usual, 0, TEXT[500:520], 20)
    )


@needs_record
def test_memory_that_is_not_as_large_as_the_record_says_is_left_alone() -> None:
    libc = work_memory._libc()
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    for shift, n_bytes in ((0, 1 << 20), (0, 1 << 50), (1 << 45, 4096)):
        taken = [libc.malloc(4096) for _ in range(5)]
        found = [
            work_memory._Record(n_threads=1, work=place + shift, n_bytes=n_bytes) for place in taken
        ]
        for record, place in zip(found, taken, strict=True):
            work_memory._align(record)
            assert (record.work, record.n_bytes) == (place + shift, n_bytes)
            libc.free(place)


@needs_record
def test_memory_of_which_a_part_has_large_pages_is_aligned() -> None:
    libc = work_memory._libc()
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    n_bytes, page = 16 << 20, 2 << 20
    places = [libc.malloc(n_bytes) for _ in range(4)]  # one in four is aligned by chance
    taken = next(place for place in places if place % LINE)
    for place in places:
        if place != taken:
            libc.free(place)
    middle = ctypes.c_void_p((taken + n_bytes // 2) // page * page)
    assert libc.madvise(middle, ctypes.c_size_t(page), mmap.MADV_HUGEPAGE) == 0
    record = work_memory._Record(n_threads=1, work=taken, n_bytes=n_bytes)
    work_memory._align(record)
    assert record.work != taken and record.work % LINE == 0
    libc.free(record.work)


@needs_record
def test_a_backend_whose_record_tells_of_other_threads_is_left_alone(
    contexts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = contexts[0]._open_handle
    with monkeypatch.context() as patch:
        idle = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
        patch.setattr(work_memory, "function_of", lambda *_: idle)  # changes no number of threads
        assert WorkMemory(context)._records == []
    with monkeypatch.context() as patch:
        patch.setattr(records, "device_of", lambda _: 3)
        assert WorkMemory(context)._records == []
    assert len(WorkMemory(contexts[0]._open_handle)._records) == 1

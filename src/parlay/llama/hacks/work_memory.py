"""Work memory: where a CPU's kernels keep what they have computed in between.

ggml takes it by `new`, and so it begins anywhere in a line of the cache. With registers as wide as
a line (AVX-512) every second access then touches two lines, and prompts are read 5 to 14 % slower
(results at ba28c59), in three processes of four. Here it is put where a line begins. Knows
nothing of passes.

ggml has no call for it: its own record is changed, and only where everything that is known of that
record is found in it.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys

from parlay.llama.hacks.records import data_of
from parlay.llama.kernels import backends, can_choose, device_of, function_of
from parlay.llama.large_pages import own_regions
from parlay.llama.library import is_cpu

log = logging.getLogger("parlay.llama")

LINE = 64  # bytes
_SLACK = 8192  # bytes that the system may give beyond those that were asked for: a page and a head
_POINTER = ctypes.c_void_p


class _Record(ctypes.Structure):
    """What ggml keeps of a CPU backend, as far as it matters (`ggml_backend_cpu_context`)."""

    _fields_ = (
        ("n_threads", ctypes.c_int),
        ("threadpool", _POINTER),
        ("work", _POINTER),
        ("n_bytes", ctypes.c_size_t),
    )


class WorkMemory:
    """Of one context. Its owner tells when a pass has ended."""

    def __init__(self, handle: int) -> None:
        found = (_record_of(each) for each in backends(handle) if is_cpu(device_of(each)))
        self._records = [record for record in found if record is not None]
        self._seen: list[int | None] = [None] * len(self._records)

    def keep_aligned(self) -> None:
        """After a pass: ggml takes other memory whenever a pass needs more than any before."""
        for i, record in enumerate(self._records):
            if record.work != self._seen[i]:
                _align(record)
                self._seen[i] = record.work


def make_work_memory(handle: int, *, on_gpu: bool) -> WorkMemory | None:
    """Of a context; None where nothing is aligned."""
    return WorkMemory(handle) if can_align() and not on_gpu else None


def can_align() -> bool:
    """Whether this is a system on which that was tried, and a build that tells where it is."""
    usual = sys.platform == "linux" and platform.machine() == "x86_64"
    return usual and platform.libc_ver()[0] == "glibc" and can_choose()


def _record_of(backend: int) -> _Record | None:
    """A backend's record; None where it does not look as it should."""
    data, address = data_of(backend), function_of(backend, b"ggml_backend_set_n_threads")
    if data is None or not address:
        return None
    use_threads = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_int)(address)
    record = _Record.from_address(data)
    n = record.n_threads
    shown = []
    for each in (n + 1, n):
        use_threads(backend, each)
        shown.append(record.n_threads)
    return record if shown == [n + 1, n] and n > 0 else None


def _align(record: _Record) -> None:
    """Put it where a line of the cache begins, as large as it is; what it holds is of no more use.
    ggml frees it as it frees its own."""
    if not record.work or record.work % LINE == 0:
        return
    libc = _libc()
    if not _is_taken(record, libc):
        log.debug("the work memory of llama.cpp stays where it is: its record has changed")
        return
    n_bytes = -(-record.n_bytes // LINE) * LINE
    aligned = libc.aligned_alloc(LINE, n_bytes)
    if aligned:
        libc.free(record.work)
        record.work, record.n_bytes = aligned, n_bytes


def _is_taken(record: _Record, libc: ctypes.CDLL) -> bool:
    """Whether the record names memory that the system gave, of just that size."""
    start, end = record.work, record.work + record.n_bytes
    if not any(first < start and end <= last for first, last in own_regions()):
        return False
    given = libc.malloc_usable_size(start)
    return bool(record.n_bytes <= given <= record.n_bytes + _SLACK)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    libc.aligned_alloc.restype = _POINTER
    libc.free.argtypes, libc.free.restype = [_POINTER], None
    libc.malloc_usable_size.argtypes = [_POINTER]
    libc.malloc_usable_size.restype = ctypes.c_size_t
    return libc

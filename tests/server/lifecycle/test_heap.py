"""One heap for all threads, where the allocator lets one choose."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from parlay.server.lifecycle.heap import share_heap

PROGRAM = """
import ctypes, sys, threading
from parlay.server.lifecycle.heap import share_heap
assert share_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=lambda: libc.malloc(1000)) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.stdout.flush()
libc.malloc_stats()
"""


def test_threads_share_one_heap() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_stats"):
        assert not share_heap()
        pytest.skip("not glibc")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Arena 0" in done.stderr and "Arena 1" not in done.stderr

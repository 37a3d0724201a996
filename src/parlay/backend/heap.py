"""One heap for all threads of a server: memory that one thread frees, another can use.

glibc gives every thread a heap of its own and keeps what was freed in each; a server whose requests
pass through many threads seems to leak (results at ba28c59). Knows nothing else.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # glibc's malloc.h


def share_heap() -> bool:
    """Before threads are started; False where the allocator is another one."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))
    except (AttributeError, OSError, TypeError):  # no glibc: nothing to set, nothing to fix
        return False

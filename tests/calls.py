"""Counts what Python does, which is the same on every machine, where time is not.

Knows nothing of what is counted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def python_calls(
    function: Callable[[], Result], *outside: Callable[..., Any]
) -> tuple[Result, int]:
    """What a function returns, and how many functions of Python were called for it; not those
    within calls of `outside` or of a clock that is one itself (`wild_clock.py`)."""
    n_calls, n_outside = 0, 0
    left_out = {each.__code__ for each in outside}

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal n_calls, n_outside
        if frame.f_code in left_out or frame.f_code.co_filename.endswith("wild_clock.py"):
            n_outside += (event == "call") - (event == "return")
        elif not n_outside:
            n_calls += event == "call"

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # whoever listens to it would be counted
    sys.setprofile(count)
    try:
        found = function()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return found, n_calls

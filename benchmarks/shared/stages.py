"""Where a thread's time goes, by stages that functions stand for; each without those it calls.

Knows no function: whoever measures names them. A look at the clock on each side is the price.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any


class Stages:
    """Seconds by stage, of one thread, between two looks."""

    def __init__(self, rest: str, whole: str = "") -> None:
        """`rest`: what belongs to no stage; `whole`: a stage that keeps what it calls."""
        self._rest, self._whole = rest, whole
        self._thread = 0
        self._spent: dict[str, float] = defaultdict(float)
        self._stage, self._since = rest, 0.0

    def begin(self) -> None:
        """Count from here on, on this thread."""
        self._thread = threading.get_ident()
        self._spent.clear()
        self._stage, self._since = self._rest, time.perf_counter()

    def end(self) -> Mapping[str, float]:
        """What was counted."""
        self._turn_to(self._rest)
        self._thread = 0
        return dict(self._spent)

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Let a function of a class or of a module stand for a stage."""
        function = getattr(owner, name)
        setattr(owner, name, self._watched(function, stage))

    def _watched(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            if self._stage == self._whole or threading.get_ident() != self._thread:
                return function(*given, **named)
            before = self._turn_to(stage)
            try:
                return function(*given, **named)
            finally:
                self._turn_to(before)

        return watched

    def _turn_to(self, stage: str) -> str:
        now, before = time.perf_counter(), self._stage
        self._spent[before] += now - self._since
        self._stage, self._since = stage, now
        return before

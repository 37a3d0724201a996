"""A thread that does what it is handed, while whoever handed it over goes on.

Knows nothing of what that is. One thing is done at a time, and in order. What is waited for anyway
is done by whoever waits, as soon as the thread is done with what it is in the middle of: to wake a
thread and to be woken by it takes a tenth of a millisecond, and a round would wait for both.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TypeVar

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class _Work:
    """What was handed over, and who is doing something now."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.busy = Lock()  # held by whoever does something
        self._handed: deque[Callable[[], object]] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # False: there is no more to come

    def add(self, function: Callable[[], object]) -> None:
        self._handed.append(function)
        self._calls.put(True)

    def end(self) -> None:
        self._calls.put(False)

    def run(self) -> None:
        """On the thread: until there is no more to come."""
        while self._calls.get():
            with self.busy:
                self.do_next()

    def do_all(self) -> None:
        while self._handed:
            self.do_next()

    def do_next(self) -> None:
        """Whoever waits for the next thing must not wait for ever, whatever comes of this one."""
        if self._handed:  # else somebody else has done it
            function = self._handed.popleft()
            try:
                function()
            except Exception:
                log.exception("%s failed", self._name)


class OwnThread:
    """Runs until it is closed, or nobody knows it any more."""

    def __init__(self, name: str) -> None:
        self._work = _Work(name)
        thread = Thread(target=self._work.run, name=name, daemon=True)
        self._end = weakref.finalize(self, _end, self._work, thread)
        thread.start()

    def hand(self, function: Callable[[], object]) -> None:
        """Do this as soon as all else is done. Comes back at once."""
        self._work.add(function)

    def call(self, function: Callable[[], Result]) -> Result:
        """Do this as soon as all else is done, and give what comes of it."""
        with self._work.busy:
            self._work.do_all()
            return function()

    def close(self) -> None:
        """End it once all is done."""
        self._end()


def _end(work: _Work, thread: Thread) -> None:
    work.end()
    if thread is not current_thread():
        thread.join()

"""A thread that does what it is handed, one thing after the other.

Knows nothing of what that is. A pool of `concurrent.futures` does the same in twice the time, and a
round waits for it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_Queue = SimpleQueue[Callable[[], object] | None]  # None: there is no more to do


class OwnThread:
    """Runs until it is closed, or nobody knows it any more."""

    def __init__(self, name: str) -> None:
        self._work: _Queue = SimpleQueue()
        thread = Thread(target=_run, args=(self._work,), name=name, daemon=True)
        self._end = weakref.finalize(self, _end, self._work, thread)
        thread.start()

    def hand(self, function: Callable[[], object]) -> None:
        """Do this as soon as all else is done. Comes back at once."""
        self._work.put(function)

    def call(self, function: Callable[[], Result]) -> Result:
        """Do this as soon as all else is done, and give what comes of it."""
        answer: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

        def answered() -> None:
            try:
                answer.put((function(), None))
            except Exception as error:
                answer.put((None, error))

        self.hand(answered)
        found, error = answer.get()
        if error is not None:
            raise error
        result: Result = found
        return result

    def close(self) -> None:
        """End it once all is done."""
        self._end()


def _run(work: _Queue) -> None:
    while (function := work.get()) is not None:
        try:
            function()
        except Exception:  # whoever waits for the next thing must not wait for ever
            log.exception("%s failed", current_thread().name)
        del function  # nor may what it holds be held until then


def _end(work: _Queue, thread: Thread) -> None:
    work.put(None)
    if thread is not current_thread():
        thread.join()

"""The one thread that owns the models; everyone else talks to it through a queue.

Knows the loop, not what its sequences say.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from parlay.engine.faults import as_parlay
from parlay.engine.loop import Loop
from parlay.engine.sequence import Sequence
from parlay.errors import Closed, ParlayError

log = logging.getLogger("parlay.engine")
T = TypeVar("T")
WORKER = "parlay-worker"  # the name of its thread
_QUIET_S = 0.5  # without anything to do: an agent's next request comes sooner
_LOOK_UP_S = 0.2
_PATIENCE_S = 120.0  # of whoever closes it, with a pass that does not end
_REST_S = 1.0  # between looks at the machine while there is nothing to do


def _nothing() -> None:
    pass


class Worker:
    """Steps the loop while there is work, sleeps while there is none.

    It also opens the models: OpenMP keeps a pool of threads for every thread that ever computed,
    and with more pools than cores all of them stop spinning and every pass gets slower (by a fifth
    on two cores, results at ba28c59). So nobody but the worker computes.
    """

    def __init__(
        self,
        open_loop: Callable[[], Loop],
        at_rest: Callable[[], None] = _nothing,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`at_rest` is called now and then while there is nothing to do. Whoever makes one waits
        until it is open (`wait_until_open`), or closes it."""
        self._at_rest = at_rest
        self._patience_s = patience_s
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._admission = threading.Lock()  # nothing slips in behind the last look at the inbox
        self._opened: Future[Loop] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(open_loop,), name=WORKER, daemon=True
        )
        self._thread.start()

    def wait_until_open(self) -> None:
        """Raises what kept it from being opened. Looks up now and then: a signal that another
        thread got does not wake this one."""
        while not self._opened.done():
            wait([self._opened], _LOOK_UP_S)
        self._loop = self._opened.result()

    def submit(self, seq: Sequence) -> None:
        """Hand a sequence over; its sink will be called on the worker's thread."""
        self.call(lambda: self._loop.add(seq))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run something on the worker's thread, between two rounds; what came of it, or its error.
        Not done if cancelled in time."""
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work())
            except BaseException as error:  # whoever waits for it gets it, whatever it is
                if not isinstance(error, ParlayError):  # and should nobody wait, it is not lost
                    log.error("something between two rounds failed: %r", error, exc_info=error)
                done.set_exception(error)

        with self._admission:
            if self._closed.is_set():
                raise Closed("the engine is closed; open a new one")
            self._inbox.put(run)
        return done

    @property
    def alive(self) -> bool:
        """Whether it still makes answers, or was told to stop."""
        return self._thread.is_alive() or self._closed.is_set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> bool:
        """Stop after the current round; unfinished answers end with an error. False: the round
        does not end, as where a device hangs; its thread is left behind."""
        with self._admission:
            self._closed.set()
            self._inbox.put(None)  # wakes it up
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            log.error("a pass has not ended in %g s; it is left behind", self._patience_s)
        return not self._thread.is_alive()

    def _run(self, open_loop: Callable[[], Loop]) -> None:
        try:
            self._loop = open_loop()
        except BaseException as error:  # whoever opens the engine gets it, whatever it is
            self._opened.set_exception(error)
            return
        self._opened.set_result(self._loop)
        while not self._closed.is_set():
            self._take_in(block=self._loop.idle)
            if not self._closed.is_set() and not self._loop.idle:
                self._step()
        self._take_in(block=False)  # what came in last must end too
        closed = Closed("the engine was closed before the answer was complete")
        while not self._loop.idle:
            self._do(lambda: self._loop.fail_all(closed))

    def _take_in(self, *, block: bool) -> None:
        """Run what others asked for; wait for it when there is nothing else to do."""
        item = self._wait() if block else None
        try:
            while True:
                if item is not None:
                    self._do(item)
                item = self._inbox.get(block=False)
        except queue.Empty:
            return

    def _wait(self) -> Callable[[], None] | None:
        """What is asked for next; if nothing is for a while, there is time to tidy up."""
        todo, wait_s = self._tidy, _QUIET_S
        while True:
            try:
                return self._inbox.get(timeout=wait_s)
            except queue.Empty:
                self._do(todo)
                todo, wait_s = self._at_rest, _REST_S

    def _tidy(self) -> None:
        self._loop.tidy(lambda: not self._inbox.empty())

    def _do(self, item: Callable[[], None]) -> None:
        self._loop.disturb()
        try:
            item()
        except Exception:  # one caller's mistake must not stop everyone's answers
            log.exception("something between two rounds failed")

    def _step(self) -> None:
        try:
            self._loop.step()
        except Exception as error:  # whatever broke, no client may wait for ever
            log.exception("a round failed")
            failed = as_parlay(error)
            self._do(lambda: self._loop.fail_all(failed))

"""A thread of one's own: in order, one thing at a time, nothing lost, no thread left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import pytest

from parlay.proposers.own_thread import OwnThread

NAME = "a-thread-of-this-test"
PATIENCE_S = 300  # a test that waits this long has failed


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def own() -> Iterator[OwnThread]:
    thread = OwnThread(NAME)
    yield thread
    thread.close()


def test_all_is_done_in_order(own: OwnThread) -> None:
    done: list[int] = []
    for n in range(5):
        own.hand(partial(done.append, n))
    assert own.call(lambda: len(done)) == 5
    assert done == [0, 1, 2, 3, 4]


def test_what_is_handed_over_is_done_on_the_thread(own: OwnThread) -> None:
    done: SimpleQueue[str] = SimpleQueue()
    own.hand(lambda: done.put(threading.current_thread().name))
    assert done.get(timeout=PATIENCE_S) == NAME


def test_who_calls_waits_for_what_the_thread_is_in_the_middle_of_and_does_it_itself(
    own: OwnThread,
) -> None:
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def long() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        done.append(threading.current_thread().name)

    own.hand(long)
    own.hand(lambda: done.append("handed"))
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.05, may_end.set).start()
    assert own.call(threading.current_thread) is threading.current_thread()
    assert done == [NAME, "handed"]


def test_never_are_two_things_done_at_once(own: OwnThread) -> None:
    at_work, most = list[int](), list[int]()

    def work() -> None:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.0005)
        at_work.pop()

    for _ in range(50):
        own.hand(work)
        own.call(work)
    assert most == [1] * 100


def test_what_a_call_raises_is_raised_where_it_was_called(own: OwnThread) -> None:
    with pytest.raises(ZeroDivisionError):
        own.call(lambda: 1 // 0)
    assert own.call(lambda: 7) == 7


def test_who_is_handed_something_that_fails_goes_on(
    own: OwnThread, caplog: pytest.LogCaptureFixture
) -> None:
    own.hand(lambda: 1 // 0)
    assert own.call(lambda: 7) == 7
    assert f"{NAME} failed" in caplog.text


def test_what_was_handed_over_is_done_before_it_ends(own: OwnThread) -> None:
    done: list[int] = []
    own.hand(lambda: done.append(1))
    own.close()
    own.close()  # twice is no harm
    assert done == [1] and not alive()


def test_a_thread_that_nobody_knows_any_more_ends() -> None:
    own = OwnThread(NAME)
    assert own.call(alive) == [NAME]
    del own
    gc.collect()
    assert not alive()


def test_a_program_that_never_closes_it_ends() -> None:
    program = (
        "from parlay.proposers.own_thread import OwnThread\n"
        "own = OwnThread('left')\n"
        "own.hand(lambda: print('done'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "done\n"

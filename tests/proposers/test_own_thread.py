"""A thread of one's own: in order, nothing lost, and no thread is left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from parlay.proposers.own_thread import OwnThread

NAME = "a-thread-of-this-test"


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def own() -> Iterator[OwnThread]:
    thread = OwnThread(NAME)
    yield thread
    thread.close()


def test_all_is_done_in_order_on_one_thread(own: OwnThread) -> None:
    done: list[tuple[int, str]] = []
    for n in range(5):
        own.hand(partial(lambda n: done.append((n, threading.current_thread().name)), n))
    assert own.call(lambda: len(done)) == 5
    assert done == [(n, NAME) for n in range(5)]


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

"""Threads that contexts share: their number follows, and sleeping changes no bit."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.threads import Threads, can_sleep
from tests.serving import wait_for

TOKENS = list(range(5, 25))
N = min(2, os.cpu_count() or 1)


@pytest.fixture
def context(tiny_llama: Path) -> Iterator[Context]:
    with Model(tiny_llama, ModelSettings()) as model:
        made = Context(model, ContextSettings(context_size=64, n_batch=32, threads=N))
        yield made
        made.threads.close()
        made.close()


def logits(context: Context) -> bytes:
    context.clear(0)
    rows = context.decode([Span(0, 0, TOKENS, len(TOKENS))])[0]
    return np.ascontiguousarray(rows).tobytes()


def threads_now() -> set[int]:
    """Those of this process, by id: what earlier tests have left may end at any time."""
    return {thread.id for thread in psutil.Process().threads()}


def asked(name: str, context: Context) -> int:
    return int(C.optional(name, ctypes.c_int32, ctypes.c_void_p)(context._handle))


def test_the_next_pass_uses_what_was_chosen(context: Context) -> None:
    context.threads.use(1, sleeps=False)
    logits(context)
    assert asked("llama_n_threads", context) == 1
    assert asked("llama_n_threads_batch", context) == 1
    context.threads.use(N, sleeps=False)
    logits(context)
    assert asked("llama_n_threads", context) == N


def test_a_drafter_shares_the_threads_of_a_target_with_as_many(context: Context) -> None:
    same = Context(context.model, ContextSettings(context_size=64, n_batch=32, threads=N))
    same.share_threads(context)
    assert same.threads is context.threads
    same.close()


@pytest.mark.skipif(N < 2, reason="one core has nobody to wait for")
def test_a_drafter_with_another_number_keeps_its_own(context: Context) -> None:
    other = Context(context.model, ContextSettings(context_size=64, n_batch=32, threads=1))
    other.share_threads(context)
    assert other.threads is not context.threads
    other.close()


def test_sleeping_threads_give_the_same_bits_and_leave_nothing_behind(context: Context) -> None:
    before = logits(context)
    there = threads_now()
    context.threads.use(N, sleeps=True)
    if can_sleep():  # more than there are cores, so that OpenMP gives spinning up
        assert len(threads_now() - there) > (os.cpu_count() or 1)
    assert logits(context) == before
    context.threads.use(N, sleeps=False)
    wait_for(lambda: threads_now() <= there)  # each ends by itself
    assert logits(context) == before


def test_closing_ends_the_idle_team_twice_at_no_harm() -> None:
    there = threads_now()
    threads = Threads(N)
    threads.use(N, sleeps=True)
    threads.close()
    threads.close()
    wait_for(lambda: threads_now() <= there)


def test_a_while_of_other_threads_leaves_those_before_it_as_they_were(context: Context) -> None:
    for sleeps in (False, True):
        context.threads.use(N, sleeps=sleeps)
        with context.threads.meanwhile(1):
            assert context.threads.n == 1
        assert context.threads.n == N
        assert (context.threads._idle_team is not None) == (sleeps and can_sleep())

"""The draft models' coming and going: loaded beside a running target, given up under pressure.

Knows the engine and memory; never stops an answer: without a drafter rounds are plain, and say why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from parlay.decoding.round import Fallback
from parlay.engine.engine import Engine
from parlay.errors import Closed, LoadError, ParlayError, VocabularyMismatch

log = logging.getLogger("parlay.server")
# A load that failed for want of memory is tried again after this long, then twice as long.
_MIN_RETRY_S, _MAX_RETRY_S = 15.0, 600.0
LOADER = "parlay-loader"  # the name of the thread that loads
Paths = tuple[Path, ...]
Trouble = Callable[[str, str | None], None]
State = Literal["none", "loading", "ready", "absent"]


class DrafterCare:
    """One engine's draft models: all of them, or none."""

    def __init__(
        self,
        engine: Engine,
        paths: Paths,
        trouble: Trouble,
        *,
        check: Callable[[Paths], None],
        on_ready: Callable[[Paths], None],
    ) -> None:
        """`check` raises LoadError where there is no room for them."""
        self._engine = engine
        self._check = check
        self._on_ready = on_ready
        self._trouble = trouble
        self.paths = paths
        self.state: State = "loading" if paths else "none"
        self.reason: Fallback | None = Fallback.DRAFTER_LOADING if paths else None
        self.detail = ""
        self._retry_s = _MIN_RETRY_S
        self._retry_at = 0.0
        self._returning: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # one load at a time

    async def load(self) -> None:
        """Load them while the target goes on answering."""
        async with self._turn:
            if not self.paths:
                self.state = "none"
                return
            self._set("loading", Fallback.DRAFTER_LOADING)
            try:
                await _apart(self._load, self.paths)
            except Closed:
                self._set("none", None)  # the service closes: nobody waits for it
            except (ParlayError, MemoryError) as error:
                self._fail(error)
            else:
                self._on_ready(self.paths)
                self._set("ready", None)
                self._retry_s = _MIN_RETRY_S
                self._trouble("drafter", None)

    def _load(self, paths: Paths) -> None:
        there = tuple(path for path in paths if path.is_file())  # of the others loading tells
        if there:
            self._check(there)
        self._engine.load_drafters(paths)

    def give_up(self) -> None:
        """Free its memory; the rounds without it say `memory`."""
        if self.state == "ready":
            self._engine.drop_drafters(Fallback.MEMORY)
            self._set("absent", Fallback.MEMORY, "given up under memory pressure")
            self._retry_at = 0.0

    def come_back(self) -> None:
        """There is room again: loaded beside whatever else is looked after."""
        waits = self.state == "absent" and self.reason is Fallback.MEMORY
        busy = self._returning is not None and not self._returning.done()
        if waits and not busy and time.monotonic() >= self._retry_at:
            self._returning = asyncio.get_running_loop().create_task(self.load())

    def _fail(self, error: BaseException) -> None:
        reason = _reason(error)
        self._engine.drop_drafters(reason)
        self._set("absent", reason, _harmless(error, reason))
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
        self._retry_at = time.monotonic() + self._retry_s
        log.error("the drafter could not be loaded: %s", error)
        self._trouble("drafter", f"decoding plainly, {reason.value}: {self.detail}")

    def _set(self, state: State, reason: Fallback | None, detail: str = "") -> None:
        self.state, self.reason, self.detail = state, reason, detail


async def _apart(load: Callable[[Paths], None], paths: Paths) -> None:
    """On a thread that ends: loading computes, and OpenMP keeps threads for every thread that did.

    With more of them than cores none spins at barriers, and every pass is slower by a fifth.
    """
    once = ThreadPoolExecutor(1, LOADER)
    try:
        await asyncio.get_running_loop().run_in_executor(once, load, paths)
    finally:
        once.shutdown(wait=False)


def _reason(error: BaseException) -> Fallback:
    if isinstance(error, VocabularyMismatch):
        return Fallback.VOCAB
    if isinstance(error, (LoadError, MemoryError)):
        return Fallback.MEMORY if "memory" in str(error).lower() else Fallback.DRAFT_ERROR
    return Fallback.DRAFT_ERROR


def _harmless(error: BaseException, reason: Fallback) -> str:
    """What may be told to clients: the kind of error, never a path."""
    if reason is Fallback.MEMORY:
        return "there is no room for it"
    kinds = {
        "VocabularyMismatch": "its vocabulary is not the target's",
        "ModelFileError": "its file is missing or no GGUF",
        "LoadError": "llama.cpp refused it",
    }
    return kinds.get(type(error).__name__, "it failed to load")

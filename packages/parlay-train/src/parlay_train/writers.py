"""Several processes that write into one corpus: one process rarely keeps a GPU busy.

Knows processes and counts; what a writer does is `writing`'s affair.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from parlay import store
from parlay.errors import LoadError, ParlayError
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay_train.corpus import CorpusHeader, CorpusWriter
from parlay_train.writing import Writing, WritingSettings
from parlay_train.writing_prompts import Messages, read_prompts

Show = Callable[[int], None]  # tokens written in all

_MIN_SLOTS = 4
_POLL_S = 0.5
_LEAVE_S = 30.0  # for all of them together


@dataclass(frozen=True, slots=True)
class WritingJob:
    """What to write, where, and with how many processes."""

    target: Path
    folder: Path
    n_tokens: int
    seconds: float = float("inf")
    n_writers: int = 1
    gpu_layers: int = -1
    threads: int = 0
    prompts: Path | None = None
    settings: WritingSettings = field(default_factory=WritingSettings)


def write(job: WritingJob, show: Show) -> None:
    """Write so many tokens more. Interrupted, it keeps what was written."""
    given = read_prompts(job.prompts) if job.prompts else []
    if job.n_writers == 1:
        _write_alone(job, given, show)
    else:
        _write_together(job, show)


def _write_alone(job: WritingJob, given: list[Messages], show: Show) -> None:
    def progress(n: int) -> bool:
        show(n)
        return True

    _run(job, 0, given, progress)


def _run(
    job: WritingJob, index: int, given: list[Messages], progress: Callable[[int], bool]
) -> None:
    with Model(job.target, ModelSettings(job.gpu_layers)) as model:
        header = CorpusHeader(
            job.target.name,
            store.file_identity(job.target),
            model.vocabulary.size,
            job.settings.top_k,
        )
        writer = CorpusWriter(job.folder, header, f"writer{index}")
        # Another seed for each writer, and for each time that it goes on.
        seed = job.settings.seed + 1000 * (index + 1) + writer.n_shards
        settings = replace(job.settings, seed=seed)
        with closing(_open(model, writer, settings, given, job.threads)) as writing:
            writing.run(job.n_tokens, job.seconds, progress)


def _open(
    model: Model,
    writer: CorpusWriter,
    settings: WritingSettings,
    given: list[Messages],
    threads: int,
) -> Writing:
    """As many texts at once as memory allows."""
    try:
        return Writing(model, writer, settings, given, threads)
    except LoadError:
        if settings.slots // 2 < _MIN_SLOTS:
            raise
    return _open(model, writer, replace(settings, slots=settings.slots // 2), given, threads)


# -- several processes ------------------------------------------------------------------------


def _write_together(job: WritingJob, show: Show) -> None:
    # Fresh processes: a copy of one that has touched a GPU cannot use it.
    spawn = multiprocessing.get_context("spawn")
    stop, failed = spawn.Event(), spawn.SimpleQueue()
    counts: Any = spawn.Array("q", job.n_writers)
    children = [
        spawn.Process(target=_child, args=(job, i, counts, stop, failed), daemon=True)
        for i in range(job.n_writers)
    ]
    for child in children:
        child.start()
    try:
        while (
            any(child.is_alive() for child in children) and failed.empty() and not _died(children)
        ):
            show(sum(counts))
            if sum(counts) >= job.n_tokens:
                stop.set()
            time.sleep(_POLL_S)
    finally:
        stop.set()
        stuck = _leave(children)
        show(sum(counts))
    if not failed.empty():
        raise ParlayError(f"a writer failed: {failed.get()}")
    _report(_died([child for child in children if child not in stuck]), len(stuck))


def _died(children: Sequence[BaseProcess]) -> list[int]:
    """Exit codes of those that ended without a word: killed, or crashed outside of Python."""
    return [child.exitcode for child in children if child.exitcode]


def _leave(children: Sequence[BaseProcess]) -> list[BaseProcess]:
    """Wait for all of them together; returns those that had to be ended."""
    deadline = time.monotonic() + _LEAVE_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    stuck = [child for child in children if child.is_alive()]
    for child in stuck:
        child.kill()
        child.join()
    return stuck


def _report(died: Sequence[int], n_stuck: int) -> None:
    way_on = "what was written is kept; use fewer --writers or --slots if memory was short"
    if died:
        code = died[0]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        raise ParlayError(f"a writer {how} without saying why; {way_on}")
    if n_stuck:
        raise ParlayError(f"{n_stuck} writer(s) did not stop in {_LEAVE_S:.0f} s; {way_on}")


def _child(job: WritingJob, index: int, counts: Any, stop: Event, failed: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop

    def progress(n: int) -> bool:
        counts[index] = n
        return not stop.is_set()

    try:
        given = read_prompts(job.prompts) if job.prompts else []
        _run(job, index, given, progress)
    except Exception as error:  # whatever it is, the parent must hear of it
        failed.put(f"{type(error).__name__}: {error}")

"""A reply in another format than chat's: chat's deltas go through a format's writer.

Knows sequences and statistics; the format is the writer's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlay.server.api import answer_statistics as statistics
from parlay.server.api.chat import ChatChoice
from parlay.server.api.job import Event, Job
from parlay.server.api.reply import Numbers
from parlay.web.failures import Failure
from parlay.web.formats.translation import End, Writer


class FormatReply:
    """One answer in the making."""

    def __init__(
        self,
        writer: Writer,
        choice: ChatChoice,
        numbers: Callable[[Job], Numbers],
        keep: Callable[[], None],
        job: Job,
    ) -> None:
        self.id = writer.id
        self._writer = writer
        self._choice = choice
        self._numbers = numbers(job)
        self._keep = keep  # the answer, for a request that goes on from it
        self._job = job
        self._begun = False
        self._reason = "stop"

    def frame(self, event: Event) -> bytes:
        """A round as it is streamed."""
        begun = "" if self._begun else self._begin()
        return (begun + "".join([self._writer.push(part) for part in self._parts(event)])).encode()

    def take(self, event: Event) -> None:
        for part in self._parts(event):
            self._writer.push(part)

    def waiting(self) -> bytes:
        return self._writer.waiting().encode() if self._begun else self._begin().encode()

    def last(self) -> bytes:
        data = self._writer.end(self._end()).encode()
        self._keep()
        return data

    def whole(self) -> dict[str, Any]:
        found = self._writer.whole(self._end())
        self._keep()
        return found

    def failed(self, failure: Failure) -> bytes:
        begun = "" if self._begun else self._begin()
        return (begun + self._writer.failed(failure)).encode()

    def _begin(self) -> str:
        self._begun = True
        seq = self._job.sequences[0]
        return self._writer.begin(len(seq.request.prompt), seq.n_reused)

    def _parts(self, event: Event) -> list[dict[str, Any]]:
        parts = self._choice.push(event)
        if event.last:
            parts += self._choice.finish(self._numbers.reason(self._job.sequences[0]))
            self._reason = parts[-1]["finish_reason"]
        return parts

    def _end(self) -> End:
        seqs = self._job.sequences
        usage, extra = statistics.usage(seqs, self._choice.n_thought), self._numbers.of(seqs)
        return End(self._reason, usage, extra, seqs[0].stopped_by)

"""What a reply has in common in all formats: an id, choices that grow, numbers at the end.

Knows sequences and statistics; the formats of chat and plain completions are elsewhere.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, Protocol

from parlay.engine.sequence import Sequence
from parlay.errors import ParlayError
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api import answer_statistics as statistics
from parlay.server.api.job import Event, Job
from parlay.server.api.origins import Origins
from parlay.server.api.planner import Plan
from parlay.server.figures.plain_speed import PlainSpeed
from parlay.web import failures
from parlay.web import streaming as sse
from parlay.web.schema import Options, StreamOptions, speculation_fields

if TYPE_CHECKING:
    from parlay.server.lifecycle.service import Service


class Choice(Protocol):
    """One answer of a reply, in one format."""

    n_thought: int  # tokens of it that were thinking

    def push(self, event: Event) -> list[dict[str, Any]]:
        """Take a round; return the streamed choices it makes, without their index."""

    def finish(self, reason: str) -> list[dict[str, Any]]:
        """The rest, with the finish reason on the last one."""

    def whole(self) -> dict[str, Any]:
        """The choice as one object."""


class Reply:
    """A reply in the making."""

    def __init__(
        self,
        service: Service,
        plan: Plan,
        choices: Seq[Choice],
        body: Options,
        prefix: str,
        kind: str,
        job: Job,
    ) -> None:
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._job = job
        self._choices = choices
        self._kind = kind
        self._seed = plan.seed
        self._n_each = body.n
        self._numbers = Numbers(plan, job, service.observer.baseline)
        self._options = body.stream_options or StreamOptions()
        # Told with every chunk, where the client asked for it.
        wanted = self._options.include_origins
        self._origins = Origins(service.engine.model.vocabulary) if wanted else None
        model = body.model or service.model_name
        self._head = {"id": self.id, "created": int(time.time()), "model": model}
        # The same for every chunk: written out once.
        head = sse.dumps({**self._head, "object": kind})[:-1]
        self._heads = [f'data: {head},"choices":[{{"index":{i},' for i in range(len(choices))]

    def frame(self, event: Event) -> bytes:
        """A round as it is streamed."""
        if event.last or self._origins is not None:
            return sse.frame(*self.chunks(event))
        head = self._heads[event.index]
        parts = self._choices[event.index].push(event)
        return "".join([f"{head}{sse.dumps(part)[1:]}]}}\n\n" for part in parts]).encode()

    def take(self, event: Event) -> None:
        """A round of a reply that is sent whole."""
        self.chunks(event)

    def waiting(self) -> bytes:
        return sse.WAITING

    def last(self) -> bytes:
        usage = [self.usage_chunk()] if self._options.include_usage else []
        return sse.frame(*usage) + sse.DONE

    def failed(self, failure: failures.Failure) -> bytes:
        return sse.frame(failure.body) + sse.DONE

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """A round as streamed chunks; the last chunk of a choice carries its numbers."""
        choice, seq = self._choices[event.index], self._job.sequences[event.index]
        parts = choice.push(event)
        if event.last:
            parts += choice.finish(self._numbers.reason(seq))
        if self._origins is not None:
            self._origins.push(event, seq.submitted, parts)
        found = [self._chunk([{"index": event.index, **part}]) for part in parts]
        if event.last:
            found[-1] |= self._numbers.of([seq])
        return found

    def usage_chunk(self) -> dict[str, Any]:
        """The very last chunk, for those who asked: no choices, all numbers."""
        seqs = self._job.sequences
        return {
            **self._chunk([]),
            "usage": statistics.usage(seqs, self._n_thought, self._n_each),
            **self._numbers.of(seqs),
        }

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        seqs = self._job.sequences
        choices = [
            {"index": i, **choice.whole(), **(self._numbers.of([seqs[i]]) if len(seqs) > 1 else {})}
            for i, choice in enumerate(self._choices)
        ]
        return {
            **self._head,
            "object": self._kind.removesuffix(".chunk"),
            "choices": choices,
            "usage": statistics.usage(seqs, self._n_thought, self._n_each),
            "seed": self._seed,
            **self._numbers.of(seqs),
        }

    @property
    def _n_thought(self) -> int:
        return sum(choice.n_thought for choice in self._choices)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self._kind, "choices": choices}


class Numbers:
    """What every reply says at its end, in whatever format."""

    def __init__(self, plan: Plan, job: Job, baseline: PlainSpeed) -> None:
        self._plan = plan
        self._job = job
        self._baseline = baseline

    def of(self, seqs: list[Sequence]) -> dict[str, Any]:
        """Speculation, times, and what of the request was not followed."""
        plan = self._plan
        found: dict[str, Any] = {
            **speculation_fields(
                statistics.speculation(seqs, plan.mode, plan.policy, self._baseline)
            ),
            "timings": statistics.timings(seqs),
        }
        if plan.told:
            found["warnings"] = [told.as_dict() for told in plan.told]
        return found

    def reason(self, seq: Sequence) -> str:
        """OpenAI's finish reason; a broken answer is an error and not a reason."""
        if seq.finish_reason == "error":
            raise failures.of(seq.error or ParlayError("the answer broke"))
        if seq.finish_reason != "cancelled":
            return seq.finish_reason or "stop"
        if not self._job.expired:
            raise failures.unavailable("the server is shutting down", "shutting_down")
        if seq.n_generated == 0:
            raise failures.timed_out(time.perf_counter() - self._job.arrived)
        return "length"  # the time limit; what is there is still worth having


def token_figures(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    """One token in OpenAI's chat form."""
    raw = vocabulary.piece(token)
    return {"token": _shown(vocabulary, token, raw), "logprob": logprob, "bytes": list(raw)}


def _shown(vocabulary: Vocabulary, token: int, raw: bytes) -> str:
    """Half a character is written as its bytes, so that no two tokens look the same."""
    if not raw:
        return vocabulary.text_of(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

"""Streams of chunks as OpenAI's completions have them: what chat and plain text share.

Knows chunks, log-probabilities and origins; what a choice says is its door's affair.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from parlay.ask import Accepted, Score
from parlay.chat.deltas import Delta, Scores
from parlay.front import streaming as sse
from parlay.front.doors.door import Finished
from parlay.front.errors import Failure
from parlay.front.schema import Options, StreamOptions

Part = dict[str, Any]


class ChunkWriter(ABC):
    """An answer in the making; a door says what its choices look like."""

    kind = ""  # of a chunk
    _whole_kind = ""

    def __init__(self, body: Options, answer_id: str, model: str, accepted: Accepted) -> None:
        self._n = len(accepted.n_prompt)
        self._seed = accepted.seed
        self._options = body.stream_options or StreamOptions()
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}
        # The same for every chunk: written out once.
        head = sse.dumps({**self._head, "object": self.kind})[:-1]
        self._heads = [f'data: {head},"choices":[{{"index":{i},' for i in range(self._n)]
        self._ends: list[Finished | None] = [None] * self._n
        # Tokens not told yet, by choice: text may be held back, and then so are they.
        self._origins: defaultdict[int, list[Part]] = defaultdict(list)

    # -- what a door adds -----------------------------------------------------------------------

    @abstractmethod
    def parts(self, choice: int, deltas: Sequence[Delta]) -> list[Part]:
        """The streamed choices that these deltas make, without their index."""

    @abstractmethod
    def last_part(self, choice: int, reason: str) -> Part:
        """The streamed choice with the finish reason."""

    @abstractmethod
    def whole_choice(self, choice: int, reason: str) -> Part:
        """A choice as one object."""

    # -- the stream -----------------------------------------------------------------------------

    def begin(self, n_cached: int) -> str:
        return ""

    def idle(self) -> str:
        return sse.WAITING

    def delta(self, choice: int, deltas: Sequence[Delta]) -> str:
        parts = self.parts(choice, deltas)
        if self._options.include_origins:
            self._add_origins(choice, deltas, parts)
        head = self._heads[choice]
        return "".join([f"{head}{sse.dumps(part)[1:]}]}}\n\n" for part in parts])

    def end(self, choice: int, how: Finished) -> str:
        """The last chunk of a choice carries its numbers."""
        self._ends[choice] = how
        part = self.last_part(choice, how.reason)
        if self._options.include_origins:
            self._add_origins(choice, (), [part])
        return sse.data({**self._chunk([{"index": choice, **part}]), **how.numbers})

    def close(self, how: Finished) -> str:
        """The very last chunk, for those who asked: no choices, all numbers."""
        if not self._options.include_usage:
            return sse.DONE
        return sse.data({**self._chunk([]), "usage": how.usage, **how.numbers}) + sse.DONE

    def error(self, failure: Failure) -> str:
        return sse.data(failure.body) + sse.DONE

    def whole(self, how: Finished) -> Part:
        choices = [self._whole(i, end) for i, end in enumerate(self._ends) if end is not None]
        return {
            **self._head,
            "object": self._whole_kind,
            "choices": choices,
            "usage": how.usage,
            "seed": self._seed,
            **how.numbers,
        }

    def _whole(self, choice: int, end: Finished) -> Part:
        numbers = end.numbers if self._n > 1 else {}
        return {"index": choice, **self.whole_choice(choice, end.reason), **numbers}

    def _chunk(self, choices: list[Part]) -> Part:
        return {**self._head, "object": self.kind, "choices": choices}

    def _add_origins(self, choice: int, deltas: Sequence[Delta], parts: list[Part]) -> None:
        """Where each token came from, told with the last part of the pass, if there is one."""
        held = self._origins[choice]
        for scores in deltas:
            if isinstance(scores, Scores):
                held += origins_of(scores)
        if parts and held:
            parts[-1]["origins"] = list(held)
            held.clear()


def origins_of(scores: Scores) -> list[Part]:
    found = []
    for text, detail in zip(scores.texts, scores.details, strict=False):
        told: Part = {"text": text, "origin": detail.origin, "at_ms": scores.at_ms}
        if detail.origin != "plain":
            told["proposer"] = detail.proposer
        if detail.rejected:
            told["rejected"] = detail.rejected
        found.append(told)
    return found


def scored(scores: Scores) -> list[Part]:
    """Tokens in OpenAI's chat form, with the likeliest at their places."""
    return [
        {**_token(detail.score), "top_logprobs": [_token(one) for one in detail.top]}
        for detail in scores.details
        if detail.score is not None
    ]


def _token(score: Score) -> Part:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.raw)}

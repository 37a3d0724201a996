"""Parlay's own runtime as a subject: resident models, speculation switched from request to request.

Knows the Python interface and the engine's threads; nothing of HTTP or of the order of runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from parlay.bench.subjects.subject import ArmInfo, Ask, Reply, ScoredToken, TimedOut
from parlay.bench.suite import Prompt
from parlay.decoding.counts import Counts
from parlay.engine.answer import Answer
from parlay.errors import ParlayError
from parlay.parlay import Parlay, Stream
from parlay.proposers.prediction import PREDICTION
from parlay.proposers.skeleton import SKELETON
from parlay.reading.speculation import Speculation
from parlay.timing import window_passes as passes

T = TypeVar("T")

N_ALTERNATIVES: Final = 20


class OwnArm:
    """One way of asking a resident runtime: which proposer, which window."""

    def __init__(self, parlay: Parlay, info: ArmInfo, draft: str | None) -> None:
        """`draft`: names of loaded proposers, "none", or None for all that are loaded."""
        self._parlay = parlay
        self._draft = draft
        self._info = info

    @property
    def info(self) -> ArmInfo:
        return self._info

    def warm_up(self, ask: Ask) -> list[int]:
        """A prompt of the suite, then a pass of the target of every shape this arm can ask for."""
        self.ask(ask)
        engine = self._parlay.engine
        rows = on_worker(self._parlay, lambda: passes.warm_up(engine.target, self._shapes()))
        self._forget_prompts()  # those passes have overwritten them
        return [b - 1 for b in rows]

    def _shapes(self) -> range:
        """Rows of a pass: the window and one more."""
        if self._draft == "none":
            return range(1, 2)
        settings, fixed = self._parlay.engine.settings, self._info.window
        return range(1, (settings.max_window if fixed is None else fixed) + 2)

    def ask(self, ask: Ask) -> Reply:
        """A cold prompt each time: what an earlier run left in the cache would be a present."""
        self._forget_prompts()
        began = time.perf_counter()
        answer = self._answer(ask, self._draft, self._info.window)
        wall_s = time.perf_counter() - began
        return Reply(
            text=answer.text,
            n_tokens=len(answer.tokens),
            n_first=answer.n_first,
            n_prompt=answer.n_prompt,
            first_token_s=answer.prefill_s,
            decode_s=answer.decode_s,
            wall_s=wall_s,
            server_decode_s=answer.decode_s,
            finish_reason=answer.finish_reason,
            speculation=speculation_of(answer.speculation),
        )

    def score(self, ask: Ask) -> Sequence[ScoredToken]:
        """Plain decoding again, with the best alternatives at each place."""
        answer = self._answer(ask, "none", None, logprobs=N_ALTERNATIVES)
        text_of = self._parlay.engine.model.vocabulary.text_of
        return [
            ScoredToken(
                text=text_of(scored.token),
                logprob=scored.logprob,
                top=tuple((text_of(token), logprob) for token, logprob in scored.top),
            )
            for scored in answer.logprobs
        ]

    def close(self) -> None:
        """The runtime belongs to whoever made it; several arms share it."""

    def _answer(self, ask: Ask, draft: str | None, window: int | None, **options: Any) -> Answer:
        prompt = self._prompt(ask)
        stream = self._parlay.stream(
            prompt,
            tools=ask.prompt.tools,
            json_schema=ask.prompt.json_schema,
            prediction=ask.prompt.prediction or "",
            draft=_with_what_came(draft, ask.prompt),
            window=window,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            **options,
        )
        with _limit(stream, ask.time_limit_s) as late:
            answer = stream.answer
        if late.is_set():
            raise TimedOut(f"no whole answer after {ask.time_limit_s:g} s")
        return answer

    def _prompt(self, ask: Ask) -> str | Sequence[Mapping[str, Any]]:
        """The conversation; as one text for a model without a template."""
        messages = ask.prompt.messages
        if self._parlay.template is None:
            return "\n\n".join(str(m.get("content") or "") for m in messages)
        return messages

    def _forget_prompts(self) -> None:
        def forget() -> None:
            for slot in self._parlay.engine.slots.all:
                slot.tokens = []

        on_worker(self._parlay, forget)


def _with_what_came(draft: str | None, prompt: Prompt) -> str | None:
    """An arm that drafts also drafts from what comes with the prompt, as a server does."""
    if draft in (None, "none"):
        return draft
    came = {PREDICTION: prompt.prediction, SKELETON: prompt.json_schema}
    return ",".join([*(name for name, given in came.items() if given), str(draft)])


@contextmanager
def _limit(stream: Stream, seconds: float) -> Iterator[threading.Event]:
    """Cancels the answer when the time is up; the event then says so."""
    late = threading.Event()

    def cancel() -> None:
        late.set()
        assert stream.sequence is not None
        stream.sequence.cancelled = True

    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def on_worker(parlay: Parlay, function: Callable[[], T]) -> T:
    """Run something on the thread that owns the models, and wait for it."""
    try:
        return parlay.engine.call(function).result(600)
    except futures.TimeoutError:
        raise ParlayError("the runtime's worker did not answer within 10 minutes") from None


def speculation_of(counts: Counts) -> Speculation:
    """The runtime's own counts in the form of a sample."""
    depth = max(counts.drafted_at, default=0)
    return Speculation(
        drafted=counts.n_drafted,
        accepted=counts.n_accepted,
        rounds=counts.n_rounds,
        speculated_rounds=counts.n_speculated_rounds,
        fully_accepted=counts.n_fully_accepted,
        tried_at=[counts.drafted_at[j] for j in range(1, depth + 1)],
        accepted_at=[counts.accepted_at[j] for j in range(1, depth + 1)],
        windows={str(k): n for k, n in sorted(counts.windows.items())},
        proposers=dict(counts.proposers),
        fallbacks={reason.value: n for reason, n in counts.fallbacks.items()},
        draft_s=counts.draft_s,
        verify_s=counts.verify_s,
        overhead_s=counts.overhead_s,
    )

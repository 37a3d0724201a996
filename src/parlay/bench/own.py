"""Parlay's own engine as a subject: in this process, or in one of its own on other libraries.

Knows the Python interface; nothing of HTTP or of the order of runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from parlay.bench.record import ArmInfo
from parlay.bench.subject import REPETITIVE, Ask, Reply, SubjectError, TimedOut
from parlay.bench.suite import Prompt
from parlay.decoding.counts import Counts
from parlay.errors import ParlayError
from parlay.parlay import Parlay, Stream
from parlay.proposers.prediction import PREDICTION
from parlay.proposers.skeleton import SKELETON
from parlay.reading.speculation import Speculation

_WORKER_S = 600.0


class OwnArm:
    """One way of asking a loaded engine: which proposers, which window."""

    def __init__(
        self, parlay: Parlay, info: ArmInfo, draft: str | None, *, raw: bool = False
    ) -> None:
        """`draft`: names of loaded proposers, "none", or None for all that are loaded. `raw`:
        prompts are whole texts, with the template's marks in them."""
        self._parlay = parlay
        self._draft = draft
        self._raw = raw
        self.info = info

    def warm_up(self, ask: Ask) -> None:
        """A prompt of the suite, and one that is easily drafted: passes of every width it uses."""
        self.ask(ask)
        limit = max(ask.max_tokens, 2 * (self.info.window or 0))
        self.ask(Ask(REPETITIVE, limit, ask.temperature, ask.seed, ask.time_limit_s))

    def ask(self, ask: Ask) -> Reply:
        """A cold prompt each time: what an earlier run left in the cache would be a present."""
        forget_prompts(self._parlay)
        began = time.perf_counter()
        stream = self._parlay.stream(
            self._prompt(ask.prompt),
            raw=self._raw,
            tools=ask.prompt.tools,
            json_schema=ask.prompt.json_schema,
            prediction=ask.prompt.prediction or "",
            draft=_with_what_came(self._draft, ask.prompt),
            window=self.info.window,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
        )
        with _limit(stream, ask.time_limit_s) as late:
            answer = stream.answer
        if late.is_set():
            raise TimedOut(f"no whole answer after {ask.time_limit_s:g} s")
        return Reply(
            text=answer.text,
            n_tokens=len(answer.tokens),
            n_first=answer.n_first,
            n_prompt=answer.n_prompt,
            first_token_s=answer.prefill_s,
            decode_s=answer.decode_s,
            wall_s=time.perf_counter() - began,
            server_decode_s=answer.decode_s,
            finish_reason=answer.finish_reason,
            speculation=speculation_of(answer.speculation),
        )

    def _prompt(self, prompt: Prompt) -> str | Sequence[Mapping[str, Any]]:
        """The conversation; as one text for a model without a template."""
        if self._raw or self._parlay.template is None:
            return "\n\n".join(str(m.get("content") or "") for m in prompt.messages)
        return prompt.messages


def forget_prompts(parlay: Parlay) -> None:
    """Nothing of an earlier prompt may be in the cache."""

    def forget() -> None:
        for slot in parlay.engine.slots.all:
            slot.tokens = []

    parlay.engine.call(forget).result(_WORKER_S)


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


def speculation_of(counts: Counts) -> Speculation:
    """The engine's own counts in the form of a sample."""
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


# -- another build of llama.cpp: a process of its own, a line of JSON in, a line out ---------------


class OwnProcess:
    """An engine on the llama.cpp libraries in a given folder."""

    def __init__(self, options: Mapping[str, Any], library: Path) -> None:
        """`options`: keywords of `Parlay`."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "parlay.bench.own"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PARLAY_ENGINE": str(library)},
        )
        try:
            self.build = str(self.call({"open": dict(options)})["build"])
        except ParlayError:
            self.close()
            raise

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer; the far side keeps the time limit."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request, default=asdict) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise SubjectError("the process of this build has ended; is it a llama.cpp build?")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise (TimedOut if answer["late"] else SubjectError)(answer["error"])
        return answer

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait(30)


@dataclass(frozen=True, slots=True)
class ProcessArm:
    """One way of asking such a process."""

    process: OwnProcess
    info: ArmInfo
    draft: str | None

    def warm_up(self, ask: Ask) -> None:
        self._call("warm_up", ask)

    def ask(self, ask: Ask) -> Reply:
        told = self._call("ask", ask)
        spoken = told.pop("speculation")
        return Reply(**told, speculation=Speculation.model_validate(spoken) if spoken else None)

    def _call(self, verb: str, ask: Ask) -> dict[str, Any]:
        request = {"info": self.info.model_dump(), "draft": self.draft, "ask": asdict(ask)}
        return self.process.call({verb: request})


def serve() -> None:
    """The far side: answer requests until the input ends."""
    from parlay.llama import library
    from parlay.llama.settings import RopeSettings

    parlay: Parlay | None = None
    for line in sys.stdin:
        verb, body = next(iter(json.loads(line).items()))
        try:
            if verb == "open":
                if isinstance(body.get("rope"), dict):
                    body["rope"] = RopeSettings(**body["rope"])
                parlay = Parlay(**body)
                answer: dict[str, Any] = {"build": library.version()}
            else:
                assert parlay is not None
                arm = OwnArm(parlay, ArmInfo.model_validate(body["info"]), body["draft"])
                answer = _answered(arm, verb, body["ask"])
        except ParlayError as error:
            answer = {"error": error.message, "late": isinstance(error, TimedOut)}
        print(json.dumps(answer), flush=True)
    if parlay is not None:
        parlay.close()


def _answered(arm: OwnArm, verb: str, given: dict[str, Any]) -> dict[str, Any]:
    prompt = given.pop("prompt")
    messages, tools = tuple(prompt.pop("messages")), tuple(prompt.pop("tools"))
    ask = Ask(Prompt(**prompt, messages=messages, tools=tools), **given)
    if verb == "warm_up":
        arm.warm_up(ask)
        return {}
    reply = arm.ask(ask)
    told = {field.name: getattr(reply, field.name) for field in fields(reply)}
    return {**told, "speculation": reply.speculation and reply.speculation.model_dump()}


if __name__ == "__main__":
    serve()

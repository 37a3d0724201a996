"""Parlay's own runtime in a process of its own, so that two builds of llama.cpp run side by side.

A line of JSON goes in, a line comes out; knows nothing of what is being compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parlay.bench.subjects.subject import ArmInfo, Ask, Reply, ScoredToken, SubjectError, TimedOut
from parlay.bench.suite import Prompt
from parlay.errors import ParlayError
from parlay.reading.speculation import Speculation


class OwnProcess:
    """A runtime on the llama.cpp libraries in a given folder."""

    def __init__(self, options: Mapping[str, Any], library: Path) -> None:
        """`options`: keywords of `Parlay`."""
        environment = {**os.environ, "PARLAY_ENGINE": str(library)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "parlay.bench.subjects.own_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        try:
            self.build = str(self.call({"open": dict(options)})["build"])
        except ParlayError:
            self.close()
            raise

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer; the far side keeps the time limit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError as error:
            raise SubjectError("the process of this build has ended") from error
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

    def warm_up(self, ask: Ask) -> list[int]:
        return [int(k) for k in self._call("warm_up", ask)["windows"]]

    def ask(self, ask: Ask) -> Reply:
        fields = self._call("ask", ask)["reply"]
        told = fields.pop("speculation")
        return Reply(**fields, speculation=Speculation.model_validate(told) if told else None)

    def score(self, ask: Ask) -> Sequence[ScoredToken]:
        rows = self._call("score", ask)["tokens"]
        return [ScoredToken(text, p, tuple((t, q) for t, q in top)) for text, p, top in rows]

    def close(self) -> None:
        """The process belongs to whoever made it; several arms share it."""

    def _call(self, verb: str, ask: Ask) -> dict[str, Any]:
        request = {"info": self.info.model_dump(), "draft": self.draft, "ask": asdict(ask)}
        return self.process.call({verb: request})


# -- the far side ---------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until the input ends."""
    from parlay.llama import library
    from parlay.parlay import Parlay

    parlay: Parlay | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "open" in request:
                parlay = Parlay(**request["open"])
                answer: dict[str, Any] = {"build": library.version()}
            else:
                answer = _answer(parlay, request)
        except ParlayError as error:
            answer = {"error": error.message, "late": isinstance(error, TimedOut)}
        print(json.dumps(answer), flush=True)
    if parlay is not None:
        parlay.close()


def _answer(parlay: Any, request: dict[str, Any]) -> dict[str, Any]:
    from parlay.bench.subjects.own import OwnArm

    verb, body = next(iter(request.items()))
    arm = OwnArm(parlay, ArmInfo.model_validate(body["info"]), body["draft"])
    ask = _ask(body["ask"])
    if verb == "warm_up":
        return {"windows": arm.warm_up(ask)}
    if verb == "score":
        return {"tokens": [(t.text, t.logprob, t.top) for t in arm.score(ask)]}
    reply = arm.ask(ask)
    told = reply.speculation
    fields = {name: getattr(reply, name) for name in Reply.__slots__}
    return {"reply": {**fields, "speculation": told.model_dump() if told else None}}


def _ask(fields: dict[str, Any]) -> Ask:
    prompt = fields.pop("prompt")
    messages, tools = tuple(prompt.pop("messages")), tuple(prompt.pop("tools"))
    return Ask(Prompt(**prompt, messages=messages, tools=tools), **fields)


if __name__ == "__main__":
    serve()

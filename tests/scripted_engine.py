"""An engine process without a model: it says what its script says, for tests of fronts.

    python -m tests.scripted_engine FD

What it does to an ask stands in the ask's own words: "say N" makes N words, one a pass, "die" ends
the process while the prompt is read, "die after N" after N words, "hang" makes a pass that does
not end, "refuse" refuses, "nonsense" is said on the socket. The deployment has its slots, the
seconds of a pass, and a file in which is written down when such a process begins and ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay.ask import (
    Accepted,
    Ask,
    CallForm,
    Done,
    End,
    Facts,
    Figures,
    Pieces,
    Refused,
    SoFar,
    State,
)
from parlay.backend import wire
from parlay.backend.link import Link
from parlay.backend.serving import Post, Serving, Tell
from parlay.errors import LoadError

Trouble = Callable[[str, str | None], None]
JSON_CALLS = CallForm(name="json", kind="json", open="<tool_call>", close="</tool_call>")


@dataclass
class Making:
    """One answer in the making."""

    tell: Tell
    words: list[str]
    n_said: int = 0
    die_after: int | None = None
    unwanted: bool = False

    def figures(self) -> Figures:
        return Figures(n_prompt=1, n_generated=self.n_said, ttft_s=0.0)


class Scripted:
    """Its passes are made on a thread of its own, as a real engine's are."""

    def __init__(self, hello: wire.Hello, post: Post, _trouble: Trouble) -> None:
        told = hello.deployment
        if told.get("unable"):
            raise LoadError(str(told["unable"]))
        time.sleep(told.get("load_s", 0.0))
        self._pass_s = float(told.get("pass_s", 0.0))
        self._slots = int(told.get("slots", 2))
        self._born = Path(str(told["born"])) if "born" in told else None
        if self._born is not None:
            with self._born.open("a") as file:
                file.write(f"{os.getpid()}\n")
        self.facts = Facts(
            names=(str(told.get("name", "scripted")),),
            context_size=1000,
            n_slots=self._slots,
            mode="exact",
            form=JSON_CALLS,
        )
        self._post = post
        self._making: list[Making] = []
        self._waiting: list[Making] = []
        self._news = threading.Condition()
        self._pass_began: float | None = None
        self._closed = False
        self._hung = threading.Event()
        self.n_most_asked = 0
        threading.Thread(target=self._run, daemon=True).start()

    async def begin(self, ask: Ask, tell: Tell) -> Callable[[], None]:
        words = _words_of(ask)
        if words[:1] == ["refuse"]:
            tell([Refused(400, "refused as it was asked for", param="messages")])
            return lambda: None
        made = _made(words, tell)
        accepted = Accepted(
            n_prompt=(len(words),), seed=ask.seed or 0, temperature=0.0, mode="exact", policy="chat"
        )
        tell([accepted])
        if words[:1] == ["nonsense"]:
            LINK.send(b"\xff" * 10)
        if words[:1] == ["die"] and made.die_after is None:
            os._exit(9)
        with self._news:
            self._waiting.append(made)
            self.n_most_asked = max(self.n_most_asked, len(self._waiting) + len(self._making))
            self._news.notify()

        def take_back() -> None:
            made.unwanted = True

        return take_back

    def _run(self) -> None:
        self._post.begin_passes()
        while not self._closed:
            with self._news:
                self._news.wait_for(lambda: self._making or self._waiting or self._closed)
                while self._waiting and len(self._making) < self._slots:
                    self._making.append(self._waiting.pop(0))
            self._pass_began = time.monotonic()
            time.sleep(self._pass_s)
            for made in self._making:
                self._say(made)
            self._making = [each for each in self._making if each.words and not each.unwanted]
            self._waiting = [each for each in self._waiting if not each.unwanted]
            self._post.send()
            self._pass_began = None

    def _say(self, made: Making) -> None:
        if made.words[0] == "hang":
            self._hung.wait()
        if made.n_said == made.die_after:
            self._post.send()
            os._exit(9)
        text = made.words.pop(0)
        made.n_said += 1
        made.tell([Pieces(choice=0, texts=(text + " ",), n_tokens=1), SoFar(made.figures())])
        if not made.words:
            made.tell([End(0, "stop", made.figures()), Done(made.figures())])

    async def call(self, name: wire.CallName, arguments: dict[str, Any]) -> Any:
        if name == "state":
            n_busy, n_waiting = len(self._making), len(self._waiting)
            return State(status="ready", n_busy=n_busy, n_waiting=n_waiting)
        if name == "figures":
            return {"pid": os.getpid(), "most_asked": self.n_most_asked}
        if name == "save_slot":
            return arguments
        if name == "detokenize":
            return " ".join(map(str, arguments["tokens"]))
        if name == "tokenize":
            return [(n, word) for n, word in enumerate(arguments["text"].split())]
        raise ValueError(f"no {name} in the script")

    def passing_s(self) -> float:
        began = self._pass_began
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        self._closed = True
        with self._news:
            self._news.notify()
        if self._born is not None:
            with self._born.open("a") as file:
                file.write("closed\n")


def _words_of(ask: Ask) -> Sequence[str]:
    if ask.messages:
        return str(ask.messages[-1]["content"]).split()
    if ask.gap is not None:
        return ask.gap.before.split()
    return str((ask.prompts or ("",))[0]).split()


def _made(words: Sequence[str], tell: Tell) -> Making:
    if words[:2] == ["die", "after"]:
        return Making(tell, ["word"] * 1000, die_after=int(words[2]))
    if words[:1] == ["hang"]:
        return Making(tell, ["hang"])
    if words[:1] == ["say"]:
        return Making(tell, [f"w{n}" for n in range(int(words[1]))])
    return Making(tell, list(words) or ["nothing"])


if __name__ == "__main__":
    LINK = Link(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(Serving(LINK, Scripted).run())

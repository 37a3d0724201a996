"""A conversation in a terminal: its messages, its commands, what the last answer drafted.

Knows an answerer and what may be typed; how it looks and is typed is others' business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay import store
from parlay.cli.chat_answerer import Answerer, Figures, Token, Ways
from parlay.errors import BadRequest

HELP = {
    "/system TEXT": "what the model is told first; without TEXT it is shown",
    "/model NAME": "go on with another model",
    "/speculation on|off": "draft, or decode plainly: the text is the same",
    "/why": "what the last answer drafted, and what that gained",
    "/save FILE": "write the conversation; parlay chat --resume FILE goes on with it",
    "/new": "forget the conversation",
    "/quit": "leave; so does Ctrl-D",
}
_MAX_FILE = 1 << 24


class Leave(Exception):
    """The conversation is over."""


class Session:
    """Messages so far, and how the next answer is asked for."""

    def __init__(self, answerer: Answerer, ways: Ways, system: str | None = None) -> None:
        self.answerer = answerer
        self.ways = ways
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self.figures: Figures | None = None
        self._commands: dict[str, Callable[[str], str]] = {
            "/system": self._system,
            "/model": self._model,
            "/speculation": self._speculation,
            "/why": self._why,
            "/save": self._save,
            "/new": self._new,
            "/help": lambda _: help_text(),
            "/quit": self._quit,
            "/bye": self._quit,
        }

    # -- talking --------------------------------------------------------------

    def say(self, text: str) -> Generator[Token, None, None]:
        """Tokens of the answer. One that is broken off stays as far as it came; a question that
        could not be asked is taken back."""
        self.turns.append({"role": "user", "content": text})
        heard = False
        try:
            for token in self.answerer.answer(self.messages, self.ways):
                heard = True
                yield token
        finally:
            self.figures = self.answerer.figures
            if heard:
                self.turns.append({"role": "assistant", "content": self.answerer.said})
            else:
                self.turns.pop()

    @property
    def messages(self) -> list[dict[str, Any]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    # -- commands -------------------------------------------------------------

    def command(self, line: str) -> str:
        """Do what a line beginning with / says; what to show."""
        name, _, rest = line.partition(" ")
        found = self._commands.get(name)
        if found is None:
            raise BadRequest(f"{name} is no command; /help lists them")
        return found(rest.strip())

    def _system(self, text: str) -> str:
        if text:
            self.system = text
        return f"system: {self.system or 'nothing'}"

    def _model(self, name: str) -> str:
        if name:
            self.answerer.change(name)
        return f"model: {self.answerer.name}"

    def _speculation(self, word: str) -> str:
        if word not in ("on", "off", ""):
            raise BadRequest("write /speculation on or /speculation off")
        if word:
            self.ways = replace(self.ways, speculate=word == "on")
        return f"speculation is {'on' if self.ways.speculate else 'off'}"

    def _why(self, _: str) -> str:
        if self.figures is not None:
            return why(self.figures)
        if self.turns:
            return "nothing is known of the last answer: it was broken off, or nobody told"
        return "nothing has been answered yet"

    def _save(self, name: str) -> str:
        if not name:
            raise BadRequest("write /save and a file's name")
        path = Path(name).expanduser()
        content = {"model": self.answerer.name, "messages": self.messages}
        try:
            with store.whole(path) as part:
                part.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise BadRequest(f"{path} cannot be written ({error.strerror})") from None
        return f"saved: {path}"

    def _new(self, _: str) -> str:
        self.turns.clear()
        self.figures = None
        return "a new conversation"

    def _quit(self, _: str) -> str:
        raise Leave

    def resume(self, turns: list[dict[str, Any]]) -> None:
        """Go on with a conversation of earlier; its system message unless there is another."""
        if turns and turns[0]["role"] == "system":
            self.system, turns = self.system or turns[0]["content"], turns[1:]
        self.turns = turns


def read_conversation(path: Path) -> list[dict[str, Any]]:
    """One that was saved."""
    try:
        if path.stat().st_size > _MAX_FILE:
            raise BadRequest(f"{path} is too large for a conversation")
        messages = json.loads(path.read_text("utf-8"))["messages"]
        return [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}); check the path") from None
    except (ValueError, KeyError, TypeError):
        raise BadRequest(f"{path} is no conversation saved by /save") from None


def help_text() -> str:
    width = max(map(len, HELP))
    lines = [f"{name:{width}}  {says}" for name, says in HELP.items()]
    lines.append('Alt-Enter begins a new line, and so does a line of """ until the next one.')
    lines.append("Ctrl-C breaks an answer off.")
    return "\n".join(lines)


def brief(figures: Figures) -> str:
    """One line under an answer."""
    told = figures.speculation
    parts = [f"{figures.n_tokens} tokens"]
    if figures.tokens_per_second:
        parts.append(f"{figures.tokens_per_second:.1f} tok/s")
    if told.get("drafted"):
        parts.append(f"{told.get('accepted', 0)} of them drafted")
        if figures.speedup:
            parts.append(f"{figures.speedup:.2f}x plain decoding")
    return ", ".join(parts)


def why(figures: Figures) -> str:
    """What the page says of an answer, in words."""
    told, n = figures.speculation, figures.n_tokens
    if told.get("drafted"):
        lines = [
            f"{told['accepted']} of {n} tokens were guessed right;"
            f" {told['rounds']} passes of the model instead of {n}"
        ]
        if figures.speedup:
            lines.append(f"{figures.speedup:.2f}x the speed of plain decoding")
    else:
        lines = [f"{n} tokens, one pass of the model for each: nothing was guessed"]
    lines += [f"{name}: {value}" for name, value in _rows(figures) if value]
    return "\n".join(lines)


def _rows(figures: Figures) -> Iterator[tuple[str, str]]:
    told = figures.speculation
    yield "speed", f"{figures.tokens_per_second:.1f} tok/s" if figures.tokens_per_second else ""
    yield "first token after", f"{figures.ttft_ms:.0f} ms" if figures.ttft_ms else ""
    if told.get("drafted"):
        yield "tokens a pass", f"{told['acceptance_length']:.2f}"
        share = f"{told['token_acceptance']:.0%}"
        yield "drafted, accepted", f"{told['drafted']}, {told['accepted']} ({share})"
    yield "proposed by", _counts(told.get("proposers"))
    times = [told.get(f"{part}_ms") for part in ("draft", "verify", "overhead")]
    if all(isinstance(t, int | float) for t in times):
        yield "draft / verify / other", " / ".join(f"{t:.0f} ms" for t in times if t is not None)
    yield "plain passes because", _counts(told.get("fallbacks"))
    if figures.exact is not None:
        exact = "byte for byte what plain decoding writes"
        yield "text", exact if figures.exact else "every token is the model's own choice"


def _counts(found: Any) -> str:
    return ", ".join(f"{name} {n}" for name, n in (found or {}).items())

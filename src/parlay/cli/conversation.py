"""A conversation in a terminal: its messages, its commands, what the last answer drafted.

Knows an answerer and what may be typed; how it looks is `run`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlay import store
from parlay.cli.answerers import Answerer, Figures, Token, Ways
from parlay.errors import BadRequest
from parlay.pairing.manifest import config_folder

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HELP = {
    "/system TEXT": "what the model is told first; without TEXT it is shown",
    "/model NAME": "go on with another model",
    "/speculation on|off": "draft, or decode plainly: the text is the same",
    "/why": "what the last answer drafted, and what that gained",
    "/save FILE": "write the conversation; parlay run --resume FILE goes on with it",
    "/new": "forget the conversation",
    "/quit": "leave; so does Ctrl-D",
}
_MAX_FILE = 1 << 24
_MAX_HISTORY = 1 << 20
_FENCE = '"""'


class Leave(Exception):
    """The conversation is over."""


class Session:
    """Messages so far, and how the next answer is asked for."""

    def __init__(self, answerer: Answerer, ways: Ways, system: str | None = None) -> None:
        self.answerer = answerer
        self.ways = ways
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self._commands: dict[str, Callable[[str], str]] = {
            "/system": self._system,
            "/model": self._model,
            "/speculation": self._speculation,
            "/why": self._why,
            "/save": self._save,
            "/new": self._new,
            "/help": lambda _: help_text(),
            "/quit": self._quit,
        }

    @property
    def messages(self) -> list[dict[str, Any]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def say(self, text: str) -> Generator[Token, None, None]:
        """Tokens of the answer. One that is broken off stays as far as it came, without its
        thinking; a question that could not be asked is taken back."""
        self.turns.append({"role": "user", "content": text})
        asked = False
        try:
            for token in self.answerer.answer(self.messages, self.ways):
                asked = True
                yield token
        finally:
            if asked:
                self.turns.append({"role": "assistant", "content": self.answerer.said})
            else:
                self.turns.pop()

    def resume(self, path: Path) -> None:
        """Go on with a conversation that was saved; its system message unless there is another."""
        try:
            if path.stat().st_size > _MAX_FILE:
                raise BadRequest(f"{path} is too large for a conversation")
            messages = json.loads(path.read_text("utf-8"))["messages"]
            turns = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
        except OSError as error:
            raise BadRequest(f"{path} cannot be read ({error.strerror}); check the path") from None
        except (ValueError, KeyError, TypeError):
            raise BadRequest(f"{path} is no conversation saved by /save") from None
        if turns and turns[0]["role"] == "system":
            self.system, turns = self.system or turns[0]["content"], turns[1:]
        self.turns = turns

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
        if self.answerer.figures is not None:
            return why(self.answerer.figures)
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
        return "a new conversation"

    def _quit(self, _: str) -> str:
        raise Leave


def help_text() -> str:
    lines = [f"{name:{max(map(len, HELP))}}  {says}" for name, says in HELP.items()]
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
    """What was guessed, what held, and what that gained."""
    told, n = figures.speculation, figures.n_tokens
    lines = [f"{n} tokens, one pass of the model for each: nothing was guessed"]
    if told.get("drafted"):
        passes = f"{told['rounds']} passes of the model instead of {n}"
        lines = [f"{told['accepted']} of {n} tokens were guessed right; {passes}"]
        if figures.speedup:
            lines.append(f"{figures.speedup:.2f}x the speed of plain decoding")
        share = f"{told['token_acceptance']:.0%}"
        lines.append(f"drafted, accepted: {told['drafted']}, {told['accepted']} ({share})")
        lines.append(f"tokens a pass: {told['acceptance_length']:.2f}")
    for name, key in (("proposed by", "proposers"), ("plain passes because", "fallbacks")):
        if told.get(key):
            lines.append(f"{name}: " + ", ".join(f"{what} {n}" for what, n in told[key].items()))
    if figures.exact is not None:
        exact = "byte for byte what plain decoding writes"
        lines.append(f"text: {exact if figures.exact else 'each token is the choice of the model'}")
    return "\n".join(lines)


# -- what is typed ----------------------------------------------------------------------------


def typed() -> Iterator[str]:
    """Questions as they are typed, until Ctrl-D; Ctrl-C forgets the line."""
    session = _prompt_session()

    def lines() -> Iterator[str]:
        while True:
            try:
                yield session.prompt() + "\n"
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    return blocks(lines())


def blocks(lines: Iterator[str]) -> Iterator[str]:
    '''Questions: a line each, or everything between two lines of """.'''
    for line in lines:
        text = line.strip()
        if text.startswith(_FENCE):
            parts = [text[len(_FENCE) :]] if text[len(_FENCE) :] else []
            for more in [] if parts and parts[0].endswith(_FENCE) else lines:
                parts.append(more.rstrip("\n"))
                if more.rstrip().endswith(_FENCE):
                    break
            text = "\n".join(parts).removesuffix(_FENCE).strip()
        if text:
            yield text


def _prompt_session() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    # Not Ctrl-J: it is what Enter is as long as an answer comes, when lines are typed ahead.
    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        "> ",
        multiline=True,
        key_bindings=keys,
        history=FileHistory(str(history_file())),
        completer=WordCompleter([name.split()[0] for name in HELP], sentence=True),
        complete_while_typing=False,
        prompt_continuation="  ",
    )


def history_file() -> Path:
    """What was typed in earlier runs, for the arrow keys; bounded, and its user's alone."""
    path = config_folder() / "chat-history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_HISTORY:
            tail = path.read_bytes()[-_MAX_HISTORY // 2 :]
            path.write_bytes(tail[max(0, tail.find(b"\n\n#")) :])
        path.touch(mode=0o600)
        return path
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be written ({error.strerror}); set PARLAY_CONFIG"
        ) from None

"""`parlay run` as a conversation, its commands, a model here and a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from typer.testing import CliRunner

from parlay import Parlay
from parlay.cli.answerers import Figures, LocalAnswerer, Message, RemoteAnswerer, Token, Ways
from parlay.cli.conversation import Leave, Session, blocks, brief, history_file, typed
from parlay.cli.main import app
from parlay.cli.run import talk_once
from parlay.decoding.verdict import Origin
from parlay.errors import BadRequest
from tests.front.running import Running

TOLD = {
    "drafted": 6, "accepted": 4, "rounds": 6, "acceptance_length": 1.67, "token_acceptance": 0.66,
    "proposers": {"suffix": 3}, "fallbacks": {"no_draft": 2},
}  # fmt: skip


class Scripted:
    """Answers with what it was asked, word by word."""

    def __init__(self) -> None:
        self.name = "scripted"
        self.figures: Figures | None = None
        self.said = ""
        self.asked: list[tuple[list[Message], Ways]] = []
        self.thoughts = ""

    def answer(self, messages: Sequence[Message], ways: Ways) -> Iterator[Token]:
        self.asked.append((list(messages), ways))
        self.said = ""
        if messages[-1]["content"] == "fail":
            raise BadRequest("no room")
        if self.thoughts:
            yield Token(self.thoughts, None, thought=True)
        for word in str(messages[-1]["content"]).split():
            if word == "fail":
                raise BadRequest("gone")
            self.said += "" if word == "hmm" else f"{word} "
            yield Token(f"{word} ", Origin.ACCEPTED)
        self.figures = Figures(10, 50.0, 20.0, TOLD, 1.5, True)

    def change(self, model: str) -> None:
        if model == "none":
            raise BadRequest("no such model")
        self.name = model

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def session() -> Session:
    return Session(Scripted(), Ways())


def said(session: Session, text: str) -> str:
    return "".join(token.text for token in session.say(text))


def test_the_conversation_goes_on_with_what_was_said(session: Session) -> None:
    session.command("/system Be brief")
    assert said(session, "one two") == "one two "
    said(session, "three")
    assert [m["role"] for m in session.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert session.answerer.figures is not None and brief(session.answerer.figures)


def test_thinking_is_shown_and_not_sent_back(session: Session) -> None:
    answerer = session.answerer
    assert isinstance(answerer, Scripted)
    answerer.thoughts = "let me see "
    assert said(session, "one") == "let me see one "
    said(session, "two")
    assert answerer.asked[-1][0][1] == {"role": "assistant", "content": "one "}


def test_an_answer_that_is_broken_off_stays_as_far_as_it_came(session: Session) -> None:
    stream = session.say("one two three")
    next(stream)
    stream.close()
    assert session.turns[-1] == {"role": "assistant", "content": "one "}
    assert "broken off" in session.command("/why")


def test_a_question_that_could_not_be_asked_is_taken_back(session: Session) -> None:
    with pytest.raises(BadRequest):
        said(session, "fail")
    assert session.turns == []


def test_why_says_what_was_drafted_and_gained(session: Session) -> None:
    assert session.command("/why") == "nothing has been answered yet"
    said(session, "one")
    why = session.command("/why")
    assert "4 of 10 tokens were guessed right" in why and "1.50x" in why
    assert "suffix 3" in why and "no_draft 2" in why and "byte for byte" in why


def test_speculation_is_switched_and_asked_for(session: Session) -> None:
    answerer = session.answerer
    assert isinstance(answerer, Scripted)
    assert session.command("/speculation off") == "speculation is off"
    said(session, "one")
    assert not answerer.asked[-1][1].speculate
    with pytest.raises(BadRequest, match="on or"):
        session.command("/speculation maybe")


def test_a_model_that_cannot_be_had_leaves_the_old_one(session: Session) -> None:
    assert session.command("/model other") == "model: other"
    with pytest.raises(BadRequest):
        session.command("/model none")
    assert session.answerer.name == "other"


def test_what_was_saved_can_be_resumed(session: Session, tmp_path: Path) -> None:
    session.command("/system Be brief")
    said(session, "one")
    session.command(f"/save {tmp_path / 'talk.json'}")
    again = Session(Scripted(), Ways())
    again.resume(tmp_path / "talk.json")
    assert again.messages == session.messages
    other = Session(Scripted(), Ways(), system="Be long")
    other.resume(tmp_path / "talk.json")
    assert other.system == "Be long" and other.turns == session.turns
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(BadRequest, match="no conversation"):
        again.resume(tmp_path / "bad.json")


def test_what_cannot_be_resumed_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    arguments = ["run", "hi", "-m", "no-such-model", "--resume", str(tmp_path / "gone.json")]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, BadRequest)
    assert "gone.json cannot be read" in done.exception.message


def test_an_error_in_the_middle_of_an_answer_has_a_line_of_its_own(session: Session) -> None:
    out, err = Console(file=StringIO()), Console(file=StringIO())
    with pytest.raises(BadRequest):
        talk_once(session, "one two fail", out, err)
    assert isinstance(out.file, StringIO) and out.file.getvalue() == "one two \n"


def test_unknown_commands_are_told_and_quit_leaves(session: Session) -> None:
    with pytest.raises(BadRequest, match="/help"):
        session.command("/sing")
    assert "/why" in session.command("/help")
    with pytest.raises(Leave):
        session.command("/quit")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["one\n", "\n", "two\n"], ["one", "two"]),
        (['"""\n', "one\n", "\n", "two\n", '"""\n', "three\n"], ["one\n\ntwo", "three"]),
        (['"""one\n', 'two"""\n'], ["one\ntwo"]),
        (['"""one"""\n', "two\n"], ["one", "two"]),
        (['"""\n', "one\n"], ["one"]),
    ],
)
def test_questions_may_have_several_lines(lines: list[str], found: list[str]) -> None:
    assert list(blocks(iter(lines))) == found


def test_lines_typed_ahead_while_an_answer_comes_are_sent_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal is not the prompt's then, and turns Enter into a line feed."""
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path))
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("/why\n/help\nfirst\x1b\rsecond\r")
        assert list(islice(typed(), 3)) == ["/why", "/help", "first\nsecond"]


def test_the_history_is_bounded_and_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path))
    path = history_file()
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"\n# 2026\n+a question\n" * 100_000)
    assert history_file().stat().st_size < 1 << 20
    assert path.read_bytes().startswith((b"\n\n#", b"\n#"))


def test_a_server_answers_with_origins_and_figures(server: Running) -> None:
    answerer = RemoteAnswerer(server.url, None, None)
    tokens = list(answerer.answer([{"role": "user", "content": "hello"}], Ways(max_tokens=8)))
    assert tokens and all(token.origin is not None for token in tokens)
    assert answerer.figures is not None and answerer.figures.n_tokens > 0
    with pytest.raises(BadRequest, match="it has"):
        answerer.change("another")
    answerer.close()


def test_a_model_in_this_process_says_apart_what_it_thinks(tiny_llama: Path) -> None:
    grammar = 'root ::= "<think>" "on and on" "</think>" "hello"'
    answerer = LocalAnswerer(str(tiny_llama), lambda name: Parlay(name, draft="none", threads=1))
    try:
        ways = Ways(more={"grammar": grammar, "context_full": "stop"})
        tokens = list(answerer.answer([{"role": "user", "content": "hello"}], ways))
    finally:
        answerer.close()
    assert "".join(token.text for token in tokens if token.thought) == "on and on"
    assert "".join(token.text for token in tokens if not token.thought) == "hello"
    assert answerer.said == "hello"


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(BadRequest, match="does not answer"):
        RemoteAnswerer("http://127.0.0.1:9", None, None)
    with pytest.raises(BadRequest, match="no address"):
        RemoteAnswerer("http://a:port", None, None)


def test_a_strict_server_is_sent_what_openai_takes_and_its_thinking_stays_apart() -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "x"}]})
        asked.append(json.loads(request.content))
        deltas: list[dict[str, str]] = [{"reasoning_content": "hm"}, {"content": "yes"}]
        chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))

    answerer = RemoteAnswerer("http://strict", None, None, transport=httpx.MockTransport(answer))
    tokens = list(answerer.answer([{"role": "user", "content": "hi"}], Ways(max_tokens=4)))
    assert [(t.text, t.thought) for t in tokens] == [("hm", True), ("yes", False)]
    assert asked[0].keys() == {"model", "messages", "max_tokens", "stream"}

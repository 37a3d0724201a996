"""The same tokens are read by the same kernels, wherever reading begins and whoever read before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact import joints as module
from parlay.engine.exact.joints import Joints
from parlay.engine.exact.turn_marks import TurnMarks
from parlay.engine.request import Mode, Request
from tests.engine.rig import LOGITS, N_VOCAB, Rig
from tests.scripted import ScriptedModel

SIZE, CHUNK, DEEP, ROWS = 256, 8, 96, 4
OPEN, END, USER, US = 1, 2, 5, 6
MARKS = TurnMarks(((OPEN, USER),), (OPEN, US), (END,))
JOINTS = Joints(CHUNK, DEEP, MARKS, kernels=True)
HEAD: tuple[int, ...] = (OPEN, USER)
TAIL = (END, OPEN, US)

Kernel = tuple[int, int] | None  # the pass that a token was read apart in; None: any pass


@pytest.fixture(autouse=True, scope="module")
def few_rows() -> Iterator[None]:
    """So few are enough for kernels of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROMPT_ROWS", ROWS)
        yield


class Kernels(ScriptedModel):
    """Knows by which pass each token was read, as far as that changes its bits."""

    def __init__(self) -> None:
        super().__init__(LOGITS, N_VOCAB, SIZE)
        self.read: list[Kernel] = []
        self.widths: list[int] = []  # of all passes

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        (span,) = spans
        n, start = len(span.tokens), span.start
        kernel = (start, n) if span.apart and n >= ROWS else None
        joined = kernel is not None and n > CHUNK and start % CHUNK == n % CHUNK == 0
        chunks = [(at - at % CHUNK, CHUNK) for at in range(start, start + n)]
        self.read[start:] = chunks if joined else [kernel] * n
        self.widths.append(n)
        return super().decode(spans)


class Desk:
    """One slot, and what it reads."""

    def __init__(self, n_joined: int = 2 * CHUNK) -> None:
        self.model = Kernels()
        self.rig = Rig(
            target=self.model, context_size=SIZE, joints=JOINTS, window=2, n_joined=n_joined
        )

    def ask(self, prompt: Sequence[int], n: int, mode: Mode = "exact") -> tuple[int, ...]:
        """The text with its answer."""
        (seq,) = self.rig.run(Request(tuple(prompt), max_tokens=n, mode=mode))
        assert seq.exact or mode == "faithful"
        return tuple(seq.tokens)

    def kernels(self, prompt: Sequence[int]) -> list[Kernel]:
        """Those by which a prompt is read now."""
        self.ask(prompt, 1)
        return self.model.read[: len(prompt)]

    def n_read(self, prompt: Sequence[int]) -> int:
        (seq,) = self.rig.run(Request(tuple(prompt), max_tokens=1))
        return len(prompt) - seq.n_reused


words = st.lists(st.integers(7, N_VOCAB - 1), min_size=1, max_size=30)
any_text = st.lists(st.sampled_from([OPEN, END, USER, US, 9]), min_size=1, max_size=60)
turn = st.tuples(words, st.integers(1, 20), st.sampled_from(["exact", "exact", "faithful"]))


@given(turns=st.lists(turn, min_size=1, max_size=4), cut=st.integers(0, 40), last=words)
def test_a_chat_is_read_by_the_same_kernels_warm_as_cold(
    turns: list[tuple[list[int], int, Mode]], cut: int, last: list[int]
) -> None:
    desk, said = Desk(), HEAD
    for text, n, mode in turns:
        said = (*desk.ask((*said, *text, *TAIL), n, mode), END, *HEAD)
    edited = (*said[: max(2, len(said) - cut)], *last, *TAIL)  # goes on, or changes what was said
    assert desk.kernels(edited) == Desk(n_joined=0).kernels(edited)


@given(
    texts=st.lists(any_text, min_size=2, max_size=4), kept=st.integers(0, 60), n=st.integers(1, 9)
)
def test_any_texts_are_read_by_the_same_kernels_warm_as_cold(
    texts: list[list[int]], kept: int, n: int
) -> None:
    desk, said = Desk(), HEAD
    for text in texts:
        said = (*said[: 2 + kept], *text)
        assert desk.kernels(said) == Desk(n_joined=0).kernels(said)
        said = desk.ask(said, n)


@given(text=any_text, more=any_text)
def test_where_a_text_can_be_gone_on_with_does_not_depend_on_what_follows(
    text: list[int], more: list[int]
) -> None:
    short, long = (*HEAD, *text), (*HEAD, *text, *more)
    for n in range(len(short) + 1):
        assert JOINTS.last(short, n) == JOINTS.last(long, n) <= n


def test_messages_have_kernels_of_their_own_and_answers_have_those_of_their_passes() -> None:
    prompt = (*HEAD, *[9] * 27, *TAIL)  # 29 tokens, then the end and the mark of an answer
    apart = [(0, 8)] * 8 + [(8, 8)] * 8 + [(16, 8)] * 8 + [(24, 4)] * 4
    assert Desk().kernels(prompt) == [*apart, *[None] * 4]
    raw = [9] * 32
    assert Desk().kernels(raw) == [None] * 32


def test_chunks_that_are_read_apart_share_a_pass_and_others_do_not() -> None:
    prompt = (*HEAD, *[9] * 43, *TAIL)  # five chunks and a half before the mark of an answer
    joined, alone = Desk(), Desk(n_joined=0)
    assert joined.kernels(prompt) == alone.kernels(prompt)
    assert joined.model.widths == [16, 16, 8, 4, 4]
    assert alone.model.widths == [8, 8, 8, 8, 8, 4, 4]
    assert JOINTS.joined(prompt, 4, 99) == JOINTS.joined(prompt, 32, 99) == 0  # amid one; one alone
    assert JOINTS.joined(prompt, 0, 20) == 16 and JOINTS.joined(prompt, 0, 99) == 40
    assert JOINTS.is_usual(prompt, 0, 16, apart=True) and not JOINTS.is_usual(
        prompt, 4, 16, apart=True
    )
    assert not JOINTS.is_usual(prompt, 0, 16, apart=False)


def test_while_others_decode_a_pass_is_over_one_chunk() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB, SIZE)
    rig = Rig(target=model, context_size=SIZE, joints=JOINTS, slots=2, n_joined=2 * CHUNK)
    widths: list[int] = []
    decode = model.decode

    def watched(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        widths.extend(len(span.tokens) for span in spans if span.apart)
        return decode(spans)

    model.decode = watched  # type: ignore[method-assign]
    prompt = (*HEAD, *[9] * 43, *TAIL)
    rig.add(Request((3, 4), max_tokens=40, mode="exact"))
    rig.scheduler.step()
    rig.add(Request(prompt, max_tokens=1, mode="exact"))
    while not rig.scheduler.idle:
        rig.scheduler.step()
    assert widths and max(widths) == CHUNK


def test_deep_in_a_text_everything_has() -> None:
    found = Desk().kernels([9] * (DEEP + 14))
    assert found == [*[None] * DEEP, *[(DEEP, 8)] * 8, *[(DEEP + 8, 6)] * 6]


def test_a_next_turn_reads_nothing_of_an_answer_again() -> None:
    desk = Desk()
    said = desk.ask((*HEAD, *[9] * 27, *TAIL), 20)
    new = (END, *HEAD, *[9] * 20, *TAIL)
    assert desk.n_read((*said, *new)) == 1 + len(new)  # and the answer's last token, never read


def test_asked_again_a_chat_reads_its_last_token() -> None:
    desk, prompt = Desk(), (*HEAD, *[9] * 27, *TAIL, 7)
    desk.ask(prompt, 3)
    assert desk.n_read(prompt) == 1


def test_an_answer_without_a_mark_is_read_again() -> None:
    """It is taken for what others say, of which whole chunks are read at once."""
    desk = Desk()
    said = desk.ask((*HEAD, *[9] * 10), 20)
    assert desk.n_read((*said, *[9] * 10)) == len(said) + 10 - 8


def test_a_pass_over_a_part_of_a_chunk_is_usual_only_before_an_answer() -> None:
    chat, deep = (*HEAD, *[9] * 3, *TAIL), [9] * (DEEP + 6)
    assert JOINTS.is_usual(chat, 0, 4, apart=True)
    assert not JOINTS.is_usual(chat[:6], 0, 6, apart=False)
    assert not JOINTS.is_usual(deep, DEEP, 6, apart=True)

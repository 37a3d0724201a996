"""The target writes: many texts at once in one context, a finished one replaced at once.

Knows the target through `llama`; what is done with the texts is the corpus's affair. Every pass has
one row for every slot: llama.cpp keeps neighbouring sequences in one batch only without gaps, and
a GPU is quickest with a shape it has seen.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings
from parlay_train.corpus import CorpusText, CorpusWriter
from parlay_train.drawing import Drawing, Drawn
from parlay_train.frame import Template
from parlay_train.writing_prompts import Messages, Shares, WritingPrompts

Progress = Callable[[int], bool]  # tokens written so far; False stops the writing

_MIN_ANSWER = 4  # tokens; shorter ones are not worth a row on disk
_CIRCLE = 32  # a text that has repeated so many tokens will go on doing so
_CIRCLE_CHECK = 16


@dataclass(frozen=True, slots=True)
class WritingSettings:
    """What to write, and how."""

    slots: int = 32
    context_size: int = 1024
    max_user_tokens: int = 96
    # Short: later words repeat earlier ones and are guessed anyway, and more prompts fit in.
    max_answer_tokens: int = 192
    # Greedy most of the time: that is how drafts are mostly verified.
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.7, 0.7, 1.0)
    follow_ups: float = 0.15  # share of answers after which the user speaks again
    top_k: int = 32
    seed: int = 0
    shares: Shares = field(default_factory=Shares)
    device: str = "cpu"  # where tokens are drawn


@dataclass(slots=True)
class _Slot:
    """One text in the making."""

    tokens: list[int]
    waiting: deque[int]  # tokens that are given, not drawn
    n_fed: int = 0  # tokens in the cache
    user_start: int | None = None  # the target is writing the user's turn, from here on
    answer_start: int = 0
    temperature: float = 0.0
    rows: list[tuple[NDArray[Any], NDArray[Any], Any]] = field(default_factory=list)

    @property
    def drawing(self) -> bool:
        """Whether the next token is the target's to choose."""
        return not self.waiting

    @property
    def heat(self) -> float:
        return 1.0 if self.user_start is not None else self.temperature


class Writing:
    """A target at work."""

    def __init__(
        self,
        model: Model,
        writer: CorpusWriter,
        settings: WritingSettings,
        given: Sequence[Messages] = (),
        threads: int = 0,
    ) -> None:
        self._settings = settings
        self._template = Template(model)
        self._frame = self._template.frame
        self._vocabulary = model.vocabulary
        self._writer = writer
        self._prompts = WritingPrompts(settings.seed, settings.shares, given)
        self._rng = random.Random(settings.seed + 1)
        self._drawing = Drawing(settings.top_k, settings.seed, settings.device)
        self._context = Context(model, _context_settings(settings, threads))
        self._slots = [self._fresh() for _ in range(settings.slots)]

    def run(self, n_tokens: int, seconds: float, progress: Progress) -> None:
        """Write until so many tokens or seconds have gone, or `progress` says no."""
        until = time.monotonic() + seconds
        try:
            for i, slot in enumerate(self._slots):
                self._prefill(i, slot)
            while self._writer.n_generated < n_tokens and time.monotonic() < until:
                self._step()
                if not progress(self._writer.n_generated):
                    break
        finally:  # whatever stopped it, what was written is kept
            for slot in self._slots:
                self._keep(slot)
            self._writer.flush()

    def close(self) -> None:
        self._context.close()

    # -- one pass -------------------------------------------------------------

    def _step(self) -> None:
        spans = [
            Span(i, slot.n_fed, (slot.tokens[slot.n_fed],), 1) for i, slot in enumerate(self._slots)
        ]
        rows = self._context.decode_rows(spans)
        heat = np.array([slot.heat for slot in self._slots], np.float32)
        drawn = self._drawing.draw(rows, heat)
        for i, slot in enumerate(self._slots):
            slot.n_fed += 1
            if slot.waiting:
                slot.tokens.append(slot.waiting.popleft())
            elif not self._take(slot, drawn, i) or not self._has_room(slot):
                self._replace(i)

    def _take(self, slot: _Slot, drawn: Drawn, i: int) -> bool:
        """Give the slot its next token; False when its text is done."""
        token = int(drawn.tokens[i])
        if slot.user_start is not None:
            return self._take_user(slot, token)
        slot.tokens.append(token)
        slot.rows.append((drawn.top_ids[i], drawn.top_logprobs[i], drawn.tail_logprob[i]))
        if token in self._vocabulary.ends:
            return self._follow_up(slot)
        n = len(slot.rows)
        return n < self._settings.max_answer_tokens and not (
            n % _CIRCLE_CHECK == 0 and runs_in_circles(slot.tokens[slot.answer_start :])
        )

    def _take_user(self, slot: _Slot, token: int) -> bool:
        assert slot.user_start is not None
        n = len(slot.tokens) - slot.user_start
        ended = token in self._vocabulary.ends or token == self._frame.closing[0]
        if not ended and n < self._settings.max_user_tokens:
            slot.tokens.append(token)
            return True
        if n < 2 or not self._prompts.is_new(tuple(slot.tokens[slot.user_start :])):
            return False
        slot.waiting.extend(self._frame.closing)
        slot.tokens.append(slot.waiting.popleft())
        self._await_answer(slot)
        return True

    def _follow_up(self, slot: _Slot) -> bool:
        """The answer has ended: keep it, and let the user speak again now and then."""
        room = self._settings.context_size - len(slot.tokens) - self._settings.max_user_tokens
        if not self._frame.between or room < self._settings.max_answer_tokens:
            return False
        if self._rng.random() >= self._settings.follow_ups:
            return False
        self._keep(slot)
        # The template writes the end of the answer itself.
        slot.tokens.pop()
        slot.waiting.extend(self._frame.between)
        slot.tokens.append(slot.waiting.popleft())
        slot.user_start = len(slot.tokens) + len(slot.waiting)
        return True

    def _await_answer(self, slot: _Slot) -> None:
        slot.user_start = None
        slot.answer_start = len(slot.tokens) + len(slot.waiting)
        slot.temperature = self._rng.choice(self._settings.temperatures)

    # -- texts ----------------------------------------------------------------

    def _has_room(self, slot: _Slot) -> bool:
        return len(slot.tokens) + len(slot.waiting) < self._settings.context_size

    def _replace(self, i: int) -> None:
        self._keep(self._slots[i])
        self._context.clear(i)
        self._slots[i] = self._fresh()
        self._prefill(i, self._slots[i])

    def _keep(self, slot: _Slot) -> None:
        if len(slot.rows) < _MIN_ANSWER:
            slot.rows = []
            return
        ids, logprobs, tail = zip(*slot.rows, strict=True)
        end = slot.answer_start + len(slot.rows)
        tokens = np.array(slot.tokens[:end], np.int32)
        self._writer.add(
            CorpusText(
                tokens,
                slot.answer_start,
                slot.temperature,
                np.stack(ids),
                np.stack(logprobs),
                np.array(tail, np.float16),
            )
        )
        self._prompts.learn(self._vocabulary.detokenize(tokens[slot.answer_start :].tolist()))
        slot.rows = []

    def _fresh(self) -> _Slot:
        """A slot with a prompt: given, or to be written."""
        messages = self._prompts.next()
        prompt = self._template.tokens(messages) if messages is not None else []
        room = self._settings.context_size - self._settings.max_answer_tokens
        if not 0 < len(prompt) <= room:
            prompt = []
        tokens = prompt or list(self._frame.opening)
        slot = _Slot(tokens[:1], deque(tokens[1:]))
        if prompt:
            self._await_answer(slot)
        else:
            slot.user_start = len(tokens)
        return slot

    def _prefill(self, i: int, slot: _Slot) -> None:
        """Read a long prompt in passes of its own; a short one goes along, a token a step."""
        if len(slot.waiting) <= self._settings.slots // 4:
            return
        slot.tokens += slot.waiting
        slot.waiting.clear()
        size = _context_settings(self._settings, 0).n_batch
        while slot.n_fed < len(slot.tokens) - 1:
            chunk = slot.tokens[slot.n_fed : len(slot.tokens) - 1][:size]
            self._context.decode_rows([Span(i, slot.n_fed, chunk, 0)])
            slot.n_fed += len(chunk)


def runs_in_circles(tokens: Sequence[int]) -> bool:
    """Whether the last tokens are one short run over and over."""
    tail = np.array(tokens[-2 * _CIRCLE :], np.int32)
    if len(tail) < 2 * _CIRCLE:
        return False
    return any(np.array_equal(tail[period:], tail[:-period]) for period in range(1, _CIRCLE + 1))


def _context_settings(settings: WritingSettings, threads: int) -> ContextSettings:
    return ContextSettings(
        context_size=settings.context_size,
        n_sequences=settings.slots,
        n_batch=max(512, settings.slots),
        n_outputs=settings.slots,
        threads=threads,
    )

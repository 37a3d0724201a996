"""A sequence: one answer in the making, from its prompt to its last token.

Knows text and stop rules, not models: the scheduler moves it through passes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from parlay.control.choice import Held
from parlay.decoding.counts import Counts
from parlay.decoding.logprobs import TokenLogprob
from parlay.decoding.reasoning import Reasoning
from parlay.decoding.round import Round
from parlay.decoding.stop import StopStrings
from parlay.decoding.verdict import Origin, Verdict
from parlay.engine.exact.shapes import Inexact
from parlay.engine.request import Request
from parlay.errors import ParlayError

log = logging.getLogger("parlay.engine")
KEPT_ROUNDS = 1024  # of each answer, the latest
_NUMBERS = count(1)


class Text(Protocol):
    """Turns tokens into text, piece by piece."""

    def push(self, token: int) -> str:
        """The text that is complete once this token has come."""

    def flush(self) -> str:
        """Whatever is left."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of the answer and the text that became certain with it."""

    token: int
    text: str
    origin: Origin
    proposer: str  # of accepted tokens, or "none"
    logprob: TokenLogprob | None = None
    rejected: tuple[int, ...] = ()  # draft tokens that stood where this recovered one now stands

    @property
    def source(self) -> str:
        """The proposer, by its name before 0.2; goes with 0.3."""
        return self.proposer


Sink = Callable[["Sequence", Seq[Piece]], None]


@dataclass(slots=True)  # not frozen, as `Round` is not
class _Taken:
    """The first tokens of a verdict, committed and to be told."""

    verdict: Verdict
    n: int
    texts: Seq[str]  # of each; empty: nobody had to read them yet
    n_before: int  # tokens generated before them
    proposer: str
    logprobs: Seq[TokenLogprob]
    rejected: tuple[int, ...]


class Sequence:
    """The state of one answer."""

    def __init__(
        self,
        request: Request,
        text: Text,
        ends: frozenset[int],
        sink: Sink,
    ) -> None:
        self.number = next(_NUMBERS)  # tells it from all others
        self.request = request
        self.constraint = request.constraint
        self.tokens: list[int] = list(request.prompt)
        self.n_cached = 0  # tokens in the target's cache; kept equal to its length
        self.n_reused = 0  # of the prompt, taken from an earlier turn's cache
        self.n_generated = 0
        self.n_first = 0  # of them, those that came with the first: decoding is timed from there
        self.seq_id = -1  # the slot, once it has one
        self.counts = Counts()
        self.rounds: deque[Round] = deque(maxlen=KEPT_ROUNDS)
        self.held: Held | None = None  # what came of its last round, until that is observed
        self.search = True  # whether proposers without a model are asked for its next round
        self.outside_s = 0.0  # spent by proposers on this text, in no round yet
        self.n_firm = 0  # of the cached tokens, those whose cache depends on the text alone
        self.inexact: Inexact | None = None
        self.exact_class: str | None = None  # the class its passes stay in, if it is to be exact
        self.exact_cost_percent: float | None = None  # of the speed, that this costs here
        self.finish_reason: str | None = None
        self.error: ParlayError | None = None
        self.cancelled = False  # set from any thread; read once a round
        self.retired = False  # done, counted, and its slot free again
        self.submitted = time.perf_counter()
        self.started = self.submitted
        self.first_token: float | None = None
        self.ended: float | None = None
        self._ends = ends
        self._text = text
        self._stop = StopStrings(request.stop)
        self._reasoning = None
        if request.thinking is not None:
            self._reasoning = Reasoning(thinking=request.thinking, marks=request.marks)
        self._sink = sink
        # Whether its text decides when it ends or what it is; else it is read when it is told.
        self._reads = bool(request.stop) or self._reasoning is not None
        self._untold: list[_Taken] = []

    @property
    def n_pending(self) -> int:
        """Committed tokens that the target has not read yet: 1 while decoding, more in prefill."""
        return len(self.tokens) - self.n_cached

    @property
    def exact(self) -> bool:
        """Whether it depends on model, build, device, settings, prompt and seed alone."""
        return self.inexact is None

    def spoil(self, reason: Inexact) -> None:
        """It is not exact any more; the first reason stays."""
        self.inexact = self.inexact or reason

    @property
    def n_remaining(self) -> int:
        return self.request.max_tokens - self.n_generated

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def may_end(self) -> bool:
        """Whether the text so far is a whole answer, as far as a grammar asks for one."""
        return self.constraint is None or self.constraint.complete

    @property
    def thinking(self) -> bool:
        """Whether the text is inside its thinking part now."""
        return self._reasoning is not None and self._reasoning.thinking

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._stop.hit

    def commit(
        self,
        verdict: Verdict,
        proposer: str,
        logprobs: Seq[TokenLogprob] = (),
        rejected: tuple[int, ...] = (),
    ) -> int:
        """Take a verdict's tokens up to a stop rule, to be told; returns how many were taken.

        `rejected`: the draft tokens it turned down, told with the token that took their place.
        """
        if self.first_token is None:
            self.first_token = time.perf_counter()
        texts: list[str] = []
        n_before = self.n_generated
        if self._ends_within(verdict.tokens):
            for token in verdict.tokens:
                self._take(token, texts)
                if self.finish_reason is not None:
                    break
        else:
            self.tokens += verdict.tokens
            self.n_generated += len(verdict.tokens)
        n = self.n_generated - n_before
        self.n_first = self.n_first or n
        self._untold.append(_Taken(verdict, n, texts, n_before, proposer, logprobs, rejected))
        return n

    def _ends_within(self, tokens: Seq[int]) -> bool:
        """Whether it matters where among these tokens it is: one of them may be the last."""
        longer = self.n_generated + len(tokens) >= self.request.max_tokens
        return self._reads or longer or not self._ends.isdisjoint(tokens)

    def tell(self) -> None:
        """Send what was taken since the last time."""
        if self._untold:
            untold, self._untold = self._untold, []
            self._send([piece for taken in untold for piece in self._pieces(taken)])

    def _pieces(self, taken: _Taken) -> Iterator[Piece]:
        scored = iter(taken.logprobs)
        tokens = taken.verdict.tokens[: taken.n]
        texts = taken.texts or [self._text_of(t, n) for n, t in enumerate(tokens, taken.n_before)]
        for token, text, origin in zip(tokens, texts, taken.verdict.origins, strict=False):
            lost = taken.rejected if origin is Origin.RECOVERED else ()
            yield Piece(token, text, origin, taken.proposer, next(scored, None), lost)

    def _send(self, pieces: Seq[Piece]) -> None:
        try:
            self._sink(self, pieces)
        except Exception:  # a receiver that fails loses its own answer, nobody else's
            log.exception("the receiver of an answer failed; the answer is cancelled")
            self.cancelled = True

    def _take(self, token: int, texts: list[str]) -> None:
        self.tokens.append(token)
        self.n_generated += 1
        if self._reads:
            texts.append(self._text_of(token, self.n_generated - 1))
            self._follow(texts[-1])
        if token in self._ends or self._stop.hit is not None:
            self.finish("stop")
        elif self.n_generated == self.request.max_tokens:
            self.finish("length")

    def _text_of(self, token: int, n_before: int) -> str:
        """What became certain with a token that so many were generated before; once for each."""
        if token in self._ends:
            return self._rest()
        text = self._stop.push(self._text.push(token))
        last = n_before + 1 == self.request.max_tokens and self._stop.hit is None
        return text + self._rest() if last else text

    def _follow(self, text: str) -> None:
        if self._reasoning is not None:
            self._reasoning.push(text)
            if self._reasoning.over:
                self._reasoning = None

    def _rest(self) -> str:
        """What the decoder and the stop rules still hold back, once no more will come."""
        return self._stop.push(self._text.flush()) + self._stop.flush()

    def finish(self, reason: str, error: ParlayError | None = None) -> None:
        """End the sequence; the first reason stays."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.error = error
            self.ended = time.perf_counter()

    def retire(self) -> None:
        """Its last round has been counted: tell whoever waits for the whole of it."""
        self.tell()
        self.retired = True
        self._send(())

    def finish_early(self, reason: str, error: ParlayError | None = None) -> None:
        """End it between rounds and let go of the text held back."""
        if not self.done:
            self.tell()
            rest = self._rest() if error is None else ""
            self.finish(reason, error)
            pieces = [Piece(self.tokens[-1], rest, Origin.PLAIN, "none")] if rest else []
            self._send(pieces)

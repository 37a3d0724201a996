"""Answers to asks by an engine in this process: prepared, submitted, and told as they come.

Knows the prompter and the engine; who hears it, on an event loop or at the end of a socket, is told
on the engine's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Literal

from parlay.ask import (
    Ask,
    Detail,
    Done,
    End,
    Figures,
    Pieces,
    Reading,
    Refused,
    Reply,
    Score,
    SoFar,
)
from parlay.backend import answer_figures
from parlay.backend.plain_speed import PlainSpeed
from parlay.chat.prompter import Prepared, Prompter
from parlay.decoding.verdict import Origin
from parlay.engine.engine import Engine
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answer
from parlay.errors import ParlayError
from parlay.llama.vocabulary import Vocabulary
from parlay.refusals import SHUTTING_DOWN, refusal, timed_out

Tell = Callable[[Sequence[Reply]], None]
_SO_FAR_S = 0.5  # between figures of an answer that is under way


class Making:
    """One request in the making. `tell` hears `Accepted` first; then, on the engine's thread, what
    comes of each pass, up to `Done` or `Refused`."""

    def __init__(
        self,
        ask: Ask,
        prepared: Prepared,
        baseline: PlainSpeed,
        vocabulary: Vocabulary,
        tell: Tell,
        *,
        texts: bool,
    ) -> None:
        """`texts`: prompt and answers are wanted at the end, for a log."""
        self.ask = ask
        self.sequences: list[Answer] = []
        self.policy = prepared.accepted.policy
        self._prepared = prepared
        self._baseline = baseline
        self._vocabulary = vocabulary
        self._tell = tell
        self._texts = texts
        self._arrived = self._told_at = perf_counter()
        self._details = ask.origins or ask.logprobs is not None
        self._reading = set(range(len(prepared.requests)))
        self._ended: dict[int, End] = {}
        self._expired = self._over = False
        self._starting = threading.Lock()  # nothing is told before `Accepted`

    def start(self, engine: Engine) -> None:
        """Hand every sequence to the engine."""
        with self._starting:
            try:
                for choice, request in enumerate(self._prepared.requests):
                    self.sequences.append(engine.submit(request, partial(self._take, choice)))
            except Exception:
                self.cancel()
                self._over = True
                raise
            self._tell((self._prepared.accepted, SoFar(self.figures())))

    @property
    def n_open(self) -> int:
        """Sequences that still hold a slot or a place in the queue."""
        return sum(not seq.retired for seq in self.sequences)

    def figures(self, choices: Sequence[int] = ()) -> Figures:
        """Of some choices up to now; of the whole request where none are named."""
        seqs = [self.sequences[i] for i in choices] or self.sequences
        mode, n_each = self._prepared.accepted.mode, 1 if choices else self.ask.n
        return answer_figures.figures(seqs, mode, self.policy, self._baseline, n_each)

    def reading(self) -> list[Reply]:
        """How far the prompts have been read whose answers have not begun."""
        seqs = [(i, self.sequences[i]) for i in tuple(self._reading)]
        return [_read(i, seq) for i, seq in seqs if seq.seq_id >= 0]

    def cancel(self) -> None:
        """Give up what is not done: slots are free again within one round."""
        for seq in self.sequences:
            seq.cancelled = True

    def expire(self) -> None:
        """The time limit: answers end where they are."""
        self._expired = True
        self.cancel()

    # -- on the engine's thread -----------------------------------------------

    def _take(self, choice: int, seq: Answer, pieces: Sequence[Piece]) -> None:
        with self._starting:
            pass
        if self._over:
            return
        found: list[Reply] = []
        if pieces and choice in self._reading:
            self._reading.discard(choice)
            found.append(_read(choice, seq))
        if pieces:
            found.append(self._pieces(choice, seq, pieces))
        if seq.retired:
            found += self._end(choice, seq)
        elif (now := perf_counter()) - self._told_at > _SO_FAR_S:
            self._told_at = now
            found.append(SoFar(self.figures()))
        if found:
            self._tell(found)

    def _pieces(self, choice: int, seq: Answer, pieces: Sequence[Piece]) -> Pieces:
        at_ms = round(1e3 * (perf_counter() - seq.submitted), 3)
        details = tuple([self._detail(piece) for piece in pieces]) if self._details else ()
        texts = tuple([piece.text for piece in pieces])
        return Pieces(choice, texts, len(pieces), at_ms, details)

    def _detail(self, piece: Piece) -> Detail:
        vocabulary, scored = self._vocabulary, piece.logprob
        rejected = vocabulary.detokenize(list(piece.rejected)) if piece.rejected else ""
        proposer = "none" if piece.origin is Origin.PLAIN else piece.proposer
        if scored is None or piece.token in vocabulary.ends:
            return Detail(piece.origin.value, proposer, rejected)
        own = _score(vocabulary, scored.token, scored.logprob)
        top = tuple([_score(vocabulary, token, logprob) for token, logprob in scored.top])
        return Detail(piece.origin.value, proposer, rejected, own, top)

    def _end(self, choice: int, seq: Answer) -> list[Reply]:
        reason, error = self._reason(seq)
        end = End(choice, reason, self.figures([choice]), seq.stopped_by, error)
        self._ended[choice] = end
        if error is not None:
            self.cancel()
        if len(self._ended) < len(self._prepared.requests):
            return [end]
        self._over = True
        texts = self._logged() if self._texts else ()
        whole = end.figures if len(self._ended) == 1 else self.figures()
        return [end, Done(whole, texts)]

    def _reason(self, seq: Answer) -> tuple[Literal["stop", "length", "error"], Refused | None]:
        """OpenAI's finish reason; a broken answer is an error and not a reason."""
        if seq.finish_reason == "error":
            return "error", refusal(seq.error or ParlayError("the answer broke"))
        if seq.finish_reason != "cancelled":
            return "length" if seq.finish_reason == "length" else "stop", None
        if not self._expired:
            return "error", SHUTTING_DOWN
        if seq.n_generated == 0:
            return "error", timed_out(perf_counter() - self._arrived)
        return "length", None  # the time limit; what is there is still worth having

    def _logged(self) -> tuple[str, ...]:
        answers = [seq.tokens[len(seq.tokens) - seq.n_generated :] for seq in self.sequences]
        first = list(self.sequences[0].request.prompt)
        return tuple(map(self._vocabulary.detokenize, (first, *answers)))


class Answering:
    """One engine with its prompter."""

    def __init__(
        self,
        engine: Engine,
        prompter: Prompter,
        baseline: PlainSpeed,
        *,
        logs_texts: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = engine
        self.prompter = prompter
        self._baseline = baseline
        self._logs_texts = logs_texts

    def begin(self, ask: Ask, tell: Tell) -> Making:
        """Understand a request and start it. It may take its time: not on an event loop."""
        prepared = self.prompter.prepare(ask)
        vocabulary = self.engine.model.vocabulary
        making = Making(ask, prepared, self._baseline, vocabulary, tell, texts=self._logs_texts())
        making.start(self.engine)
        return making


def _read(choice: int, seq: Answer) -> Reading:
    n_prompt = len(seq.request.prompt)
    return Reading(choice, min(seq.n_cached, n_prompt), n_prompt, seq.n_reused)


def _score(vocabulary: Vocabulary, token: int, logprob: float) -> Score:
    raw = vocabulary.piece(token)
    return Score(_shown(vocabulary, token, raw), logprob, raw)


def _shown(vocabulary: Vocabulary, token: int, raw: bytes) -> str:
    """Half a character is written as its bytes, so that no two tokens look the same."""
    if not raw:
        return vocabulary.text_of(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

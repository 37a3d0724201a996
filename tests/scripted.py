"""Scripted models and proposers: the runtime's whole protocol without weights, for unit tests.

They know no llama.cpp; they are as strict about the cache as it is, and say so sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.constraint import Forced, Mask
from parlay.decoding.draft import Draft
from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.proposers.proposer import Ask, Proposer, Worth

Logits = Callable[[Sequence[int]], NDArray[np.float32]]


def hashed_logits(n_vocab: int, spread: float = 2.0, seed: int = 0) -> Logits:
    """Logits that depend on the last three tokens, the same in every run."""

    def logits(history: Sequence[int]) -> NDArray[np.float32]:
        rng = np.random.default_rng([seed, len(history[-3:]), *history[-3:]])
        return (rng.standard_normal(n_vocab) * spread).astype(np.float32)

    return logits


@dataclass(frozen=True, slots=True)
class SavedText:
    """A scripted sequence put away; a token takes a byte."""

    tokens: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return len(self.tokens)

    def reusable(self, length: int) -> int:
        return min(length, len(self.tokens))


class ScriptedModel:
    """A model whose logits are a function of the text so far."""

    steady = False
    can_shift = True
    free_rollback = 1 << 20
    busy_s = 0.0

    def __init__(self, logits: Logits, n_vocab: int = 32, context_size: int = 128) -> None:
        self._logits = logits
        self.n_vocab = n_vocab
        self.sample: Sequence[int] = ()  # a script has no text of its own
        self.context_size = context_size
        self.cache: dict[int, list[int]] = {}
        self.shapes: list[tuple[int, ...]] = []  # rows per sequence of every pass
        self.fail_next = 0  # so many passes will fail
        self.closed = False
        self._started: list[NDArray[np.float32]] = []

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if self.fail_next:
            self.fail_next -= 1
            raise DecodeError("scripted failure", code=-3)
        self._started = []
        self.shapes.append(tuple(len(span.tokens) for span in spans))
        return [self._read(span) for span in spans]

    def _read(self, span: Span) -> NDArray[np.float32]:
        cached = self.cache.setdefault(span.seq_id, [])
        assert span.start == len(cached), f"starts at {span.start}, cache holds {len(cached)}"
        assert len(cached) + len(span.tokens) <= self.context_size, "past the end of the context"
        rows = []
        for token in span.tokens:
            cached.append(token)
            rows.append(self._logits(cached))
        return np.array(rows[span.read], np.float32)

    def start(self, spans: Sequence[Span]) -> None:
        self._started = self.decode(spans)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        assert len(spans) == len(self._started), "another pass was made since"
        return self._started

    def settle(self) -> None:
        """Nothing runs on."""

    def length(self, seq_id: int) -> int:
        return len(self.cache.get(seq_id, ()))

    def truncate(self, seq_id: int, length: int) -> None:
        assert length <= self.length(seq_id), "cannot cut what is not there"
        del self.cache.setdefault(seq_id, [])[length:]

    def reusable(self, seq_id: int, length: int) -> int:
        return min(length, self.length(seq_id))

    def mark(self, seq_id: int, *, lasting: bool = False) -> None:
        """It can be cut anywhere."""

    def save(self, seq_id: int) -> SavedText:
        return SavedText(tuple(self.cache.get(seq_id, ())))

    def restore(self, seq_id: int, saved: SavedText) -> None:
        self.cache[seq_id] = list(saved.tokens)

    def clear(self, seq_id: int) -> None:
        self.cache.pop(seq_id, None)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        del self.cache[seq_id][keep : keep + discard]

    def close(self) -> None:
        self.closed = True


class ScriptedProposer(Proposer):
    """Guesses the target's greedy text, right or wrong as the script says, token by token."""

    def __init__(self, logits: Logits, script: Iterable[bool] = (), name: str = "scripted") -> None:
        self.name = name
        self._logits = logits
        self._script = chain(script, repeat(True))
        self.finished: list[tuple[int, ...]] = []
        self.closed = False

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft:
        history = list(ask.tokens)
        for _ in range(ask.window):
            row = self._logits(history)
            right = int(row.argmax())
            history.append(right if next(self._script) else (right + 1) % len(row))
        tokens = tuple(history[len(ask.tokens) :])
        return Draft(tokens, self.name, (0.5,) * len(tokens))

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.finished.append(tuple(tokens))

    def close(self) -> None:
        self.closed = True


_ALIKE = 4  # tokens that must agree for a text to be taken up again


class RecordedProposer(Proposer):
    """Drafts texts that were recorded before, each token right with a given chance.

    So a round's cost is real and its acceptance is known.
    """

    def __init__(
        self,
        texts: Iterable[Sequence[int]],
        right: float = 1.0,
        *,
        n_vocab: int,
        seed: int = 0,
        name: str = "recorded",
    ) -> None:
        self.name = name
        self._texts = [tuple(text) for text in texts]
        self._right = right
        self._n_vocab = n_vocab
        self._rng = np.random.default_rng(seed)

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft:
        wanted = self._what_followed(tuple(ask.tokens))[: ask.window]
        tokens = tuple(self._spoil(token) for token in wanted)
        return Draft(tokens, self.name, (self._right,) * len(tokens))

    def _what_followed(self, said: tuple[int, ...]) -> tuple[int, ...]:
        """In the text that began so; else, where rounding changed it, after the same few tokens."""
        for text in self._texts:
            if text[: len(said)] == said:
                return text[len(said) :]
        end = said[-_ALIKE:]
        for text in self._texts:
            for at in range(len(text) - _ALIKE - 1, 0, -1):
                if text[at : at + _ALIKE] == end:
                    return text[at + _ALIKE :]
        return ()

    def _spoil(self, token: int) -> int:
        return token if self._rng.random() < self._right else (token + 1) % self._n_vocab


class LaxConstraint:
    """Allows every token and forces none; tests say what else a grammar of theirs does."""

    complete = True

    def permits(self, draft: Sequence[int], token: int) -> bool:
        return True

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        return None  # nobody asks where every token is permitted

    def accept(self, tokens: Sequence[int]) -> None: ...

    def must(self, draft: Sequence[int]) -> int | None:
        return None

    def n_obeying(self, draft: Sequence[int]) -> int:
        return len(draft)

    def forced(self, draft: Sequence[int] = ()) -> Forced:
        return Forced()

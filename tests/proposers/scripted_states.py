"""A target whose states say which token they belong to, and drafters that read nothing else.

They are as strict as llama.cpp about positions; a drafter that was fed all states of a text in
their order guesses the target's greedy text, and any other guesses wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.decoding.states import Fed, Listener, States
from parlay.errors import DecodeError
from tests.scripted import Logits, ScriptedModel

MASK = 31


def states_of(tokens: Sequence[int]) -> States:
    return np.array(tokens, np.float32)[:, None]


class CapturedTarget(ScriptedModel):
    """Tells a listener of every pass, as a context that captures does."""

    listener: Listener | None = None

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = super().decode(spans)
        self._tell(spans)
        return rows

    def start(self, spans: Sequence[Span]) -> None:
        self._started = super().decode(spans)
        if not any(span.n_logits for span in spans):
            self._tell(spans)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = super().fetch(spans)
        self._tell(spans)
        return rows

    def _tell(self, spans: Sequence[Span]) -> None:
        if self.listener is not None:
            self.listener(spans, [states_of(span.tokens) for span in spans])


class _Drafter:
    layers = (0,)
    width = 1
    can_shift = True
    busy_s = 0.0

    def __init__(self, logits: Logits, n_vocab: int, context_size: int = 128) -> None:
        self._logits = logits
        self.n_vocab = n_vocab
        self.sample: tuple[int, ...] = ()
        self.context_size = context_size
        self.cache: dict[int, list[int]] = {}
        self.starts: dict[int, int] = {}  # the position of the first row
        self.passes: list[tuple[str, tuple[int, ...]]] = []
        self.fail_next = 0
        self.closed = False

    def _note(self, what: str, sizes: Sequence[int]) -> None:
        if self.fail_next:
            self.fail_next -= 1
            raise DecodeError("scripted failure", code=-3)
        self.passes.append((what, tuple(sizes)))

    def _rows(self, seq_id: int, start: int) -> list[int]:
        """The sequence's rows, to be continued at a position."""
        rows = self.cache.setdefault(seq_id, [])
        if not rows:
            self.starts[seq_id] = start
        assert start == self.starts[seq_id] + len(rows), f"starts at {start}"
        return rows

    def truncate(self, seq_id: int, length: int) -> None:
        kept = max(0, length - self.starts.get(seq_id, 0))
        del self.cache.setdefault(seq_id, [])[kept:]

    def clear(self, seq_id: int) -> None:
        self.cache.pop(seq_id, None)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        assert self.starts[seq_id] == 0
        del self.cache[seq_id][keep : keep + discard]

    def encode(self, states: States) -> States:
        return states

    def close(self) -> None:
        self.closed = True


class BlockDrafter(_Drafter):
    """Fills masks in with the target's greedy text."""

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        self._note("read", [len(item.states) for item in fed])
        for item in fed:
            assert not item.tokens, "a block drafter takes states alone"
            assert item.n_logits == 0
            self._rows(item.seq_id, item.start).extend(int(s) for s in item.states[:, 0])
        return [(np.empty((0, self.n_vocab), np.float32), item.states[:0]) for item in fed]

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self._note("block", [len(span.tokens) for span in spans])
        return [self._block(span) for span in spans]

    def _block(self, span: Span) -> NDArray[np.float32]:
        assert set(span.tokens[1:]) == {MASK}
        assert span.n_logits == len(span.tokens), "llama.cpp gives all rows or the wrong ones"
        rows = self._rows(span.seq_id, span.start)
        text = [*rows, span.tokens[0]]
        logits = [np.zeros(self.n_vocab, np.float32)]
        for _ in span.tokens[1:]:
            logits.append(self._logits(text))
            text.append(int(logits[-1].argmax()))
        rows.extend(span.tokens)
        return np.array(logits)


class HeadDrafter(_Drafter):
    """Continues pairs of a state and the token after it; its own state is the token it read."""

    n_stale = 0  # states that followed another token than the pair before them says

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        raise AssertionError("a head is never fed tokens alone")

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        self._note("read", [len(item.states) for item in fed])
        return [self._pairs(item) for item in fed]

    def _pairs(self, item: Fed) -> tuple[NDArray[np.float32], States]:
        assert item.n_logits in (0, len(item.tokens)), "llama.cpp gives all rows or the wrong ones"
        rows, logits = self._rows(item.seq_id, item.start), []
        for state, token in zip(item.states[:, 0], item.tokens, strict=True):
            if rows and int(state) != rows[-1]:
                self.n_stale += 1
                rows[-1] = int(state)  # the state tells which token it was
            rows.append(token)
            logits.append(self._logits(rows))  # only the last three tokens count
        n = item.n_logits
        own = states_of(item.tokens)[len(item.tokens) - n :]
        return np.array(logits[len(logits) - n :], np.float32).reshape(n, self.n_vocab), own


class ChainedDrafter(HeadDrafter):
    """Several layers, each with a cache of its own: a pass fills that of the layer in use."""

    n_links = 3

    def __init__(self, logits: Logits, n_vocab: int, context_size: int = 128) -> None:
        super().__init__(logits, n_vocab, context_size)
        self.filled = [{} for _ in range(self.n_links)]  # type: list[dict[int, list[int]]]
        self._link = 0

    def use(self, link: int) -> None:
        self._link = link

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        found = super().read(fed)
        for item in fed:
            own = self.filled[self._link].setdefault(item.seq_id, [])
            del own[item.start :]
            assert self.starts[item.seq_id] > 0 or len(own) == item.start, "a layer lacks pairs"
            own.extend([0] * (item.start - len(own)) + list(item.tokens))
        return found

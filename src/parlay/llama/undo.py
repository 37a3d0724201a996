"""Undo: how a sequence with a recurrent state goes back, and the states that are kept for it.

Knows one context's memory and the runs of tokens that went through it; knows nothing of drafts.

A recurrent state cannot be cut by position. There are four ways back, the cheapest first:
snapshots that the library itself writes while a pass runs (the last few tokens of that pass), a
copy made before a pass (then what held is read again), a mark (a copy made on purpose at a
position that may be wanted later), and reading everything anew, which is the caller's affair.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.llama.library import C

WHOLE = 0
# Only what cannot be removed by position: recurrent state, sliding windows.
_PARTIAL_ONLY = 1
# The copy stays on the device; one for each sequence, and a new one takes the old one's place.
_ON_DEVICE = 2
# Marks of one sequence in RAM: enough for an edit some way back.
_MOST_MARKS = 4


class Rollback(str, Enum):
    """How a cache forgets rejected tokens. Probed at load, never assumed."""

    PARTIAL = "partial"  # positions can be removed from the end
    BOUNDED = "bounded"  # the last tokens of a pass can be taken back, as many as snapshots
    CHECKPOINT = "checkpoint"  # state is saved before a draft, restored and replayed after it
    NONE = "none"  # neither works: no speculation on this model


@dataclass(frozen=True, slots=True)
class State:
    """A copy of a sequence's state after its first `length` tokens."""

    length: int
    data: ctypes.Array[ctypes.c_uint8]
    flags: int

    @property
    def n_bytes(self) -> int:
        """In RAM: of a copy on the device only the head is here."""
        return len(self.data)

    @property
    def on_device(self) -> bool:
        return bool(self.flags & _ON_DEVICE)


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """A whole sequence in RAM: it can go on from its end, or from where it has marks."""

    whole: State
    marks: tuple[State, ...]
    cuts_anywhere: bool

    @property
    def length(self) -> int:
        return self.whole.length

    @property
    def n_bytes(self) -> int:
        return self.whole.n_bytes + sum(mark.n_bytes for mark in self.marks)

    def reusable(self, length: int) -> int:
        """How many of its first `length` tokens can be kept."""
        if self.cuts_anywhere or length >= self.length:
            return min(length, self.length)
        return max((mark.length for mark in self.marks if mark.length <= length), default=0)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the last pass of a sequence was, and how much of it can be taken back."""

    start: int
    tokens: Sequence[int]
    n_snapshots: int  # the library's own, of the last tokens
    before: State | None  # a copy made just before it

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Undo:
    """The ways back of every sequence of one context."""

    def __init__(
        self, handle: int, *, n_snapshots: int, on_device: bool, n_ubatch: int, mark_bytes: int
    ) -> None:
        """`mark_bytes`: how much RAM marks may take, all sequences together."""
        self._handle = handle
        self._memory: int = C.llama_get_memory(handle)
        self.n_snapshots = n_snapshots
        self._on_device = _ON_DEVICE if on_device else 0
        self._n_ubatch = n_ubatch
        self._mark_bytes = mark_bytes
        self._passes: dict[int, _Pass] = {}
        self._marks: dict[int, list[State]] = {}

    # -- passes ---------------------------------------------------------------

    def before(self, spans: Sequence[Span]) -> None:
        """A pass is about to run: see to it that its drafts can be taken back."""
        # Snapshots live in the cell of their sequence. A pass that the library cuts in several
        # may move cells between the cuts, and snapshots do not move with them.
        native = self.n_snapshots > 0 and self._runs_uncut(spans)
        for span in spans:
            # Of a pass over n tokens the library keeps n - 1 earlier states at most.
            most = len(span.tokens) - 1
            n = min(self.n_snapshots, most) if native else 0
            some_may_go = span.n_logits + span.n_padding > 1
            all_go = span.n_padding == len(span.tokens)
            self.note(span, n, copied=(some_may_go and n < most) or all_go)

    def note(self, span: Span, n_snapshots: int, *, copied: bool) -> None:
        """Remember one span of the coming pass, and save the state before it if asked to."""
        before = self._save_before(span.seq_id, span.start) if copied else None
        self._passes[span.seq_id] = _Pass(span.start, span.tokens, n_snapshots, before)

    def _runs_uncut(self, spans: Sequence[Span]) -> bool:
        if len(spans) == 1:
            return True
        first, n = spans[0].seq_id, len(spans[0].tokens)
        equal = all(len(s.tokens) == n and s.seq_id == first + i for i, s in enumerate(spans))
        return equal and n * len(spans) <= self._n_ubatch

    def _save_before(self, seq_id: int, start: int) -> State:
        if self._on_device:
            self._drop_marks(seq_id, lambda state: state.on_device)  # it takes their place
        return save(self._handle, seq_id, start, _PARTIAL_ONLY | self._on_device)

    # -- going back -----------------------------------------------------------

    def back(self, seq_id: int, length: int) -> list[int]:
        """Take the sequence back to `length` tokens, or a little before: what to read again."""
        last = self._passes.pop(seq_id, None)
        if last is not None and last.end - last.n_snapshots <= length < last.end:
            return self._cut(seq_id, length)
        if last is not None and last.before is not None and last.start <= length <= last.end:
            self._restore(seq_id, last.before)
            return list(last.tokens[: length - last.start])
        marked = self._marked(seq_id, length)
        if marked is None or marked.length != length:
            raise DecodeError(f"no checkpoint reaches position {length}", code=-1)
        self._restore(seq_id, marked)
        return []

    def reusable(self, seq_id: int, length: int) -> int:
        """The last position up to `length` that `back` can go to whatever came between."""
        marked = self._marked(seq_id, length)
        return 0 if marked is None else marked.length

    def _cut(self, seq_id: int, length: int) -> list[int]:
        if not C.llama_memory_seq_rm(self._memory, seq_id, length, -1):
            raise DecodeError(f"the cache could not be cut to {length} tokens", code=-1)
        self._drop_marks(seq_id, lambda state: state.length > length)
        return []

    def _restore(self, seq_id: int, state: State) -> None:
        restore(self._handle, seq_id, state)
        # Attention layers of a hybrid model still hold the positions after it.
        C.llama_memory_seq_rm(self._memory, seq_id, state.length, -1)
        self._drop_marks(seq_id, lambda mark: mark.length > state.length)

    # -- marks ----------------------------------------------------------------

    def mark(self, seq_id: int, length: int, *, lasting: bool) -> None:
        """Keep the state after `length` tokens, all there are; a lasting one in RAM."""
        if any(mark.length == length for mark in self._marks.get(seq_id, ())):
            return
        # Without snapshots every draft would overwrite what is kept on the device.
        device = self._on_device if self.n_snapshots and not lasting else 0
        if device:
            self._drop_marks(seq_id, lambda mark: mark.on_device)
        state = save(self._handle, seq_id, length, _PARTIAL_ONLY | device)
        self._keep(seq_id, state)

    def _keep(self, seq_id: int, state: State) -> None:
        marks = self._marks.setdefault(seq_id, [])
        marks.append(state)
        in_ram = [mark for mark in marks if not mark.on_device]
        if len(in_ram) > _MOST_MARKS:
            marks.remove(in_ram[0])
        while self.bytes_of_marks > self._mark_bytes and self._drop_oldest():
            pass

    def bring_home(self, seq_id: int) -> tuple[State, ...]:
        """All marks of a sequence, in RAM. If one was on the device, the sequence ends there."""
        marks = self._marks.get(seq_id, [])
        found = tuple(self._brought_home(seq_id, mark) for mark in marks)
        self._passes.pop(seq_id, None)
        return found

    def _brought_home(self, seq_id: int, mark: State) -> State:
        if not mark.on_device:
            return mark
        self._restore(seq_id, mark)
        self._drop_marks(seq_id, lambda old: old is mark)
        home = save(self._handle, seq_id, mark.length, _PARTIAL_ONLY)
        self._keep(seq_id, home)
        return home

    def adopt(self, seq_id: int, marks: Sequence[State]) -> None:
        """Marks of a conversation that comes back, into the sequence it now has."""
        for mark in marks:
            self._keep(seq_id, mark)

    @property
    def bytes_of_marks(self) -> int:
        return sum(mark.n_bytes for marks in self._marks.values() for mark in marks)

    def _drop_oldest(self) -> bool:
        """Of the sequence that holds most."""
        if not self._marks:
            return False
        seq_id = max(self._marks, key=lambda s: sum(m.n_bytes for m in self._marks[s]))
        if self._marks[seq_id]:
            del self._marks[seq_id][0]
        return any(self._marks.values())

    def _marked(self, seq_id: int, length: int) -> State | None:
        reached = [mark for mark in self._marks.get(seq_id, ()) if mark.length <= length]
        return max(reached, key=lambda mark: mark.length, default=None)

    def _drop_marks(self, seq_id: int, unwanted: Callable[[State], bool]) -> None:
        kept = [mark for mark in self._marks.get(seq_id, ()) if not unwanted(mark)]
        if kept or seq_id in self._marks:
            self._marks[seq_id] = kept

    def forget(self, seq_id: int) -> None:
        """The sequence is gone."""
        self._passes.pop(seq_id, None)
        self._marks.pop(seq_id, None)


def save(handle: int, seq_id: int, length: int, flags: int = WHOLE) -> State:
    """A copy of the sequence's state as it is now."""
    size = C.llama_state_seq_get_size_ext(handle, seq_id, flags)
    data: ctypes.Array[ctypes.c_uint8] = (ctypes.c_uint8 * size)()
    if C.llama_state_seq_get_data_ext(handle, data, size, seq_id, flags) != size:
        raise DecodeError("the sequence's state could not be saved", code=-1)
    return State(length, data, flags)


def restore(handle: int, seq_id: int, state: State) -> None:
    """Put a copy back."""
    if not C.llama_state_seq_set_data_ext(handle, state.data, len(state.data), seq_id, state.flags):
        raise DecodeError("the sequence's state could not be restored", code=-1)

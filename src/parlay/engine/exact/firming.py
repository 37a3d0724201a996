"""Reads answers again as prompts are read, while nobody waits: the next turn goes on from there.

An answer's passes may round otherwise than a prompt's chunks, so that an exact turn after it would
have to read it again first. Knows slots and passes; knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parlay.decoding.span import Passes, Span
from parlay.engine.slots import Slot, Slots


class Firming:
    """For conversations that went on before; of others nobody knows whether they do."""

    def __init__(self, target: Passes, slots: Slots, ready: Callable[[Span], bool]) -> None:
        """`ready`: whether a pass over a part of a prompt would have the bits it always has."""
        self._target = target
        self._slots = slots
        self._ready = ready

    def run(self, called: Callable[[], bool]) -> None:
        """Until all is firm or somebody calls, who waits for one pass at most."""
        for slot in self._slots.soft():
            if not called():
                self._read_again(slot, called)

    def _read_again(self, slot: Slot, called: Callable[[], bool]) -> None:
        text, start = slot.tokens, self._slots.firm(slot)
        spans = self._spans(slot.seq_id, text, start)
        if self._target.reusable(slot.seq_id, start) != start:
            return  # it cannot be cut there
        self._slots.shorten(slot, start)
        for span in spans:
            if called() or not self._ready(span):
                return
            try:
                self._target.decode([span])
            except Exception:
                self._slots.erase(slot.seq_id, slot.owner)
                raise
            slot.tokens = text[: span.start + len(span.tokens)]
            slot.n_firm = len(slot.tokens)

    def _spans(self, seq_id: int, text: list[int], start: int) -> Iterator[Span]:
        """Chunks that end where prompts' do."""
        joints = self._slots.joints
        end = joints.last(text, len(text))
        while start < end:
            n, apart = joints.next_pass(text, start)
            yield Span(seq_id, start, text[start : start + n], 0, apart=apart)
            start += n

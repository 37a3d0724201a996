"""Conversations are copied to RAM only where that takes less than to read them again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from parlay.engine.slots import Copying, PromptCache, Slots
from tests.engine.rig import LOGITS
from tests.scripted import SavedText, ScriptedModel

A, B, C = list(range(100)), list(range(200, 300)), list(range(400, 500))


class Copies(ScriptedModel):
    """Counts what is saved and restored."""

    def __init__(self) -> None:
        super().__init__(LOGITS, 512, 4096)
        self.saved: list[int] = []

    def save(self, seq_id: int) -> SavedText:
        self.saved.append(seq_id)
        return super().save(seq_id)


@dataclass
class Told:
    """Prices as told."""

    away: float
    back: float | None
    read: float
    copying: Copying = field(init=False)

    def __post_init__(self) -> None:
        self.copying = Copying(from_device=True)
        self.copying.saw_copy(1000, 1000 * self.away)
        self.copying.saw_reading(1000, 1000 * self.read)
        if self.back is not None:
            self.copying.saw_return(1000, 1000 * self.back)


def make(copying: Copying, n: int = 1, limit: int = 1 << 20) -> tuple[Slots, Copies]:
    model = Copies()
    return Slots(model, n, PromptCache(limit), worth=10, copying=copying), model


def answer(slots: Slots, model: Copies, prompt: list[int]) -> int:
    """How much of a prompt was there already."""
    place = slots.take([*prompt, 7])
    assert place is not None
    seq_id, n_cached, _ = place
    model.cache[seq_id] = [*prompt, 7]
    slots.release(seq_id, [*prompt, 7])
    return n_cached


def test_a_conversation_is_copied_at_once_where_copies_are_light() -> None:
    slots, model = make(Told(0.001, 0.001, 1.0).copying)
    assert [answer(slots, model, text) for text in (A, B, A)] == [0, 0, 100]
    assert model.saved


def test_nobody_waits_for_a_copy_that_takes_as_long_as_reading() -> None:
    slots, model = make(Told(1.0, 1.0, 1.0).copying)
    assert [answer(slots, model, text) for text in (A, B, A)] == [0, 0, 0]
    slots.tidy()
    assert not model.saved


def test_what_takes_a_while_is_copied_when_nobody_waits_and_comes_back() -> None:
    slots, model = make(Told(0.2, 0.2, 1.0).copying)
    answer(slots, model, A)
    slots.tidy()
    slots.tidy()
    assert len(model.saved) == 1
    assert answer(slots, model, B) == 0
    assert len(model.saved) == 1  # A was there already, and B is the slot's now
    assert answer(slots, model, A) > 0


def test_of_a_cache_in_ram_a_first_copy_is_taken_to_be_light_and_of_a_device_not() -> None:
    for copying, n in ((Copying(), 1), (Copying(from_device=True), 0)):
        slots, model = make(copying)
        answer(slots, model, A)
        answer(slots, model, B)
        assert len(model.saved) == n


def test_nothing_is_copied_while_a_slot_is_empty() -> None:
    slots, model = make(Told(0.2, 0.2, 1.0).copying, n=2)
    answer(slots, model, A)
    slots.tidy()
    assert not model.saved
    slots.take([*B, 7])  # the other slot: now the next one loses A
    slots.tidy()
    assert model.saved


def test_what_would_not_fit_is_not_copied() -> None:
    slots, model = make(Told(0.001, 0.001, 1.0).copying, limit=150)
    answer(slots, model, A)
    answer(slots, model, [*B, *C])
    assert len(model.saved) == 1
    answer(slots, model, A)
    assert len(model.saved) == 1  # 201 tokens of a byte each, and room for 150


def test_a_copy_comes_back_only_where_that_is_quicker_than_reading() -> None:
    slots, model = make(Told(0.001, 2.0, 1.0).copying)
    answer(slots, model, A)
    answer(slots, model, B)
    assert answer(slots, model, A) == 0


@pytest.mark.parametrize("seen", [3.0, 0.5])
def test_reading_counts_as_fast_as_it_was_ever_seen(seen: float) -> None:
    copying = Told(0.06, 0.06, 1.0).copying
    assert copying.light()
    copying.saw_reading(100, 100 * seen)  # slower: beside others
    assert copying.light() == (seen > 1.0)


def test_how_long_a_prompt_takes_is_told_once_one_was_read() -> None:
    copying = Copying()
    assert not copying.reads_within(10, 100.0)
    copying.saw_reading(100, 10.0)
    assert copying.reads_within(10, 1.01) and not copying.reads_within(10, 0.99)


def test_times_of_copies_are_observed() -> None:
    class Slow(Copies):
        def save(self, seq_id: int) -> SavedText:
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                pass
            return super().save(seq_id)

    copying = Copying()
    copying.saw_reading(101, 0.001)  # quicker than any copy
    model = Slow()
    slots = Slots(model, 1, PromptCache(1 << 20), worth=10, copying=copying)
    for text in (A, B, C):
        answer(slots, model, text)
    assert len(model.saved) == 1


def test_a_copy_that_was_slow_once_is_tried_again_but_seldom() -> None:
    copying = Told(1.0, None, 1.0).copying
    n_refused = 0
    while not copying.light():
        n_refused += 1
    assert 50 < n_refused < 100

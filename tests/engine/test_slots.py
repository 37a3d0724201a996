"""Slots: prefixes that live on, and busy slots that stay neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.decoding.span import Span, common_prefix
from parlay.engine.slots import PromptCache, Slots
from parlay.errors import DecodeError
from tests.engine.rig import LOGITS, N_VOCAB
from tests.scripted import ScriptedModel


def make(n: int) -> Slots:
    return Slots(ScriptedModel(LOGITS, N_VOCAB, 4096), n)


def place(slots: Slots, *prompt: int) -> int:
    found = slots.take(prompt)
    assert found is not None
    return found[0]


def test_new_prompts_take_neighbouring_slots() -> None:
    slots = make(8)
    for seq_id in (4, 1, 6):  # used before, the others never
        slots.release(seq_id, [9, 9, seq_id])
    taken = [place(slots, 1, i) for i in range(5)]
    assert sorted(taken) == list(range(min(taken), min(taken) + 5))


def test_a_gap_that_an_ended_answer_left_is_filled_first() -> None:
    slots = make(8)
    for i in range(4):
        place(slots, 1, i)
    slots.release(2, [1, 2])
    assert place(slots, 7, 7) == 2


def test_alone_a_prompt_takes_the_slot_idle_for_longest() -> None:
    slots = make(3)
    for seq_id in (0, 2, 1):
        slots.release(seq_id, [9, seq_id])
    assert place(slots, 1, 2) == 0


def test_a_long_shared_prefix_is_worth_a_gap_and_a_short_one_is_not() -> None:
    slots = make(8)
    slots._target.cache = {6: list(range(400))}  # type: ignore[attr-defined]
    slots.release(6, list(range(400)))
    place(slots, 99, 98)
    assert place(slots, *range(20), 1) != 6
    assert place(slots, *range(400), 1) == 6


@given(a=st.lists(st.integers(0, 1), max_size=700), n=st.integers(0, 700), b=st.integers(0, 1))
def test_the_common_start_is_found_by_blocks_as_one_by_one(a: list[int], n: int, b: int) -> None:
    other = [*a[:n], b, *a[n:]]
    counted = next((i for i, (x, y) in enumerate(zip(a, other, strict=False)) if x != y), len(a))
    assert common_prefix(a, other) == counted


def test_a_conversation_that_cannot_be_brought_back_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, said = ScriptedModel(LOGITS, N_VOCAB, 4096), list(range(64))
    slots = Slots(target, 1, PromptCache(1 << 20))
    target.decode([Span(0, 0, said, 1)])
    slots.release(0, said)
    assert slots.take((99, 98)) == (0, 0, 0)  # and what was said is put away
    slots.release(0, [99])

    def lost(*_: object) -> None:
        raise DecodeError("no room for it", code=-1)

    with monkeypatch.context() as patch:
        patch.setattr(target, "restore", lost)
        assert slots.take((*said, 1)) == (0, 0, 0)
    assert target.length(0) == 0

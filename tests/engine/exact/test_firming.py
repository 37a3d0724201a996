"""What a pause reads again of a conversation: the next turn reads less, and has the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parlay.engine import worker
from parlay.engine.engine import Engine
from parlay.engine.exact.firming import Firming
from parlay.engine.exact.joints import Joints
from parlay.engine.request import Request
from parlay.engine.slots import Slots
from parlay.errors import DecodeError
from tests.engine.rig import LOGITS
from tests.engine.test_earned import EXACT, bits, prompt
from tests.engine.test_engine import SOON, run, settings
from tests.requantise import requantise
from tests.scripted import ScriptedModel

CHUNK = 8
TEXT = list(range(3, 29))


def never() -> bool:
    return False


class Desk:
    """A conversation of two turns in the only slot: 8 tokens of 26 are firm, in chunks of 8."""

    def __init__(self, *, goes_on: bool = True, ready: bool = True, exact: bool = True) -> None:
        self.model = ScriptedModel(LOGITS)
        self.slots = Slots(self.model, 1, joints=Joints(CHUNK))
        self.firming = Firming(self.model, self.slots, lambda _span: ready)
        self.hold(TEXT[:4] if goes_on else [1, 2], 0)
        self.slots.take(TEXT[:10], firm=exact)
        self.hold(TEXT, 8)

    def hold(self, tokens: list[int], n_firm: int) -> None:
        self.model.cache[0] = list(tokens)
        self.slots.release(0, tokens, n_firm)

    def next_turn(self) -> int:
        """Tokens that it finds."""
        place = self.slots.take([*TEXT, 1, 2], firm=True)
        assert place is not None
        return place[1]


def test_what_followed_is_read_in_chunks_that_end_where_a_prompt_s_do() -> None:
    desk = Desk()
    desk.firming.run(never)
    assert desk.model.shapes == [(8,), (8,)]
    assert desk.model.cache[0] == desk.slots.all[0].tokens == TEXT[:24]
    assert desk.next_turn() == 24


def test_nothing_is_read_of_a_conversation_that_never_went_on_nor_twice() -> None:
    once, desk = Desk(goes_on=False), Desk()
    for _ in range(2):
        once.firming.run(never)
        desk.firming.run(never)
    assert once.model.shapes == []
    assert once.next_turn() == 8
    assert len(desk.model.shapes) == 2


def test_what_a_faithful_turn_can_go_on_from_is_left_alone() -> None:
    desk = Desk(exact=False)
    desk.firming.run(never)
    assert desk.model.cache[0] == TEXT


def test_who_calls_waits_for_one_chunk_at_most() -> None:
    desk = Desk()
    desk.firming.run(lambda: len(desk.model.shapes) == 1)
    assert desk.model.shapes == [(8,)]
    assert desk.next_turn() == 16
    called = Desk()
    called.firming.run(lambda: True)
    assert called.model.cache[0] == TEXT  # nothing was cut either


def test_a_pass_that_would_have_other_bits_is_not_made() -> None:
    desk = Desk(ready=False)
    desk.firming.run(never)
    assert desk.model.shapes == []
    assert desk.next_turn() == 8


def test_after_a_failed_pass_nothing_is_believed_to_be_cached() -> None:
    desk = Desk()
    desk.model.fail_next = 1
    with pytest.raises(DecodeError):
        desk.firming.run(never)
    assert desk.slots.all[0].tokens == []
    assert desk.next_turn() == 0


@pytest.fixture
def engine(
    tiny_wide: Path, tmp_path: Path, own_cache_folder: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    monkeypatch.setattr(worker, "_QUIET_S", SOON)  # pauses are made by hand
    target = requantise(tiny_wide, tmp_path / "q4_k_m.gguf", "q4_k_m")
    with Engine(settings(target, "suffix", **EXACT)) as made:
        yield made


def test_a_turn_after_a_pause_reads_less_and_has_the_bits_of_a_cold_one(engine: Engine) -> None:
    (first,) = run(engine, Request(prompt(200), max_tokens=20))
    (second,) = run(engine, Request((*first.tokens, *prompt(60, 5)), max_tokens=150))
    assert second.n_reused == 128
    engine.call(lambda: engine._scheduler.tidy(never)).result(SOON)
    assert engine.slots.all[0].n_firm == 384
    turn = Request((*second.tokens, *prompt(30, 7)), max_tokens=12, logprobs=2)
    warm = bits(engine, turn)
    engine.slots.erase(0)
    assert bits(engine, turn) == warm

"""A drafter of states at rest: passes cost what they did, the text stays, and it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parlay import Parlay
from parlay.control.choice import FixedWindow
from parlay.decoding.round import Fallback, Round, Timing
from parlay.decoding.span import Span
from parlay.engine.drafter_pause import DrafterPause, bits_stay
from parlay.proposers.follower import Follower
from tests import tiny_drafters, tiny_models


@pytest.fixture(scope="module")
def parlay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlay]:
    folder: Path = tmp_path_factory.mktemp("resting")
    target = tiny_drafters.few_words(tiny_models.write_llama(folder / "target.gguf"))
    drafter = tiny_drafters.write_dflash(folder / "drafter.gguf")
    with Parlay(target, draft=str(drafter), window=3, mode="faithful", context_size=256) as made:
        yield made


def resting(parlay: Parlay) -> DrafterPause:
    found = parlay.engine.drafts.pause
    assert isinstance(found, DrafterPause)
    return found


def a_round(*, chosen: bool = False, position: int = 9, fallback: Fallback | None = None) -> Round:
    return Round(
        seq_id=0,
        proposer="model" if chosen else "none",
        window=3 if chosen else 0,
        n_drafted=3 if chosen else 0,
        n_accepted=0,
        n_generated=1,
        confidence=(),
        n_rows=1,
        n_sequences=1,
        n_pass_rows=1,
        n_context=64,
        timing=Timing(),
        fallback=fallback,
        reason="profit" if chosen else "",
        position=position,
    )


def test_reading_states_out_changes_no_bit_here(parlay: Parlay) -> None:
    assert bits_stay(parlay.engine.target)


def test_a_drafter_that_does_not_pay_rests_and_comes_back_with_other_answers(
    parlay: Parlay,
) -> None:
    watch, engine = resting(parlay), parlay.engine
    before = parlay.generate("abc def", temperature=0, max_tokens=40, raw=True)
    assert before.speculation.n_drafted > 0
    for _ in range(400):
        watch.observe([a_round(fallback=Fallback.UNPROFITABLE)])
    assert watch.paused
    assert engine.drafts.absent == {"model": Fallback.UNPROFITABLE}
    plain = parlay.generate("abc def", temperature=0, max_tokens=40, raw=True)
    assert plain.text == before.text
    assert plain.speculation.n_drafted == 0
    assert plain.speculation.fallbacks[Fallback.UNPROFITABLE] > 0
    for _ in range(8):
        watch.observe([a_round(position=0, fallback=Fallback.UNPROFITABLE)])
    again = parlay.generate("another text", temperature=0, max_tokens=40, raw=True)
    assert again.speculation.n_drafted > 0
    assert engine.drafts.absent == {}


def test_states_stay_inside_for_requests_that_may_not_draft_by_them(parlay: Parlay) -> None:
    capture = parlay.engine.target._capture
    assert capture is not None

    def reads(prompt: str, draft: str, n: int = 40) -> bool:
        answer = parlay.generate(prompt, temperature=0, max_tokens=n, raw=True, draft=draft)
        assert (answer.speculation.n_drafted > 0) == (draft == "model")
        return not capture.paused

    assert reads("the cat", "model")
    assert reads("the cat", "none", n=4)  # a few passes are not worth a switch
    assert not reads("a dog and the cat sat", "none")
    # The slot's text is another one now than the drafter has followed.
    text = parlay.generate(
        "a dog and the cat sat", temperature=0, max_tokens=40, raw=True, draft="none"
    ).text
    assert reads("a dog and the", "model")
    drafted = parlay.generate(
        "a dog and the cat sat", temperature=0, max_tokens=40, raw=True, draft="model"
    )
    assert drafted.text == text


@pytest.mark.parametrize("pauses", [True, False])
def test_what_is_decided_while_a_device_computes_holds_from_the_next_pass_on(
    parlay: Parlay, monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    target, heard = parlay.engine.target, list[int]()
    assert target._capture is not None
    target.pause_capture(not pauses)
    with monkeypatch.context() as patch:
        patch.setattr(target._capture, "_listener", lambda spans, _: heard.append(spans[0].start))
        target.clear(0)
        for span in (Span(0, 0, [1, 2, 3], 1), Span(0, 3, [4], 1)):
            target.start([span])
            target.pause_capture(pauses)
            target.fetch([span])
    target.pause_capture(False)
    target.clear(0)
    assert heard == ([0] if pauses else [3])


def test_a_drafter_that_rests_reads_states_beside_the_targets_passes(
    parlay: Parlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = parlay.engine
    drafter = engine.drafts.proposers["model"]
    assert isinstance(drafter, Follower)
    told = parlay.generate("abc def", temperature=0, max_tokens=60, raw=True, draft="none")
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "steady", True)
        patch.setattr(engine.drafts, "controller", FixedWindow(0))
        rested = parlay.generate("abc def", temperature=0, max_tokens=60, raw=True, draft="model")
    (slot,) = drafter._slots.values()
    assert rested.text == told.text
    assert (len(slot.tokens) <= 17, slot.n_read > 32) == (True, True)
    drafted = parlay.generate("abc def", temperature=0, max_tokens=60, raw=True, draft="model")
    assert drafted.text == told.text
    assert drafted.speculation.n_drafted > 0


def test_not_once_chosen_is_enough_to_give_up_early(parlay: Parlay) -> None:
    watch = resting(parlay)
    watch._chosen.clear()
    for _ in range(128):
        watch.observe([a_round(fallback=Fallback.UNPROFITABLE)])
    assert watch.paused
    watch._resume()


def test_a_drafter_that_pays_now_and_then_stays(parlay: Parlay) -> None:
    watch = resting(parlay)
    for i in range(600):
        watch.observe([a_round(chosen=i % 20 == 0)])
    assert not watch.paused


def test_rounds_that_others_decided_say_nothing(parlay: Parlay) -> None:
    watch = resting(parlay)
    for _ in range(600):
        watch.observe([a_round(fallback=Fallback.REQUEST)])
    assert not watch.paused


def test_a_drafter_is_dropped_while_it_rests(tmp_path: Path) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    drafter = tiny_drafters.write_dflash(tmp_path / "drafter.gguf")
    with Parlay(target, draft="suffix", window=3, context_size=128, threads=1) as parlay:
        engine = parlay.engine
        engine.load_drafters([drafter])
        parlay.generate("abc", temperature=0, max_tokens=4, raw=True)
        watch = resting(parlay)
        for _ in range(300):
            watch.observe([a_round(fallback=Fallback.UNPROFITABLE)])
        assert watch.paused
        engine.drop_drafters(Fallback.MEMORY)
        parlay.generate("abc", temperature=0, max_tokens=4, raw=True)
        assert engine.drafts.absent == {"model": Fallback.MEMORY}
        assert engine.target.captured == ()
        assert isinstance(watch._drafter, Follower)

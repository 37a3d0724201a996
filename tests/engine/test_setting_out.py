"""Who drafted for the last round sets out on the next draft as soon as the text is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parlay.control.controller import Choice, FixedWindow, View, plain
from parlay.decoding.round import Fallback, Round
from parlay.engine import bets as betting
from parlay.engine import scheduler as scheduling
from parlay.engine.request import Request
from parlay.errors import DecodeError
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Ask
from tests.engine.rig import LOGITS, N_VOCAB, Rig
from tests.engine.rig import plain as plain_text
from tests.scripted import ScriptedModel

REQUEST = Request((1, 2, 3, 4, 5), max_tokens=16)


class Drafter(DraftModel):
    """Writes down for how many tokens of text it set out."""

    def __init__(self, *, fails: bool = False) -> None:
        model = ScriptedModel(LOGITS, N_VOCAB)
        model.steady = True
        super().__init__(model, DraftLimits(frozenset(), N_VOCAB, 64))
        self.set_out_at: list[int] = []
        self._fails = fails

    def set_out(self, ask: Ask) -> None:
        self.set_out_at.append(len(ask.tokens))
        if self._fails:
            raise DecodeError("scripted failure", code=-3)
        super().set_out(ask)


class ByTurns(FixedWindow):
    """Every second round is plain."""

    n_rounds = 0

    def choose(self, views: Sequence[View]) -> list[Choice]:
        self.n_rounds += 1
        if self.n_rounds % 2:
            return super().choose(views)
        return [plain(Fallback.UNPROFITABLE) for _ in views]


def test_a_draft_model_sets_out_after_every_round_that_it_drafted_for() -> None:
    drafter = Drafter()
    rig = Rig(proposers={"model": drafter}, window=3)
    (seq,) = rig.run(REQUEST)
    assert rig.text(seq) == plain_text(REQUEST)
    starts = [len(REQUEST.prompt) + r.position for r in seq.rounds]
    assert drafter.set_out_at == [n for n in starts[1:] if n < len(REQUEST.prompt) + 15]


def test_it_does_not_after_a_plain_round_and_what_it_began_in_vain_does_no_harm() -> None:
    drafter = Drafter()
    rig = Rig(proposers={"model": drafter}, controller=ByTurns(3))
    (seq,) = rig.run(REQUEST)
    assert rig.text(seq) == plain_text(REQUEST)
    after_drafts = [len(REQUEST.prompt) + r.position for r in seq.rounds][1::2]
    assert drafter.set_out_at == [n for n in after_drafts if n < len(REQUEST.prompt) + 15]


def test_it_does_not_where_several_share_a_pass() -> None:
    drafter = Drafter()
    rig = Rig(proposers={"model": drafter}, window=3, slots=2)
    sequences = rig.run(REQUEST, REQUEST)
    assert [rig.text(seq) for seq in sequences] == [plain_text(REQUEST)] * 2
    assert not drafter.set_out_at


def test_who_fails_to_set_out_costs_no_word(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(proposers={"model": Drafter(fails=True)}, window=3)
    (seq,) = rig.run(REQUEST)
    assert rig.text(seq) == plain_text(REQUEST)
    assert all(r.fallback is not Fallback.DRAFT_ERROR for r in seq.rounds)
    assert "failed to set out" in caplog.text


class Learning(ByTurns):
    """Writes down when it learns and chooses."""

    def __init__(self, window: int, told: list[str]) -> None:
        super().__init__(window)
        self._told = told

    def observe(self, rounds: Sequence[Round]) -> None:
        self._told.append("learn")

    def choose(self, views: Sequence[View]) -> list[Choice]:
        self._told.append("choose")
        return super().choose(views)


def test_it_has_set_out_when_the_step_ends_before_anything_is_learned_or_weighed() -> None:
    told, drafter = list[str](), Drafter()
    rig = Rig(proposers={"model": drafter}, controller=Learning(3, told))
    rig.target.steady = True  # what a pass shows is learned later
    seq = rig.add(REQUEST)
    while seq.n_pending > 1:
        rig.scheduler.step()
    told.clear()
    rig.scheduler.step()
    assert drafter.set_out_at == [len(seq.tokens)]
    assert told == ["choose"]  # of the round that ended
    rig.finish()


def test_what_it_took_is_drafting_of_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Drafter()
    rig = Rig(proposers={"model": drafter}, window=3)
    clock = Clock(monkeypatch)
    set_out = drafter.set_out

    def slowly(ask: Ask) -> None:
        clock.now += 1.0
        set_out(ask)

    monkeypatch.setattr(drafter, "set_out", slowly)
    (seq,) = rig.run(REQUEST)
    assert [r.timing.draft_s for r in seq.rounds] == [
        1.0 if i and i <= len(drafter.set_out_at) else 0.0 for i in range(len(seq.rounds))
    ]
    assert all(r.timing.overhead_s == 0.0 for r in seq.rounds)


class Clock:
    """Time that goes by only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (scheduling, betting):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

"""What fails for one answer ends that answer alone; its neighbours say what each says alone.

Knows the engine's loop over scripted models, and what a target, a proposer and a grammar may do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from parlay.errors import ParlayError
from tests import doors
from tests.scripted import LaxConstraint, ScriptedModel, ScriptedProposer, hashed_logits
from tests.serving import PATIENCE_S

pytestmark = pytest.mark.quick

N_VOCAB = 32
LOGITS = hashed_logits(N_VOCAB)
PROMPT = (1, 2, 3, 4, 5)
HONEST = [(*PROMPT, i) for i in range(3)]


def boom(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("boom")


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    with doors.scripted_engine(proposers={}) as engine:
        return [engine.ask(prompt, max_tokens=20).tokens for prompt in HONEST]


class Target(ScriptedModel):
    """Fails where a test says; computes on a device, so that there is a time beside its passes."""

    def __init__(self) -> None:
        super().__init__(LOGITS, N_VOCAB, 1 << 20)
        self.steady = True
        self.before: Callable[[Sequence[Any]], None] = lambda _: None
        self.after: Callable[[Sequence[Any], list[Any]], list[Any]] = lambda _, rows: rows

    def decode(self, spans: Sequence[Any]) -> list[Any]:
        self.before(spans)
        return self.after(spans, super().decode(spans))


def is_first(spans: Sequence[Any]) -> bool:
    return 0 in [span.seq_id for span in spans]


def is_draft(span: Any) -> bool:
    return bool(1 < len(span.tokens) == span.n_logits)


def spoil(spans: Sequence[Any], rows: list[Any]) -> list[Any]:
    """No number for who has the first slot."""
    pairs = zip(spans, rows, strict=True)
    return [np.full_like(row, np.nan) if span.seq_id == 0 else row for span, row in pairs]


def fails_for_the_first(spans: Sequence[Any]) -> None:
    if is_first(spans):
        raise MemoryError("no room")


@pytest.mark.parametrize("fault", ["numbers", "pass"])
def test_a_pass_that_one_answer_breaks_costs_no_other(alone: list[list[int]], fault: str) -> None:
    target = Target()
    with doors.scripted_engine(slots=4, target=target, context_size=1 << 20) as engine:
        poisoned = engine.start(PROMPT, max_tokens=10**6).begun()
        if fault == "numbers":
            target.after = spoil
        else:
            target.before = fails_for_the_first
        honest = engine.together(HONEST, max_tokens=20)
        doors.until(lambda: poisoned.ended)
        assert [each.tokens for each in honest] == alone
        assert poisoned.finish == "error" and poisoned.error is not None
        assert "\n" not in str(poisoned.error)


class Grammar(LaxConstraint):
    """Permits everything, and breaks in one place."""

    def __init__(self, method: str) -> None:
        setattr(self, method, boom)


@pytest.mark.parametrize("method", ["permits", "accept"])
def test_a_grammar_that_breaks_ends_its_answer_only(alone: list[list[int]], method: str) -> None:
    with doors.scripted_engine(slots=4) as engine:
        poisoned = engine.start(PROMPT, constraint=Grammar(method))
        honest = engine.together(HONEST, max_tokens=20)
        doors.until(lambda: poisoned.ended)
        assert [each.tokens for each in honest] == alone
        assert poisoned.finish == "error"
        assert "ZeroDivisionError" in str(poisoned.error)
        again = engine.ask(HONEST[0], max_tokens=20)  # its slot was left in order
        assert again.tokens == alone[0]


class Script(LaxConstraint):
    """A grammar that allows everything for so many tokens, and then nothing."""

    def __init__(self, n: int, *, complete: bool) -> None:
        self._left = n
        self.complete = complete

    def permits(self, draft: Sequence[int], token: int) -> bool:
        return len(draft) < self._left

    def accept(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)

    def allowed(self, draft: Sequence[int]) -> Any:
        return np.packbits(np.full(N_VOCAB, len(draft) < self._left), bitorder="little")


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
def test_a_row_that_nothing_may_follow_ends_one_answer_and_no_other(
    alone: list[list[int]], sampling: dict[str, Any], window: int
) -> None:
    with doors.scripted_engine(slots=5, window=window) as engine:
        free = engine.ask(PROMPT, max_tokens=6, **sampling)
        whole, broken = (
            engine.start(PROMPT, constraint=Script(6, complete=complete), **sampling)
            for complete in (True, False)
        )
        assert [each.tokens for each in engine.together(HONEST, max_tokens=20)] == alone
        doors.until(lambda: whole.ended and broken.ended)
    assert whole.finish == "stop" and broken.finish == "error"
    assert whole.tokens == broken.tokens == free.tokens


def test_what_breaks_beside_a_pass_costs_nobody_the_pass(alone: list[list[int]]) -> None:
    """What a grammar allows next is asked for while a device computes for everybody."""
    read: list[tuple[int, int]] = []
    target, grammar = Target(), LaxConstraint()
    target.before = lambda spans: read.extend((span.seq_id, span.start) for span in spans)
    endless: dict[str, Any] = {"max_tokens": 10**6}
    options: dict[str, Any] = {"proposers": {}, "n_call": 128, "context_size": 1 << 20}
    with doors.scripted_engine(slots=4, target=target, **options) as engine:
        poisoned = engine.start(PROMPT, constraint=grammar, temperature=0.8, **endless).begun()
        honest = [engine.start(prompt, **endless).begun() for prompt in HONEST]
        setattr(grammar, "allowed", boom)  # noqa: B010 - a method in another's place
        doors.until(lambda: poisoned.ended)
        doors.until(lambda: all(len(each.pieces) >= 20 for each in honest))
        for each in honest:
            each.leave()
        doors.until(lambda: all(each.ended for each in honest))
    assert [each.tokens[:20] for each in honest] == alone
    assert poisoned.finish == "error"
    assert len(set(read)) == len(read)  # nothing was computed twice


def test_a_draft_that_breaks_a_pass_costs_the_draft_only(alone: list[list[int]]) -> None:
    def refuse(spans: Sequence[Any]) -> None:
        if any(is_draft(span) for span in spans):
            raise ValueError("invalid token")

    target = Target()
    with doors.scripted_engine(slots=4, target=target, context_size=1 << 20) as engine:
        target.before = refuse
        assert [each.tokens for each in engine.together(HONEST, max_tokens=20)] == alone


@pytest.mark.parametrize("method", doors.PROPOSER_METHODS)
def test_a_proposer_that_breaks_costs_drafts_and_no_answer(
    alone: list[list[int]], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = ScriptedProposer(LOGITS)
    monkeypatch.setattr(proposer, method, boom)
    with doors.scripted_engine(slots=4, proposers={"scripted": proposer}) as engine:
        for _ in range(2):
            assert [each.tokens for each in engine.together(HONEST, max_tokens=20)] == alone


def test_a_receiver_that_breaks_loses_its_own_answer_only(alone: list[list[int]]) -> None:
    with doors.scripted_engine(slots=4) as engine:
        engine.deaf(PROMPT, boom)
        assert [each.tokens for each in engine.together(HONEST, max_tokens=20)] == alone


def test_who_leaves_frees_a_slot_and_changes_nobodys_text(alone: list[list[int]]) -> None:
    with doors.scripted_engine(slots=2, context_size=1 << 20) as engine:
        leaving = engine.start(PROMPT, max_tokens=10**6).begun()
        beside = engine.start(HONEST[0], max_tokens=20)
        waiting = engine.start(HONEST[1], max_tokens=20)
        leaving.leave()
        doors.until(lambda: leaving.ended)
        assert leaving.finish == "cancelled"
        assert [beside.wait().tokens, waiting.wait().tokens] == alone[:2]


def test_a_waiting_answer_can_be_left_too(alone: list[list[int]]) -> None:
    with doors.scripted_engine(slots=1, context_size=1 << 20) as engine:
        first = engine.start(PROMPT, max_tokens=10**6).begun()
        second, third = engine.start(HONEST[0]), engine.start(HONEST[1], max_tokens=20)
        second.leave()
        doors.until(lambda: second.ended)
        assert second.pieces == [] and not first.ended
        first.leave()
        assert third.wait().tokens == alone[1]


def test_closing_ends_every_answer_with_the_reason() -> None:
    with doors.scripted_engine(slots=1, context_size=1 << 20) as engine:
        asked = [engine.start(PROMPT, max_tokens=10**6) for _ in range(3)]
        asked[0].begun()
    assert all(each.ended and "closed" in str(each.error) for each in asked)
    with pytest.raises(ParlayError, match="closed"):
        engine.ask(PROMPT)


def test_closing_does_not_wait_for_ever_for_a_pass_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began, hung, target = threading.Event(), threading.Event(), Target()

    def hang(_: Sequence[Any]) -> None:
        began.set()
        hung.wait(PATIENCE_S)

    target.before = hang
    with doors.scripted_engine(target=target, patience_s=0.05) as engine:
        engine.start(PROMPT)
        assert began.wait(PATIENCE_S)
        assert engine.close() is False
        assert "has not ended" in caplog.text
        hung.set()


def test_several_threads_ask_at_once(alone: list[list[int]]) -> None:
    found: dict[int, list[int]] = {}
    with doors.scripted_engine(slots=2) as engine:

        def ask(i: int) -> None:
            found[i] = engine.ask(HONEST[i % 3], max_tokens=20).tokens

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert [found[i] for i in range(6)] == [*alone, *alone]

"""What fails for one sequence ends that sequence only; its neighbours say what each says alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from numpy.typing import NDArray

from parlay.control.controller import Choice, FixedWindow, View
from parlay.decoding.constraint import Mask
from parlay.decoding.round import Fallback, Round
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.engine.request import Request
from parlay.engine.structured.constraint import Alphabet, GrammarConstraint
from parlay.errors import BadRequest, DecodeError, ParlayError
from tests.engine.rig import LOGITS, N_VOCAB, Rig, plain
from tests.scripted import LaxConstraint, ScriptedProposer

PROMPT = (1, 2, 3, 4, 5)
HONEST = [Request((*PROMPT, i), max_tokens=20) for i in range(3)]
DRAWN = Sampling(temperature=0.8, seed=3)


class Script(LaxConstraint):
    """A grammar that allows everything for so many tokens, and then nothing."""

    def __init__(self, n: int, *, complete: bool) -> None:
        self._left = n
        self.complete = complete

    def permits(self, draft: Sequence[int], token: int) -> bool:
        return len(draft) < self._left

    def accept(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)

    def allowed(self, draft: Sequence[int]) -> Mask:
        return np.packbits(np.full(N_VOCAB, len(draft) < self._left), bitorder="little")


def boom(*_: object) -> None:
    raise ZeroDivisionError("boom")


def said_alone(rig: Rig, honest: Sequence[object]) -> bool:
    return all(
        rig.text(seq) == plain(request)  # type: ignore[arg-type]
        for seq, request in zip(honest, HONEST, strict=True)
    )


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("sampling", [Sampling(), DRAWN, Sampling(top_k=4, temperature=1)])
def test_a_row_that_nothing_may_follow_ends_one_answer_and_no_other(
    sampling: Sampling, window: int
) -> None:
    rig = Rig(slots=4, window=window)
    whole, broken = (
        rig.add(Request(PROMPT, max_tokens=20, sampling=sampling), Script(6, complete=complete))
        for complete in (True, False)
    )
    honest = [rig.add(request) for request in HONEST]
    rig.finish()
    assert said_alone(rig, honest)
    assert whole.finish_reason == "stop"
    assert broken.finish_reason == "error" and isinstance(broken.error, BadRequest)
    free = Request(PROMPT, max_tokens=6, sampling=sampling)
    assert rig.text(whole) == rig.text(broken) == plain(free)


class Letters:
    """The rig's tokens as llguidance wants to see them."""

    is_tokenizer_wrapper = True
    tokens = (*(bytes([ord("A") + i]) for i in range(N_VOCAB)), b"<end>")
    special_token_ids = (N_VOCAB,)
    eos_token_id = N_VOCAB
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return [ord(letter) - ord("A") for letter in text]


@pytest.mark.parametrize("window", [0, 4])
def test_a_matcher_that_gives_up_in_an_answer_ends_it_with_the_reason_and_no_other(
    window: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A real one, over too many ways to read a text."""
    rig = Rig(slots=4, window=window)
    grammar = grammar_from("lark", "start: e{1,9000}\ne: /[A-~]/?")
    matcher = LLMatcher(LLTokenizer(Letters(), n_vocab=N_VOCAB + 1), grammar, log_level=0)
    alphabet = Alphabet(Letters.tokens, Letters(), frozenset({N_VOCAB}))
    broken = rig.add(Request(PROMPT, max_tokens=60), GrammarConstraint(matcher, alphabet))
    honest = [rig.add(request) for request in HONEST]
    rig.finish()
    assert said_alone(rig, honest)
    assert broken.finish_reason == "error" and isinstance(broken.error, BadRequest)
    assert "too complex" in broken.error.message and "\n" not in broken.error.message
    assert plain(Request(PROMPT, max_tokens=60)).startswith(rig.text(broken)) and rig.text(broken)
    assert not [r for r in caplog.records if r.name.startswith("parlay.")]


@pytest.mark.parametrize("method", ["permits", "accept"])
def test_a_grammar_that_breaks_ends_its_answer_only(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(slots=4)
    grammar = Script(100, complete=True)
    monkeypatch.setattr(grammar, method, boom)
    poisoned = rig.add(Request(PROMPT, max_tokens=20), grammar)
    honest = [rig.add(request) for request in HONEST]
    rig.finish()
    assert said_alone(rig, honest)
    assert poisoned.finish_reason == "error"
    assert isinstance(poisoned.error, ParlayError) and "ZeroDivisionError" in poisoned.error.message
    assert "boom" in caplog.text
    (after,) = rig.run(HONEST[0])  # the slot was left in order
    assert rig.text(after) == plain(HONEST[0])


@pytest.mark.parametrize("what", ["logits", "text", "truncate"])
def test_numbers_text_and_caches_that_break_end_one_answer(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(slots=4, script=[False] * 1000)
    poisoned = rig.add(Request(PROMPT, max_tokens=20))
    honest = [rig.add(request) for request in HONEST]
    rig.scheduler.step()
    if what == "text":
        monkeypatch.setattr(poisoned._text, "push", boom)
    elif what == "truncate":
        monkeypatch.setattr(rig.target, "truncate", only(0, rig.target.truncate))
    else:
        monkeypatch.setattr(rig.target, "decode", without_numbers(rig.target.decode))
    rig.finish()
    assert said_alone(rig, honest)
    assert poisoned.finish_reason == "error"


def only(seq_id: int, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def truncate(given: int, length: int) -> None:
        if given == seq_id:
            raise DecodeError("the cache could not be cut", code=-1)
        real(given, length)

    return truncate


Decode = Callable[[Sequence[Span]], list[NDArray[np.float32]]]


def without_numbers(real: Decode) -> Decode:
    def decode(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = real(spans)
        return [
            np.full_like(row, np.nan) if span.seq_id == 0 else row
            for span, row in zip(spans, rows, strict=True)
        ]

    return decode


@pytest.mark.parametrize("fault", [DecodeError("no room in the cache", code=1), MemoryError()])
def test_a_pass_that_one_sequence_breaks_is_run_again_for_each_alone(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(slots=4)
    poisoned = rig.add(Request(PROMPT, max_tokens=20))
    honest = [rig.add(request) for request in HONEST]
    rig.scheduler.step()
    real = rig.target.decode

    def decode(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if any(span.seq_id == 0 for span in spans):
            raise fault
        return real(spans)

    monkeypatch.setattr(rig.target, "decode", decode)
    rig.finish()
    assert said_alone(rig, honest)
    assert poisoned.finish_reason == "error"


def test_a_draft_that_breaks_a_pass_costs_the_draft_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(slots=4)
    honest = [rig.add(request) for request in HONEST]
    real = rig.target.decode

    def decode(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        if any(1 < len(span.tokens) == span.n_logits for span in spans):
            raise DecodeError("invalid token", code=-1)
        return real(spans)

    monkeypatch.setattr(rig.target, "decode", decode)
    rig.finish()
    assert said_alone(rig, honest)
    assert all(seq.counts.fallbacks[Fallback.DRAFT_ERROR] for seq in honest)


@pytest.mark.parametrize("free", [frozenset[str](), frozenset({"scripted"})])
@pytest.mark.parametrize("method", ["draft", "open", "finish", "cut"])
def test_a_proposer_that_breaks_costs_drafts_and_no_answer(
    method: str,
    free: frozenset[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer = ScriptedProposer(LOGITS)
    monkeypatch.setattr(proposer, method, boom)
    rig = Rig(proposers={"scripted": proposer}, slots=4, free=free)
    sliding = rig.add(
        Request((*PROMPT, 9), max_tokens=400, context_full="slide")
    )  # past its context
    honest = rig.run(*HONEST)
    assert said_alone(rig, honest)
    assert sliding.finish_reason == "length" and sliding.n_generated == 400
    if method == "draft":
        assert honest[0].counts.fallbacks[Fallback.DRAFT_ERROR] > 0
    assert "boom" in caplog.text
    assert caplog.text.count("Traceback") < 20  # ever more seldom, however often it fails


def test_a_controller_that_breaks_costs_bets_and_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(FixedWindow):
        def choose(self, views: Sequence[View]) -> list[Choice]:
            raise KeyError("choose")

        def observe(self, rounds: Sequence[Round]) -> None:
            raise KeyError("observe")

    rig = Rig(slots=4, controller=Broken(4))
    honest = rig.run(*HONEST)
    assert said_alone(rig, honest)
    assert honest[0].counts.n_generated == 20
    assert "choose" in caplog.text and "observe" in caplog.text


def lost(*_: object, **_options: object) -> None:
    raise DecodeError("the sequence's state could not be saved", code=-1)


def test_a_turn_whose_place_cannot_be_marked_ends_alone_and_gives_its_slot_back() -> None:
    rig = Rig(proposers={}, slots=2)
    (first,) = rig.run(Request(tuple(range(1, 20)), max_tokens=4))
    other = Request((9, 8, 7), max_tokens=20)
    honest = rig.add(other)
    rig.scheduler.step()
    mark, rig.target.mark = rig.target.mark, lost  # type: ignore[method-assign]
    next_turn = rig.add(Request((*first.tokens[:20], 7, 8, 9), max_tokens=4))
    rig.scheduler.step()
    assert next_turn.finish_reason == "error" and next_turn.retired
    rig.target.mark = mark  # type: ignore[method-assign]
    rig.finish()
    assert rig.text(honest) == plain(other)
    assert rig.slots.n_free == 2


def test_a_prompt_that_can_be_given_no_slot_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(proposers={}, slots=2)
    honest = rig.add(HONEST[0])
    rig.scheduler.step()
    with monkeypatch.context() as patch:
        patch.setattr(rig.target, "clear", lost)
        unlucky = rig.add(Request((7, 8, 9), max_tokens=4))
        rig.scheduler.step()
    assert unlucky.finish_reason == "error" and unlucky.retired
    later = rig.add(HONEST[1])
    rig.finish()
    assert [rig.text(seq) for seq in (honest, later)] == [plain(request) for request in HONEST[:2]]
    assert rig.slots.n_free == 2

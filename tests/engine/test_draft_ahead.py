"""Draft ahead in the round: both models at work, in every order, and the text never changes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.measurements.round_cost import Script, begin
from parlay import Parlay
from parlay.control.controller import Choice, View
from parlay.control.profit import ProfitController
from parlay.decoding.round import Fallback
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.engine import scheduler as scheduling
from parlay.engine.request import Request
from parlay.engine.sequence import Sequence as Answering
from parlay.proposers.ahead import THREAD, DraftAhead, _Walk
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Ask
from tests import tiny_models
from tests.engine.rig import LOGITS, N_VOCAB, Rig, let_them_draft_ahead, plain
from tests.scripted import Logits, ScriptedModel

PROMPT = (1, 2, 3, 4, 5)
REQUEST = Request(PROMPT, max_tokens=20)
WINDOW = 3
# The class that has room for drafts: prices might choose the one of single rows.
PINNED: dict[str, Any] = {"mode": "exact", "exact_class": "2"}
HOW: dict[str, Any] = {"window": WINDOW, "context_size": 256, "threads": 1, **PINNED}


def unsure(period: int) -> Logits:
    """A drafter that is wrong at every so many places."""

    def logits(history: Sequence[int]) -> NDArray[np.float32]:
        row: NDArray[np.float32] = LOGITS(history).copy()
        if period and len(history) % period == 0:
            row[int(row.argmax())] = -100.0
        return row

    return logits


class Drafter(ScriptedModel):
    """Counts the passes that it makes beside the target's."""

    steady = True

    def __init__(self, period: int = 0) -> None:
        super().__init__(unsure(period), N_VOCAB)
        self.n_ahead = 0  # passes on the thread of its own

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        try:
            return super().decode(spans)
        finally:
            self.n_ahead += threading.current_thread().name.startswith(THREAD)


class Beside:
    """A rig whose target's passes end when the test says so: after something happened in them."""

    def __init__(self, period: int = 0, window: int = WINDOW) -> None:
        self.drafter = Drafter(period)
        self.ahead = DraftAhead(
            DraftModel(self.drafter, DraftLimits(frozenset(), N_VOCAB, 64)), always=True
        )
        self.rig = Rig(proposers={"model": self.ahead}, window=window)
        self.meanwhile: Callable[[], object] = lambda: None
        real = self.rig.target.decode

        def decode(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            self.meanwhile()
            return real(spans)

        self.rig.target.decode = decode  # type: ignore[method-assign]

    def begun(self, request: Request) -> Answering:
        """An answer in its middle: both models are at work."""
        seq = self.rig.add(request)
        while seq.n_generated < 5:
            self.rig.scheduler.step()
        return seq

    def wait(self, n: int) -> None:
        """Until so many tokens are drafted ahead of this pass, or no more will be."""
        walk, n_before = self.ahead._walk, self.drafter.n_ahead
        while not walk.ended and self.drafter.n_ahead < n_before + n:
            os.sched_yield()


@pytest.fixture
def beside() -> Iterator[Callable[..., Beside]]:
    made: list[Beside] = []

    def make(*args: int) -> Beside:
        made.append(Beside(*args))
        return made[-1]

    yield make
    for each in made:
        each.ahead.close()


@settings(max_examples=40)
@given(
    period=st.integers(0, 7),
    window=st.integers(1, 8),
    n=st.integers(1, 40),
    sampling=st.sampled_from(
        [Sampling(), Sampling(temperature=0.8, seed=7), Sampling(repeat_penalty=1.3)]
    ),
)
def test_the_text_is_plain_decodings(period: int, window: int, n: int, sampling: Sampling) -> None:
    made = Beside(period, window)
    request = Request(PROMPT, max_tokens=n, sampling=sampling)
    try:
        (seq,) = made.rig.run(request)
        assert made.rig.text(seq) == plain(request)
    finally:
        made.ahead.close()


@pytest.mark.parametrize("n_ready", range(WINDOW + 2))
@pytest.mark.parametrize("period", [0, 2, 5])
def test_whatever_is_ready_when_a_pass_ends_the_text_is_the_same(
    beside: Callable[..., Beside], n_ready: int, period: int
) -> None:
    made = beside(period)
    request = Request(PROMPT, max_tokens=24)

    made.meanwhile = lambda: made.wait(n_ready)
    (seq,) = made.rig.run(request)
    assert made.rig.text(seq) == plain(request)
    if period == 0:  # where all is right, what was ready beyond the guess was the next draft
        used = [r.n_ahead for r in seq.rounds if r.n_drafted][1:-1]
        assert all(n >= max(0, min(WINDOW, n_ready - 1)) for n in used)


def test_drafts_that_hold_are_ready_and_counted(beside: Callable[..., Beside]) -> None:
    made = beside()
    made.meanwhile = lambda: made.wait(1 + WINDOW)  # the guess and a whole draft
    (seq,) = made.rig.run(Request(PROMPT, max_tokens=20))
    counts = seq.counts
    assert counts.n_hits >= 3 and counts.n_drafted_ahead >= 4 * counts.n_hits
    assert counts.hidden_s > 0
    shown = counts.as_dict()
    assert shown["hits"] == counts.n_hits and shown["drafted_ahead"] == counts.n_drafted_ahead
    hits = [r for r in seq.rounds if r.n_ahead]
    assert all(r.n_ahead == r.n_drafted for r in hits) and all(r.beside for r in hits[:-1])


def test_an_answer_cancelled_while_both_work_ends_and_the_next_one_is_right(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.rig.add(Request(PROMPT, max_tokens=40))
    while seq.n_generated < 3:
        made.rig.scheduler.step()
    made.meanwhile = lambda: setattr(seq, "cancelled", True)
    made.rig.finish()
    made.meanwhile = lambda: None
    other = Request((7, 8, 9), max_tokens=12)
    (next_one,) = made.rig.run(other)
    assert seq.finish_reason == "cancelled"
    assert made.rig.text(next_one) == plain(other)


def test_a_pass_of_the_target_that_fails_beside_a_drafter_is_made_good(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.begun(REQUEST)
    made.rig.target.fail_next = 1
    made.rig.finish()
    assert seq.finish_reason == "length" and made.rig.text(seq) == plain(REQUEST)


def test_a_drafter_that_fails_ahead_costs_a_draft_and_not_a_word(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.begun(REQUEST)
    made.ahead.forget(1)  # nothing is under way
    made.drafter.fail_next = 1
    made.rig.finish()
    assert made.rig.text(seq) == plain(REQUEST)
    assert seq.counts.fallbacks[Fallback.DRAFT_ERROR] == 1


def test_a_drafter_with_nothing_to_do_begins_before_the_bets_are_weighed(
    beside: Callable[..., Beside], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = beside(2)  # whose drafts never hold
    made.meanwhile = lambda: made.wait(100)  # until it has gone as far as it shall
    weighed: list[int] = []
    choose = made.rig.controller.choose

    def counted(views: Sequence[View]) -> list[Choice]:
        weighed.append(made.drafter.length(views[0].seq_id) - views[0].n_context)
        return choose(views)

    monkeypatch.setattr(made.rig.controller, "choose", counted)
    (seq,) = made.rig.run(REQUEST)
    assert made.rig.text(seq) == plain(REQUEST)
    assert weighed[1:-1] == [1] * len(weighed[1:-1])  # it has read the last token, too


def test_a_round_does_not_wait_for_a_drafter_that_is_busy(beside: Callable[..., Beside]) -> None:
    made = beside()
    seq = made.begun(REQUEST)
    n_passes, made.ahead._walk = len(made.drafter.shapes), _Walk(())  # that has not ended
    made.ahead.set_out(Ask(seq.seq_id, [*seq.tokens, 1], WINDOW))
    assert len(made.drafter.shapes) == n_passes
    made.ahead._walk.ended = True
    made.rig.finish()
    assert made.rig.text(seq) == plain(REQUEST)


def test_a_drafter_may_be_taken_away_between_two_rounds(beside: Callable[..., Beside]) -> None:
    made = beside()
    seq = made.begun(REQUEST)
    made.rig.bets.proposers.pop("model")  # as under memory pressure, while it drafts ahead
    made.ahead.close()
    assert made.drafter.closed
    made.rig.finish()
    assert made.rig.text(seq) == plain(REQUEST)


# -- prompts ----------------------------------------------------------------------------------

LONG = Request(tuple(range(1, 21)), max_tokens=12)  # three passes of the rig's eight tokens
N_LONG = len(LONG.prompt)


def has_read(made: Beside, n: int) -> Callable[[], None]:
    """What a pass of the target waits for: that the drafter has read so many tokens of a prompt."""

    def wait() -> None:
        reading = made.ahead._readings.get(0)
        while reading is not None and reading.n_read < n and not reading.called_back:
            os.sched_yield()

    return wait


@pytest.mark.parametrize("n_read", [0, N_LONG - 2, N_LONG - 1, N_LONG])
@pytest.mark.parametrize("period", [0, 3])
def test_however_far_a_prompt_is_read_along_when_the_target_has_read_it_the_text_is_the_same(
    beside: Callable[..., Beside], n_read: int, period: int
) -> None:
    made = beside(period)
    made.meanwhile = has_read(made, n_read)
    (seq,) = made.rig.run(LONG)
    assert made.rig.text(seq) == plain(LONG)
    assert not seq.counts.fallbacks[Fallback.DRAFT_ERROR]


def test_a_prompt_read_along_needs_one_pass_before_its_first_draft(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    made.meanwhile = has_read(made, N_LONG)
    seq = made.rig.add(LONG)
    while not seq.n_generated:
        made.rig.scheduler.step()
    made.meanwhile = lambda: None
    made.drafter.shapes.clear()
    made.ahead.propose([Ask(0, seq.tokens, 1)])
    assert made.drafter.shapes == [(1,), (1,)]  # its own, and the one that it goes on with


def test_an_answers_first_draft_is_ready_when_the_target_has_read_its_prompt(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    made.rig.run(REQUEST)  # what its drafts are like
    made.meanwhile = has_drafted(made, WINDOW)
    seq = made.rig.add(LONG)
    while not seq.n_generated:
        made.rig.scheduler.step()
    made.meanwhile = lambda: None
    assert made.ahead.ready(0, seq.tokens).n_tokens == WINDOW
    made.rig.finish()
    assert made.rig.text(seq) == plain(LONG)
    assert seq.counts.n_hits >= 1


def has_drafted(made: Beside, n: int) -> Callable[[], None]:
    """The same: that so many tokens of the answer's first draft are there, behind a guess."""

    def wait() -> None:
        while 0 in made.ahead._readings and not made.ahead._readings[0].called_back:
            chain = made.ahead.drafter.chain(0)
            if chain is not None and chain.begins == N_LONG and len(chain.tokens) > n:
                return
            os.sched_yield()

    return wait


@pytest.mark.parametrize(
    "request_", [replace(LONG, window=0), replace(LONG, proposers=("suffix",))]
)
def test_a_prompt_that_nobody_drafts_for_is_not_read_along(
    beside: Callable[..., Beside], request_: Request
) -> None:
    made = beside()
    made.rig.run(request_)
    made.ahead.forget(1)
    assert not made.drafter.shapes


def test_an_answer_cancelled_while_its_prompt_is_read_along_ends_and_the_next_one_is_right(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.rig.add(LONG)
    made.meanwhile = lambda: setattr(seq, "cancelled", True)
    made.rig.finish()
    made.meanwhile = lambda: None
    (next_one,) = made.rig.run(REQUEST)
    assert seq.finish_reason == "cancelled" and not seq.n_generated
    assert made.rig.text(next_one) == plain(REQUEST)


def test_a_prompt_whose_pass_fails_beside_a_reading_drafter_is_made_good(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.rig.add(LONG)
    failed = iter([False, True])  # its second pass: the drafter reads by then

    def fail() -> None:
        made.rig.target.fail_next = int(next(failed, False))

    made.meanwhile = fail
    made.rig.finish()
    assert seq.finish_reason == "error"  # as without a drafter: a prompt alone, and no draft
    (next_one,) = made.rig.run(LONG)
    assert made.rig.text(next_one) == plain(LONG)


def test_a_drafter_that_fails_at_a_prompt_costs_a_draft_and_not_a_word(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    made.drafter.fail_next = 1
    (seq,) = made.rig.run(LONG)
    assert made.rig.text(seq) == plain(LONG)
    assert seq.counts.fallbacks[Fallback.DRAFT_ERROR] == 1


def test_a_drafter_may_be_taken_away_while_it_reads_a_prompt(
    beside: Callable[..., Beside],
) -> None:
    made = beside()
    seq = made.rig.add(LONG)
    made.rig.scheduler.step()  # the first pass over its prompt: the drafter has begun
    assert made.ahead._readings
    made.rig.bets.proposers.pop("model")  # as under memory pressure
    made.ahead.close()
    assert made.drafter.closed
    made.rig.finish()
    assert made.rig.text(seq) == plain(LONG)


# -- real models on a CPU ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ahead")
    target, drafter = folder / "target.gguf", folder / "drafter.gguf"
    tiny_models.write_llama(target, seed=1)
    tiny_models.write_llama(drafter, seed=1)
    return target, drafter


def drafters() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(THREAD)]


def test_on_a_cpu_nothing_is_drafted_ahead_unless_it_is_asked_for(
    files: tuple[Path, Path],
) -> None:
    target, drafter = files
    texts = set()
    for mode in ("off", "auto", "on"):
        with Parlay(target, draft=str(drafter), draft_ahead=mode, **HOW) as parlay:
            let_them_draft_ahead(parlay.engine)
            answers = [
                parlay.generate("abc", raw=True, max_tokens=40, temperature=t, seed=5)
                for t in (0.0, 0.9)
            ]
            assert bool(drafters()) == (mode == "on")
            assert any(a.speculation.n_hits for a in answers) == (mode == "on")
            texts.add(tuple(a.text for a in answers))
        assert not drafters()
    assert len(texts) == 1


def test_an_engine_closes_while_both_work(files: tuple[Path, Path]) -> None:
    target, drafter = files
    with Parlay(target, draft=str(drafter), draft_ahead="on", **HOW) as parlay:
        stream = parlay.stream("abc", raw=True, max_tokens=200)
        next(iter(stream))
    assert not drafters()


def test_an_engine_closes_while_both_read_a_prompt(files: tuple[Path, Path]) -> None:
    target, drafter = files
    with Parlay(
        target, draft=str(drafter), window=3, context_size=256, threads=1, draft_ahead="on"
    ) as parlay:
        parlay.stream("abc" * 30, raw=True, max_tokens=20)
    assert not drafters()


def test_a_bet_on_a_draft_that_is_ready_is_made_again_without_being_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduling, "perf_counter", time.perf_counter)  # to be put back
    script = Script("again", "gpu-14b-f16", 400, wait=False, window=4, n_vocab=2048, draft_ms=0.1)
    begun = begin("ahead", "faithful", 1, script)
    del begun.scheduler.bets.proposers["suffix"]  # which would copy all of it
    again, made = ProfitController.again, list[Choice]()

    def noted(self: ProfitController, view: View) -> Choice | None:
        choice = again(self, view)
        made.extend([choice] if choice is not None else [])
        return choice

    monkeypatch.setattr(ProfitController, "again", noted)
    (answer,) = begun.answers
    try:
        while len(made) < 3 and not answer.done:
            begun.scheduler.step()
    finally:
        begun.scheduler.bets.close()
    assert [choice.proposer for choice in made] == ["model"] * 3

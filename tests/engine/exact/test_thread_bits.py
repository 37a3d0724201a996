"""Numbers of threads are compared by their logits, at the length where they are to be used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact.shapes import PAGE
from parlay.engine.exact.thread_bits import ThreadBits
from parlay.llama.threads import Threads
from tests.scripted import ScriptedModel

RULE = 2


class PartedSums(ScriptedModel):
    """Rounds by its threads from some length on."""

    def __init__(self, threads: Threads, from_length: int) -> None:
        super().__init__(self._row, n_vocab=8, context_size=2048)
        self._threads = threads
        self._from = from_length

    def _row(self, text: Sequence[int]) -> NDArray[np.float32]:
        off = 0.25 * self._threads.n if len(text) > self._from else 0.0
        return np.full(8, len(text) + off, np.float64)


@pytest.fixture
def threads() -> Threads:
    return Threads(RULE)


def bits(model: ScriptedModel, threads: Threads, *, cuts: bool = True) -> ThreadBits:
    return ThreadBits(model, threads, RULE, cuts=cuts)


def placed(model: ScriptedModel, length: int, seq_id: int = 0) -> Span:
    model.cache[seq_id] = [1] * length
    return Span(seq_id, length, [1], 1)


def test_the_rule_needs_no_trial(threads: Threads) -> None:
    model = PartedSums(threads, 0)
    assert bits(model, threads).same(RULE, [placed(model, 4)])
    assert not model.shapes


def test_others_are_tried_once_and_leave_the_cache_and_the_threads_as_they_were(
    threads: Threads,
) -> None:
    model = PartedSums(threads, 1000)
    found, span = bits(model, threads), placed(model, 10)
    assert not found.known(1, [span])
    assert found.same(1, [span])
    n_passes = len(model.shapes)
    assert n_passes == 2
    assert found.same(1, [span])
    assert found.known(1, [span])
    assert len(model.shapes) == n_passes
    assert model.length(0) == 10
    assert threads.n == RULE


def test_what_holds_for_short_texts_is_tried_again_on_long_ones(threads: Threads) -> None:
    model = PartedSums(threads, PAGE + 20)
    found = bits(model, threads)
    assert found.same(1, [placed(model, 10)])
    assert not found.same(1, [placed(model, 2 * PAGE)])
    assert found.same(1, [placed(model, 10)])


def test_prompts_and_several_sequences_are_questions_of_their_own(threads: Threads) -> None:
    model = PartedSums(threads, 1000)
    found = bits(model, threads)
    assert found.same(1, [placed(model, 10)])
    both = [placed(model, 10), placed(model, 12, seq_id=1)]
    assert not found.known(1, both)
    assert found.same(1, both)
    prompt = Span(0, 10, [1] * 64, 0)
    assert not found.known(1, [prompt])
    assert found.same(1, [prompt])
    assert model.length(0) == 10


def test_only_the_width_at_hand_is_tried_and_another_when_it_comes(threads: Threads) -> None:
    model = PartedSums(threads, 1000)
    found = bits(model, threads)
    one = placed(model, 10)
    assert found.same(1, [one])
    assert set(model.shapes) == {(1,)}
    four = Span(0, 10, [1] * 4, 4)
    assert not found.known(1, [four])
    assert found.same(1, [four])


def test_what_was_tried_is_known_in_another_run(threads: Threads) -> None:
    model = PartedSums(threads, 1000)
    found, span = bits(model, threads), placed(model, 10)
    found.same(1, [span])
    again = bits(model, threads)
    again.recall(found.to_dict())
    assert again.known(1, [span])
    with pytest.raises((ValueError, LookupError)):
        again.recall({"same": [[1, 1]]})


def test_prompts_that_differ_are_found(threads: Threads) -> None:
    model = PartedSums(threads, 20)
    assert not bits(model, threads).same(1, [Span(0, 0, [1] * 64, 0)])


def test_a_cache_that_cannot_be_cut_keeps_the_rule(threads: Threads) -> None:
    model = PartedSums(threads, 1000)
    assert not bits(model, threads, cuts=False).same(1, [placed(model, 10)])
    assert not model.shapes


def test_a_trial_that_fails_costs_no_answer_and_is_not_made_again(threads: Threads) -> None:
    model = PartedSums(threads, 1000)
    found, span = bits(model, threads), placed(model, 10)
    model.fail_next = 1
    assert not found.same(1, [span])
    assert len(model.cache[0]) == 10
    n_passes = len(model.shapes)
    assert not found.same(1, [span])
    assert len(model.shapes) == n_passes

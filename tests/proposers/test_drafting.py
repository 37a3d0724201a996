"""A drafted token is chosen and rated by one rule, in few calls of Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.control.betting.stopping import Stopping
from parlay.control.survival import Acceptance
from parlay.errors import DecodeError, NothingFollows
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import Drafting, DraftLimits
from parlay.proposers.proposer import Ask
from tests.calls import python_calls

N_VOCAB = 12
# So few values that most rows have several largest ones.
LOGITS = st.sampled_from([-math.inf, -3.0, -0.0, 0.0, 1.5, 1.5000001, 80.0])
ROWS = st.lists(LOGITS, min_size=N_VOCAB, max_size=N_VOCAB + 4)


def drafting(keep_going: Callable[..., bool] | None = lambda _: True) -> Drafting:
    return Drafting(Ask(0, [1, 2], 4, keep_going=keep_going), frozenset({3}), N_VOCAB)


def by_the_rule(row: NDArray[np.float32]) -> tuple[int, float]:
    """The first of the largest that the target knows, and its lead over all others."""
    token = int(np.flatnonzero(row[:N_VOCAB] == row[:N_VOCAB].max())[0])
    others = np.delete(row, token)
    return token, 1.0 / (1.0 + math.exp(-max(float(row[token]) - float(others.max()), -50.0)))


def test_a_draft_goes_on_until_another_would_for_nothing() -> None:
    found = drafting()
    found.ask = replace(found.ask, until=lambda tokens, sure: tokens[-1] == 2 and len(sure) == 2)
    row = np.zeros(N_VOCAB, np.float32)
    going = []
    for token in (1, 2):
        row[:] = 0.0
        row[token] = 1.0
        going.append(found.add(row) and found.worth_going_on)
    assert going == [True, False]


@given(ROWS)
def test_the_first_of_the_largest_logits_is_drafted_and_rated_by_its_lead(row: list[float]) -> None:
    found, logits = drafting(), np.array(row, np.float32)
    given_row = logits.copy()
    if given_row[:N_VOCAB].max() == -math.inf:
        with pytest.raises(NothingFollows):
            found.add(logits)
        return
    token, sure = by_the_rule(given_row)
    assert found.add(logits) == (token != 3)
    assert (found.tokens, found.confidence) == ([token], [sure])
    assert logits.tobytes() == given_row.tobytes()  # whoever looks at the row next finds it whole


@given(ROWS, st.integers(0, N_VOCAB - 1))
def test_a_row_with_what_is_no_number_is_an_error(row: list[float], at: int) -> None:
    logits = np.array(row, np.float32)
    logits[at] = np.nan
    with pytest.raises(DecodeError, match="no numbers"):
        drafting().add(logits)


def test_nobody_rates_tokens_where_nobody_asks_how_sure_they_are() -> None:
    found = drafting(keep_going=None)
    found.add(np.arange(N_VOCAB, dtype=np.float32))
    assert (found.tokens, found.confidence) == ([N_VOCAB - 1], [])


def test_a_drafted_token_takes_few_calls_of_python(tiny_llama: Path) -> None:
    """From the choice of a token to the row of the next one, the controller's question included."""
    model = Model(tiny_llama, ModelSettings())
    settings = ContextSettings(context_size=128, n_batch=32, threads=1, same_bits=False)
    context = Context(model, settings)
    context.steady = True
    proposer = DraftModel(context, DraftLimits(frozenset(), context.n_vocab, 32))

    def calls_for(window: int) -> int:
        odds, prices = Acceptance().by_confidence.odds, [0.01] * (window + 2)
        going = Stopping(odds, 0.0, [0.99] * window, prices, 1.0, 1e-6, window).keep_going
        proposer.forget(0)
        proposer.propose([Ask(0, [1, 2, 3, 4], 1)])
        ask = Ask(0, [1, 2, 3, 4, 5], window, keep_going=going)
        found, n_calls = python_calls(lambda: proposer.propose([ask]))
        assert len(found[0].tokens) == window
        return n_calls

    assert (calls_for(24) - calls_for(8)) / 16 <= 20
    proposer.close()
    model.close()


def test_what_another_thread_is_adding_is_not_looked_at_before_it_is_there() -> None:
    """A confidence comes before its token: whoever looks in between must see neither."""
    seen: list[int] = []

    def going(sure: Sequence[float]) -> bool:
        seen.append(len(sure))
        return True

    made = Drafting(Ask(0, [1], 8, keep_going=going), frozenset(), 32)
    made.add(np.arange(32, dtype=np.float32))
    made.confidence.append(0.9)  # of the second token, which is not there yet
    assert made.worth_going_on
    assert seen == [1]


def test_a_draft_that_a_grammar_or_a_draw_binds_is_never_ready() -> None:
    free, bound = (
        Drafting(Ask(0, [1], 8, rejection=rejection), frozenset(), 32)
        for rejection in (False, True)
    )
    for made in (free, bound):
        made.add(np.arange(32, dtype=np.float32))
    assert free.ready([1]).n_tokens == 1
    assert bound.ready([1]).n_tokens == 0


class Growing(list[int]):
    """A text that another thread adds to as soon as it was measured."""

    def __len__(self) -> int:
        n = super().__len__()
        self.append(7)
        return n


def test_a_text_that_grows_while_it_is_compared_has_gone_no_other_way() -> None:
    made = drafting()
    made.tokens += [5, 6, 7, 8]
    assert made.n_agreed(Growing([1, 2, 5, 6])) == 2

"""Where nobody drafts, a round asks as little of Python as plain decoding's: calls are counted."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.control.controller import Choice, FixedWindow, View, plain
from parlay.decoding.draft import Draft, Shown
from parlay.decoding.round import Fallback
from parlay.decoding.span import Span
from parlay.engine.request import Request
from parlay.proposers.dflash import DFlashProposer
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Proposer
from parlay.proposers.suffix import SuffixProposer
from tests.engine.rig import LOGITS, N_VOCAB, Rig
from tests.proposers.scripted_states import MASK, BlockDrafter, states_of
from tests.scripted import ScriptedModel

N_TOKENS = 60


class Resting(FixedWindow):
    """Never searches."""

    def __init__(self) -> None:
        super().__init__(4)
        self.n_chosen = 0

    def due(self, n_texts: int) -> int:
        return 0

    def rests(self) -> bool:
        return True

    def choose(self, views: Seq[View]) -> list[Choice]:
        self.n_chosen += 1
        return [plain(Fallback.UNPROFITABLE) for _ in views]


class Calls:
    """Counts functions that are called, of Python or C."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, _frame: FrameType, event: str, _value: Any) -> None:
        self.n += event in ("call", "c_call")

    @contextmanager
    def counting(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def followed(rig: Rig, calls: Calls, follow: Callable[..., None] | None) -> None:
    """Passes on a device: what they do, and what is done meanwhile, is not counted."""
    decode, target = rig.target.decode, rig.target

    def passing(spans: Seq[Span]) -> list[NDArray[np.float32]]:
        counting = sys.getprofile()
        sys.setprofile(None)
        rows = decode(spans)
        target.meanwhile()
        if follow is not None:
            follow(spans, [states_of(span.tokens) for span in spans])
        sys.setprofile(counting)
        return rows

    target.steady = True
    target.decode = passing  # type: ignore[method-assign]


def calls_a_round(proposers: dict[str, Proposer], controller: FixedWindow) -> float:
    rig = Rig(
        proposers=proposers, free=frozenset({"suffix"}), controller=controller, mode="faithful"
    )
    calls, model = Calls(), proposers.get("model")
    followed(rig, calls, model.follow if isinstance(model, DFlashProposer) else None)
    rig.add(Request((1, 2, 3, 4, 5), max_tokens=N_TOKENS))
    found = []
    while not rig.scheduler.idle:
        before = calls.n
        with calls.counting():
            rig.scheduler.step()
        found.append(calls.n - before)
    assert len(found) > N_TOKENS - 5
    return statistics.median(found)


def test_a_resting_round_calls_hardly_more_functions_than_a_plain_one() -> None:
    limits = DraftLimits(frozenset(), N_VOCAB, 16)
    block = DFlashProposer(
        BlockDrafter(LOGITS, N_VOCAB), limits, block_size=6, mask=MASK, name="model"
    )
    controller = Resting()
    plainly = calls_a_round({}, FixedWindow(0))
    resting = calls_a_round({"suffix": SuffixProposer(), "model": block}, controller)
    assert resting < 1.2 * plainly
    assert controller.n_chosen <= 2  # as it begins to rest, and of the last token


def test_a_round_that_is_weighed_calls_more_or_this_counts_nothing() -> None:
    plainly = calls_a_round({}, FixedWindow(0))
    weighed = calls_a_round({"suffix": SuffixProposer()}, FixedWindow(4))
    assert weighed > 1.2 * plainly


class Considering(Resting):
    """Rests, and keeps what it is told meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, Draft, Seq[Shown], int]] = []

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Seq[Shown], n_generated: int
    ) -> None:
        self.told.append((seq_id, offers["suffix"], shown, n_generated))


def periodic(history: Seq[int]) -> NDArray[np.float32]:
    """A text that goes 0, 1, 2, 0, 1, 2 and so on."""
    row = np.zeros(N_VOCAB, np.float32)
    row[len(history) % 3] = 1.0
    return row


class Failing(Considering):
    """Cannot make anything of it."""

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Seq[Shown], n_generated: int
    ) -> None:
        super().consider(seq_id, offers, shown, n_generated)
        raise ZeroDivisionError


def considered(n_texts: int, controller: Considering) -> Rig:
    rig = Rig(
        proposers={"suffix": SuffixProposer()},
        free=frozenset({"suffix"}),
        controller=controller,
        mode="faithful",
        slots=n_texts,
        target=ScriptedModel(periodic, N_VOCAB, 128),
    )
    followed(rig, Calls(), None)
    rig.run(*[Request((9, 8, 7), max_tokens=40)] * n_texts)
    return rig


def test_of_a_text_that_repeats_itself_what_a_search_would_find_is_told_meanwhile() -> None:
    considered(1, controller := Considering())
    told = controller.told
    assert told
    for _, draft, _, n_generated in told:
        text = [(3 + i) % 3 for i in range(60)]
        assert list(draft.tokens) == text[n_generated : n_generated + len(draft.tokens)]
    n_right = sum(each.n_right for _, _, shown, _ in told for each in shown)
    assert n_right >= 20 and not any(each.wrong for _, _, shown, _ in told for each in shown)


def test_of_several_it_is_not() -> None:
    considered(2, controller := Considering())
    assert not controller.told


def test_a_controller_that_fails_at_it_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    rig = considered(1, controller := Failing())
    (answer,) = rig.pieces
    assert controller.told and answer.finish_reason == "length"
    assert answer.tokens[3:] == [i % 3 for i in range(40)]
    assert "weighing what a search would find failed" in caplog.text

"""An exact answer that changes its class where its text repeats itself, on a model that rounds.

What every pass wrote to the cache depends on its rows, later logits depend on that, and so does the
text: a pass in the wrong class shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.control.controller import FixedWindow
from parlay.decoding.span import Span
from parlay.engine.exact.exactness import ExactClass
from parlay.engine.request import Mode, Request
from parlay.proposers.proposer import Proposer
from parlay.proposers.suffix import SuffixProposer
from tests.engine.rig import LOGITS, N_VOCAB, Rig, exact_class
from tests.scripted import ScriptedModel, ScriptedProposer

BASE, WIDE = exact_class(3, 4), exact_class(*range(9, 17))
SIZE, PERIOD = 512, 13
PROMPTS = [tuple(range(n, n + 9)) for n in (1, 5, 11)]


class Rounding(ScriptedModel):
    """Repeats itself, and now and then goes elsewhere: where, depends on every kernel so far."""

    def __init__(self) -> None:
        super().__init__(LOGITS, N_VOCAB, SIZE)
        self._kernels: dict[int, list[int]] = {}

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found = super().decode(spans)
        n = sum(len(span.tokens) for span in spans)
        for span, rows in zip(spans, found, strict=True):
            written = self._kernels.setdefault(span.seq_id, [])
            del written[span.start :]
            text, reads = self.cache[span.seq_id], span.n_logits < len(span.tokens)
            for j in range(len(span.tokens)):
                written.append(9 if reads else (n - 1).bit_length())
                if j >= len(span.tokens) - len(rows):
                    at = j - len(span.tokens)
                    rows[at] += 20 * _next(text[: span.start + j + 1], written)
        return found


def _next(text: Sequence[int], written: Sequence[int]) -> NDArray[np.float32]:
    dice = np.random.default_rng([len(text), sum(i * k for i, k in enumerate(written))])
    elsewhere = len(text) <= PERIOD or dice.random() < 0.05
    token = int(dice.integers(N_VOCAB)) if elsewhere else text[-PERIOD]
    found = np.zeros(N_VOCAB, np.float32)
    found[token] = 1.0
    return found


class Noticing(FixedWindow):
    """Counts how often it is told that a pass will be wide."""

    n_noticed = 0

    def notice(self) -> None:
        self.n_noticed += 1


def _rig(window: int, slots: int = 1, wide: ExactClass | None = WIDE, **proposers: Proposer) -> Rig:
    return Rig(
        exact=BASE,
        wide=wide,
        target=Rounding(),
        context_size=SIZE,
        proposers=proposers,
        controller=FixedWindow(window),
        slots=slots,
        free=frozenset({"suffix"}),
    )


def _texts(rig: Rig, *, together: bool = False) -> list[str]:
    requests = [Request(prompt=prompt, max_tokens=150) for prompt in PROMPTS]
    found = rig.run(*requests) if together else [rig.run(each)[0] for each in requests]
    assert all(seq.exact and seq.exact_class == "3-4+9-16" for seq in found)
    return [rig.text(seq) for seq in found]


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return _texts(_rig(0))


@pytest.mark.parametrize("window", [1, 4, 15])
def test_drafts_change_no_text_though_the_class_changes_in_it(
    window: int, plain: list[str]
) -> None:
    rig = _rig(window, suffix=SuffixProposer())
    assert _texts(rig) == plain
    assert {rows for _, rows in rig.passes} >= {3, 9}


def test_neither_do_wrong_drafts_or_neighbours(plain: list[str]) -> None:
    wrong = ScriptedProposer(LOGITS, [False] * 10_000)
    assert _texts(_rig(3, slots=3, scripted=wrong), together=True) == plain
    assert _texts(_rig(15, slots=3, suffix=SuffixProposer()), together=True) == plain


def test_texts_that_repeat_themselves_take_fewer_passes_than_in_the_first_class_alone() -> None:
    n_passes = []
    for wide in (WIDE, None):
        rig = _rig(15, wide=wide, suffix=SuffixProposer())
        rig.run(*(Request(prompt=prompt, max_tokens=150) for prompt in PROMPTS))
        n_passes.append(len(rig.passes))
    assert n_passes[0] < 0.8 * n_passes[1]


@pytest.mark.parametrize(("mode", "told"), [("exact", True), ("faithful", False)])
def test_only_exact_passes_are_taken_for_wide_ones(mode: Mode, told: bool) -> None:
    controller = Noticing(0)
    rig = Rig(
        exact=BASE,
        wide=WIDE,
        mode=mode,
        target=Rounding(),
        context_size=SIZE,
        proposers={},
        controller=controller,
    )
    rig.run(Request(prompt=PROMPTS[0], max_tokens=150))
    assert (controller.n_noticed > 0) == told

"""Greedy text in exact mode is plain decoding's, byte for byte, on real weights.

Every prompt takes another proposer and window, so that each pair of them is tried on several
prompts; benchmarks/lossless.py runs the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.lossless import PROPOSERS, WINDOWS, answers, prompts
from parlay import Parlay

pytestmark = pytest.mark.weights

COMBINATIONS = [(draft, window) for window in WINDOWS for draft in PROPOSERS]
N_PROMPTS = 24


@pytest.fixture(scope="module", params=["q4_1", "q4_0", "q8_0"])
def parlay(
    request: pytest.FixtureRequest, smollm2: Path, smollm2_as: Callable[[str], Path]
) -> Iterator[Parlay]:
    ftype: str = request.param
    target = smollm2 if ftype == "q4_1" else smollm2_as(ftype)
    drafter = smollm2_as("q8_0" if ftype == "q4_0" else "q4_0")
    with Parlay(target, draft=f"ngram,suffix,{drafter}", slots=4, context_size=1024) as made:
        yield made


@pytest.fixture(scope="module")
def plain(parlay: Parlay) -> list[str]:
    return [a.text for a in answers(parlay, prompts(N_PROMPTS), "none", 0, together=1)]


def test_the_default_file_types_are_exact_up_to_a_window_of_sixteen(parlay: Parlay) -> None:
    assert parlay.engine.mode == "exact"
    assert parlay.engine.exact.limit > 16
    assert parlay.engine.exact.concurrent


def test_alone_every_proposer_and_window_gives_the_text_of_plain_decoding(
    parlay: Parlay, plain: list[str]
) -> None:
    drafted = 0
    for i, text in enumerate(prompts(N_PROMPTS)):
        draft, window = COMBINATIONS[i % len(COMBINATIONS)]
        (answer,) = answers(parlay, [text], draft, window)
        assert answer.text == plain[i], f"{draft} with a window of {window}"
        assert answer.exact
        drafted += answer.speculation.n_drafted
    assert drafted > 500


def test_as_one_of_four_every_proposer_gives_the_text_of_plain_decoding(
    parlay: Parlay, plain: list[str]
) -> None:
    every = prompts(N_PROMPTS)
    for i in range(0, N_PROMPTS, 4):
        draft, window = COMBINATIONS[(i // 4 * 4 + 2) % len(COMBINATIONS)]
        for j, answer in enumerate(answers(parlay, every[i : i + 4], draft, window, together=4)):
            assert answer.text == plain[i + j], f"{draft} with a window of {window}"
            assert answer.exact

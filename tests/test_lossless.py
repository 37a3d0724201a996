"""Greedy text in exact mode is plain decoding's, byte for byte, on real weights.

16 short prompts of 20 tokens for each of three file types, half of them asked alone and half as one
of four. Every prompt takes another proposer and window, and others with every file type, so that
all of them are tried both ways; benchmarks/proofs/lossless.py runs every prompt with every pair of
them, and longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proofs.lossless import FREE, WINDOWS, answers, prompts
from parlay import Parlay
from parlay.engine.start import MODEL
from parlay.models import DEFAULT_DRAFTER

pytestmark = pytest.mark.weights

FTYPES = ("q4_1", "q4_0", "q8_0")
N_PROMPTS = 16
N_TOKENS = 20  # room for a whole draft of sixteen
COMBINATIONS = [(draft, window) for window in WINDOWS for draft in (*FREE, MODEL)]
HALF = N_PROMPTS // 2
# Three and the number of pairs have no common factor: neighbours differ, and none is left out. What
# is asked alone of one file type is asked as one of four of the next.
ORDERS = {
    ftype: [COMBINATIONS[3 * (i + HALF * n) % len(COMBINATIONS)] for i in range(N_PROMPTS)]
    for n, ftype in enumerate(FTYPES)
}
TEXTS = prompts(N_PROMPTS, step=1)


@pytest.fixture(scope="module", params=FTYPES)
def ftype(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def parlay(ftype: str, smollm2: Path, smollm2_as: Callable[[str], Path]) -> Iterator[Parlay]:
    target = smollm2 if ftype == "q4_1" else smollm2_as(ftype)
    # The default model with the drafter that is shipped for it, the others with each other.
    others = {"q4_0": "q8_0", "q8_0": "q4_0"}
    drafter = smollm2_as(others[ftype]) if ftype in others else DEFAULT_DRAFTER
    # A window of its own spares the prices; every request names another one.
    how: dict[str, Any] = {"slots": 4, "context_size": 1024, "mode": "exact", "window": WINDOWS[-1]}
    with Parlay(target, draft=f"suffix,{drafter}", **how) as made:
        yield made


@pytest.fixture(scope="module")
def plain(parlay: Parlay) -> list[str]:
    """Four at a time, which takes half as long; a test says that alone they are the same."""
    return [a.text for a in answers(parlay, TEXTS, "none", 0, together=4, max_tokens=N_TOKENS)]


def test_the_default_file_types_are_exact_up_to_a_window_of_sixteen(parlay: Parlay) -> None:
    assert parlay.engine.exact.limit > 16


def test_plain_decoding_says_the_same_alone_and_as_one_of_four(
    parlay: Parlay, plain: list[str]
) -> None:
    some = slice(0, N_PROMPTS, N_PROMPTS // 2)
    alone = answers(parlay, TEXTS[some], "none", 0, max_tokens=N_TOKENS)
    assert [answer.text for answer in alone] == plain[some]


def test_alone_every_proposer_and_window_gives_the_text_of_plain_decoding(
    parlay: Parlay, plain: list[str], ftype: str
) -> None:
    drafted, order = 0, ORDERS[ftype]
    for i, text in enumerate(TEXTS[:HALF]):
        draft, window = order[i]
        (answer,) = answers(parlay, [text], draft, window, max_tokens=N_TOKENS)
        assert answer.text == plain[i], f"{draft} with a window of {window}"
        assert answer.exact
        drafted += answer.speculation.n_drafted
    assert drafted > 50


def test_as_one_of_four_every_proposer_gives_the_text_of_plain_decoding(
    parlay: Parlay, plain: list[str], ftype: str
) -> None:
    drafted, order = 0, ORDERS[ftype]
    for i in range(HALF, N_PROMPTS, 4):
        # Each of the four has its own: they share the passes all the same.
        streams = [
            parlay.stream(
                TEXTS[j], temperature=0, max_tokens=N_TOKENS, draft=order[j][0], window=order[j][1]
            )
            for j in range(i, i + 4)
        ]
        for j, answer in zip(range(i, i + 4), [stream.answer for stream in streams], strict=True):
            assert answer.text == plain[j], "{} with a window of {}".format(*order[j])
            assert answer.exact
            drafted += answer.speculation.n_drafted
    assert drafted > 50

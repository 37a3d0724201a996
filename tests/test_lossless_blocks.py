"""Text with a block drafter in exact mode is plain decoding's, byte for byte, on real weights.

It reads the target's hidden states and drafts a block of eight, so no window is above seven; fewer
and shorter texts than in test_lossless.py, which asks the same of the other proposers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proofs.lossless import WAYS, answers, prompts
from parlay import Parlay
from parlay.engine.start import MODEL
from parlay.models import BLOCK_DRAFTER

pytestmark = pytest.mark.weights

BLOCK_WINDOWS = (1, 2, 4, 7)
SHORT: dict[str, Any] = {"max_tokens": 24}


@pytest.fixture(scope="module")
def block(smollm2: Path) -> Iterator[Parlay]:
    # A window of its own spares the prices; every request names another one.
    how: dict[str, Any] = {"slots": 4, "context_size": 1024, "mode": "exact"}
    how["window"] = BLOCK_WINDOWS[-1]
    with Parlay(smollm2, draft=str(BLOCK_DRAFTER), **how) as made:
        assert made.engine.exact.limit > max(BLOCK_WINDOWS)
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_block_drafter_gives_the_text_of_plain_decoding_alone_and_as_one_of_four(
    block: Parlay, way: str
) -> None:
    texts, how = prompts(4), {**SHORT, **WAYS[way]}
    plain = [a.text for a in answers(block, texts, "none", 0, together=4, **how)]
    found = [
        block.generate(text, draft=MODEL, window=window, **how)
        for text, window in zip(texts, BLOCK_WINDOWS, strict=True)
    ]
    streams = [
        block.stream(text, draft=MODEL, window=window, **how)
        for text, window in zip(texts, reversed(BLOCK_WINDOWS), strict=True)
    ]
    found += [stream.answer for stream in streams]
    assert [answer.text for answer in found] == 2 * plain
    assert all(answer.exact for answer in found)
    counts = [answer.speculation for answer in found]
    tried, right = sum(c.drafted_at[1] for c in counts), sum(c.accepted_at[1] for c in counts)
    assert tried > 60 and right > 0.3 * tried  # it drafts, and not at random

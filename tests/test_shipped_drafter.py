"""The drafter in the package: small, described, and as good as its card says it is.

Whether the text stays plain decoding's with it is asked in tests/test_lossless.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lossless import prompts
from parlay import Parlay
from parlay.llama.facts import read_facts
from parlay.models import DEFAULT_DRAFTER


def test_it_is_small_and_has_a_card() -> None:
    assert DEFAULT_DRAFTER.stat().st_size < 20_000_000
    card = DEFAULT_DRAFTER.with_name("README.md").read_text("utf-8")
    assert DEFAULT_DRAFTER.name in card and "Apache-2.0" in card
    facts = read_facts(DEFAULT_DRAFTER)
    assert (facts.architecture, facts.n_vocab, facts.file_type) == ("llama", 49152, "Q4_0")


@pytest.mark.weights
def test_auto_loads_it_and_half_of_its_first_tokens_are_right(smollm2: Path) -> None:
    tried = accepted = 0
    with Parlay(smollm2, context_size=1024) as parlay:
        assert parlay.engine.bets.proposers.keys() == {"suffix", "model"}
        for prompt in prompts(4):
            drafted = parlay.generate(prompt, max_tokens=48, draft="model", window=4)
            assert drafted.text == parlay.generate(prompt, max_tokens=48, draft="none").text
            tried += drafted.speculation.drafted_at[1]
            accepted += drafted.speculation.accepted_at[1]
    assert tried > 40
    assert accepted > 0.4 * tried

"""The drafters in the package: small, described, and as good as their cards say they are.

Whether the text stays plain decoding's with them is asked in tests/test_lossless.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.proofs.lossless import prompts
from parlay import Parlay
from parlay.llama.facts import read_facts
from parlay.models import SHIPPED_DRAFTERS

KINDS = {"default": ("llama", "README.md"), "default-block": ("dflash", "block.md")}


@pytest.mark.parametrize("name", SHIPPED_DRAFTERS)
def test_each_is_small_and_has_a_card(name: str) -> None:
    path, (architecture, card) = SHIPPED_DRAFTERS[name], KINDS[name]
    assert path.stat().st_size < 20_000_000
    text = path.with_name(card).read_text("utf-8")
    assert path.name in text and "Apache-2.0" in text and f"--draft {name}" in text
    facts = read_facts(path)
    assert (facts.architecture, facts.n_vocab, facts.file_type) == (architecture, 49152, "Q4_0")


@pytest.mark.weights
def test_auto_loads_the_draft_model_and_half_of_its_first_tokens_are_right(smollm2: Path) -> None:
    tried = accepted = 0
    with Parlay(smollm2, context_size=1024) as parlay:
        assert parlay.engine.drafts.named == ["model", "suffix"]
        for prompt in prompts(2):
            drafted = parlay.generate(prompt, temperature=0, max_tokens=48, draft="model", window=4)
            assert (
                drafted.text
                == parlay.generate(prompt, temperature=0, max_tokens=48, draft="none").text
            )
            tried += drafted.speculation.drafted_at[1]
            accepted += drafted.speculation.accepted_at[1]
    assert tried > 20
    assert accepted > 0.4 * tried

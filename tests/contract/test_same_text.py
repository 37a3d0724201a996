"""Never another word: drafts, neighbours and caches change the speed of an answer, not its text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import doors, tiny_models

rng = np.random.default_rng(7)
PROMPTS = [[int(t) for t in rng.integers(3, 250, 12 + i)] for i in range(4)]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.5, "top_k": 50}


@pytest.fixture(scope="module")
def engine(model: Path, guesser: Path) -> Iterator[doors.RealEngine]:
    with doors.engine(model, guesser, "suffix", slots=4) as found:
        yield found


def test_greedy_text_is_the_same_with_each_proposer_and_window(engine: doors.RealEngine) -> None:
    for prompt in PROMPTS:
        plain = engine.ask(prompt, draft=(), max_tokens=40)
        assert plain.n_drafted == 0 and plain.exact
        for draft in (("model",), ("suffix",), None):
            for window in (1, 3, 8):
                drafted = engine.ask(prompt, draft=draft, window=window, max_tokens=40)
                assert drafted.tokens == plain.tokens and drafted.exact, f"{draft}, {window}"


def test_sampled_text_is_that_of_its_seed_with_drafts_and_without(
    engine: doors.RealEngine,
) -> None:
    n_accepted, texts = 0, set()
    for seed in range(6):
        asked = {"seed": seed, **SAMPLED}
        plain = engine.ask(PROMPTS[0], draft=(), **asked)
        drafted = engine.ask(PROMPTS[0], draft=("model",), **asked)
        assert drafted.tokens == plain.tokens
        n_accepted += drafted.n_accepted
        texts.add(tuple(plain.tokens))
    assert n_accepted > 0 and len(texts) == 6


def test_figures_of_every_token_are_the_same_to_the_bit(engine: doors.RealEngine) -> None:
    plain = engine.ask(PROMPTS[1], draft=(), logprobs=3)
    drafted = engine.ask(PROMPTS[1], draft=("model",), logprobs=3)
    assert len(plain.logprobs) == 24 and drafted.logprobs == plain.logprobs
    assert drafted.n_accepted > 0


def test_neighbours_change_nothing(engine: doors.RealEngine) -> None:
    alone = [engine.ask(prompt, max_tokens=30).tokens for prompt in PROMPTS]
    together = engine.together(PROMPTS, max_tokens=30)
    assert [each.tokens for each in together] == alone
    assert all(each.exact for each in together)


def test_what_a_cache_holds_changes_nothing(engine: doors.RealEngine) -> None:
    """A conversation goes on where it ended, with another one's words in between."""
    first = engine.ask(PROMPTS[2], owner="one")
    longer = [*PROMPTS[2], *first.tokens, *PROMPTS[3]]
    cold = engine.ask(longer, owner="two", draft=())
    engine.ask(PROMPTS[0], owner="three")
    engine.ask([*PROMPTS[2], *first.tokens], owner="one")
    warm = engine.ask(longer, owner="one")
    assert warm.n_reused > 0 == cold.n_reused
    assert warm.tokens == cold.tokens


@pytest.mark.parametrize("family", tiny_models.WRITERS)
def test_families_of_models_keep_their_text_through_right_and_wrong_drafts(
    family: str, tiny_folder: Path
) -> None:
    path = tiny_folder / f"contract-{family}.gguf"
    tiny_models.WRITERS[family](path, ftype="q8_0")
    other = tiny_models.perturb(path, tiny_folder / f"contract-{family}-drafter.gguf", noise=0.03)
    with doors.engine(path, other, slots=2, context_size=256, window=5) as engine:
        plain = [engine.ask(prompt, draft=()).tokens for prompt in PROMPTS[:2]]
        drafted = engine.together(PROMPTS[:2])
        again = engine.ask(PROMPTS[0])
    assert [each.tokens for each in drafted] == plain
    assert again.tokens == plain[0]
    n_drafted = sum(each.n_drafted for each in drafted)
    assert 0 < sum(each.n_accepted for each in drafted) < n_drafted


@pytest.mark.quick
@given(
    script=st.lists(st.booleans(), max_size=40),
    window=st.integers(1, 6),
    prompts=st.lists(st.lists(st.integers(0, 31), min_size=1, max_size=20), min_size=1, max_size=3),
    seed=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.8]),
)
def test_whatever_is_drafted_the_text_is_the_plain_one(
    script: list[bool],
    window: int,
    prompts: list[list[int]],
    seed: int,
    temperature: float,
) -> None:
    asked = {"seed": seed, "temperature": temperature, "max_tokens": 12}
    with doors.scripted_engine(proposers={}, slots=1) as engine:
        plain = [engine.ask(prompt, **asked).tokens for prompt in prompts]
    with doors.scripted_engine(script=script, window=window, slots=2) as engine:
        drafted = [each.tokens for each in engine.together(prompts, **asked)]
    assert drafted == plain


@pytest.mark.quick
def test_every_token_says_where_it_came_from() -> None:
    """Right, right, wrong: two accepted, one in the wrong one's place; then all are right."""
    with doors.scripted_engine(script=[True, True, False], window=3) as engine:
        asked = engine.ask([1, 2, 3], max_tokens=12)
    told = asked.origins
    assert told[:2] == ["plain", "accepted"] and told[3] == "recovered"
    assert set(told) == {"plain", "accepted", "recovered", "bonus"} and len(told) == 12
    assert told.count("accepted") == asked.n_accepted

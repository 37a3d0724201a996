"""Verification: whatever is drafted, what is said is plain decoding's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.sampling import Sampling, draw
from parlay.decoding.verdict import Origin, Verdict
from parlay.decoding.verification import verify
from tests.calls import python_calls
from tests.scripted import hashed_logits

N_VOCAB = 6
TARGET = cache(hashed_logits(N_VOCAB, spread=1.2, seed=1))
DRAFTER = cache(hashed_logits(N_VOCAB, spread=1.2, seed=2))
PROMPT = (1, 2, 3)
TOKENS = st.integers(0, N_VOCAB - 1)
SAMPLINGS = st.sampled_from(
    [
        Sampling(),
        Sampling(temperature=1.0, seed=5),
        Sampling(temperature=0.8, top_k=3, seed=6),
        Sampling(temperature=0.9, top_p=0.7, min_p=0.05, typical_p=0.9, seed=7),
        Sampling(repeat_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.5),
        Sampling(temperature=0.7, repeat_penalty=1.4, penalty_last_n=2, seed=8),
        Sampling(temperature=1.0, logit_bias={2: 1.0, 4: -3.0}, seed=9),
    ]
)


def rows(history: Sequence[int], draft: Sequence[int]) -> np.ndarray:
    """What one pass of the target gives: a row after the history and after each draft token."""
    text = tuple(history)
    return np.array([TARGET((*text, *draft[:j])) for j in range(len(draft) + 1)])


def plain(history: Sequence[int], sampling: Sampling, position: int, n: int) -> list[int]:
    """Plain decoding: one row, one token."""
    text = list(history)
    for i in range(n):
        text.append(draw(TARGET(tuple(text)), sampling, text, position + i))
    return text[len(history) :]


# -- any draft ---------------------------------------------------------------------------


@given(
    tokens=st.lists(TOKENS, max_size=8),
    sampling=SAMPLINGS,
    ends=st.frozensets(TOKENS, max_size=2),
    position=st.integers(0, 50),
    history=st.lists(TOKENS, min_size=1, max_size=6),
)
def test_coupled_verification_of_any_draft_is_plain_decoding(
    tokens: list[int],
    sampling: Sampling,
    ends: frozenset[int],
    position: int,
    history: list[int],
) -> None:
    verdict = verify(
        Draft(tuple(tokens), "any"), rows(history, tokens), sampling, history, position, ends
    )
    own = plain(history, sampling, position, len(verdict.tokens))
    assert list(verdict.tokens) == own
    accepted = own[: verdict.n_accepted]
    assert accepted == tokens[: verdict.n_accepted]
    if accepted and accepted[-1] in ends:  # nothing is said after the end
        assert len(own) == verdict.n_accepted == verdict.n_drafted
    else:
        assert len(own) == verdict.n_accepted + 1
        assert verdict.n_drafted == len(tokens)
        assert verdict.n_accepted == len(tokens) or own[-1] != tokens[verdict.n_accepted]
    assert not set(accepted[:-1]) & ends


@given(sampling=SAMPLINGS, k=st.integers(0, 6), position=st.integers(0, 50))
def test_a_draft_of_the_targets_own_draws_is_accepted_whole(
    sampling: Sampling, k: int, position: int
) -> None:
    own = plain(PROMPT, sampling, position, k + 1)
    draft = Draft(tuple(own[:k]), "oracle")
    verdict = verify(draft, rows(PROMPT, own[:k]), sampling, PROMPT, position, ())
    assert verdict == Verdict(tuple(own), k, k)


# -- where a round ends -------------------------------------------------------------------------


def test_without_a_draft_there_is_one_plain_token() -> None:
    verdict = verify(NO_DRAFT, rows(PROMPT, ()), Sampling(), PROMPT, 0, ())
    assert (verdict.n_drafted, verdict.n_accepted) == (0, 0)
    assert verdict.origins == (Origin.PLAIN,)


def test_a_token_of_a_greedy_draft_is_verified_in_one_call_of_python() -> None:
    p = np.eye(N_VOCAB, dtype=np.float32)[[1] * 17]

    def calls_for(window: int) -> int:
        draft = Draft((1,) * window, "scripted")
        found, n_calls = python_calls(lambda: verify(draft, p, Sampling(), (), 0, frozenset()))
        assert found.n_accepted == window
        return n_calls

    assert calls_for(16) - calls_for(8) == 8


def test_a_wrong_first_token_is_recovered_and_the_rest_ignored() -> None:
    (own,) = plain(PROMPT, Sampling(), 0, 1)
    wrong = (own + 1) % N_VOCAB
    verdict = verify(
        Draft((wrong, own), "x"), rows(PROMPT, (wrong, own)), Sampling(), PROMPT, 0, ()
    )
    assert verdict == Verdict((own,), 2, 0)
    assert verdict.origins == (Origin.RECOVERED,)


def test_an_end_of_text_inside_a_draft_ends_the_round_and_uncounts_what_follows() -> None:
    own = plain(PROMPT, Sampling(), 0, 3)
    first = own.index(own[1])  # in case the same token came before
    draft = Draft((*own, 5, 5), "x")
    verdict = verify(draft, rows(PROMPT, draft.tokens), Sampling(), PROMPT, 0, {own[1]})
    n = first + 1
    assert verdict == Verdict(tuple(own[:n]), n, n)
    assert verdict.origins == (Origin.ACCEPTED,) * n


def test_an_end_of_text_that_the_target_rejects_ends_nothing() -> None:
    own = plain(PROMPT, Sampling(), 0, 2)
    end = next(t for t in range(N_VOCAB) if t not in own)
    draft = Draft((own[0], end), "x")
    verdict = verify(draft, rows(PROMPT, draft.tokens), Sampling(), PROMPT, 0, {end})
    assert verdict == Verdict((own[0], own[1]), 2, 1)


def test_penalties_see_the_draft_tokens_accepted_in_the_same_round() -> None:
    row = np.array([1.0, 0.9, 0, 0, 0, 0], np.float32)
    p = np.array([row, row, row])
    sampling = Sampling(presence_penalty=0.5)
    verdict = verify(Draft((0, 1), "x"), p, sampling, (5,), 0, ())
    assert verdict.tokens == (0, 1, 0)  # after 0 and 1 are both spent, 0 leads again
    assert verdict.n_accepted == 2


# -- what is emitted is the target's distribution -----------------------------------------------

N_POSITIONS = 3
SAMPLING = Sampling(temperature=0.9, top_k=5)


def distribution(text: Sequence[int]) -> dict[int, float]:
    """What the target would say, by the definition of its samplers."""
    row = TARGET(tuple(text)).astype(np.float64)
    kept = np.argsort(-row, kind="stable")[: SAMPLING.top_k]
    weights = np.exp((row[kept] - row.max()) / SAMPLING.temperature)
    return dict(zip(kept.tolist(), (weights / weights.sum()).tolist(), strict=True))


def drawn(text: Sequence[int], position: int, k: int, sampling: Sampling) -> list[int]:
    """As a draft model drafts: from its own logits, with the noise of the target."""
    tokens = list(text)
    for j in range(k):
        tokens.append(draw(DRAFTER(tuple(tokens)), sampling, tokens, position + j))
    return tokens[len(text) :]


def looked_up(text: Sequence[int], position: int, k: int, sampling: Sampling) -> list[int]:
    """As a lookup drafts: no chance involved."""
    tokens = list(text)
    for _ in range(k):
        tokens.append(int(DRAFTER(tuple(tokens)).argmax()))
    return tokens[len(text) :]


def answer(make: Callable[..., list[int]], window: int, sampling: Sampling) -> tuple[int, ...]:
    """Several rounds, until enough tokens are there."""
    text: tuple[int, ...] = PROMPT
    while (position := len(text) - len(PROMPT)) < N_POSITIONS:
        tokens = make(text, position, window, sampling)
        draft = Draft(tuple(tokens), "any")
        text += verify(draft, rows(text, tokens), sampling, text, position, ()).tokens
    return text[len(PROMPT) : len(PROMPT) + N_POSITIONS]


@cache
def target_joint() -> dict[tuple[int, ...], float]:
    """The probability of every answer of three tokens, by the chain rule."""
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(N_POSITIONS):
        joint = {
            (*said, token): p * q
            for said, p in joint.items()
            for token, q in distribution((*PROMPT, *said)).items()
        }
    return joint


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("make", [drawn, looked_up], ids=lambda make: make.__name__)
def test_what_is_emitted_has_the_targets_distribution_at_every_position(
    make: Callable[..., list[int]], window: int
) -> None:
    n = 2000
    answers = [answer(make, window, replace(SAMPLING, seed=seed)) for seed in range(n)]
    joint = target_joint()
    for position in range(N_POSITIONS):
        marginal: Counter[int] = Counter()
        for tokens, p in joint.items():
            marginal[tokens[position]] += p  # type: ignore[assignment]
        assert fits(Counter(a[position] for a in answers), marginal, n)
    assert fits(Counter(answers), joint, n)  # and the positions depend on each other as they should


def fits(seen: Counter, expected: dict, n: int) -> bool:  # type: ignore[type-arg]
    """Chi-squared; what is expected fewer than five times shares one bin."""
    assert all(expected[key] > 0 for key in seen)
    common = [key for key in expected if expected[key] * n >= 5]
    counts = [seen[key] for key in common]
    wanted = [expected[key] * n for key in common]
    counts, wanted = [*counts, n - sum(counts)], [*wanted, n - sum(wanted)]
    kept = [i for i, w in enumerate(wanted) if w > 0.5]
    scale = sum(counts[i] for i in kept) / sum(wanted[i] for i in kept)
    return bool(
        stats.chisquare([counts[i] for i in kept], [wanted[i] * scale for i in kept]).pvalue > 1e-4
    )


def test_the_chi_squared_proof_notices_a_wrong_distribution() -> None:
    n = 2500
    skewed = Counter({0: int(n * 0.46), 1: int(n * 0.54)})
    assert not fits(skewed, {0: 0.5, 1: 0.5}, n)


def test_a_certain_draft_is_accepted_as_often_as_the_target_says_it() -> None:
    guess, accepted, n = int(DRAFTER(PROMPT).argmax()), 0, 3000
    for seed in range(n):
        p = rows(PROMPT, (guess,))
        draft = Draft((guess,), "certain")
        accepted += verify(draft, p, replace(SAMPLING, seed=seed), PROMPT, 0, ()).n_accepted
    assert accepted / n == pytest.approx(distribution(PROMPT).get(guess, 0.0), abs=0.04)

"""Verification: coupled drawing is plain decoding, rejection sampling keeps the distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from parlay.decoding.draft import NO_DRAFT, Distribution, Draft
from parlay.decoding.sampling import Row, Sampling, distribution, draw
from parlay.decoding.verdict import Origin, Verdict
from parlay.decoding.verification import (
    DRAFT_STREAM,
    VERIFICATIONS,
    coupled,
    draw_from,
    rejection,
    residual,
)
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


# -- coupled drawing ---------------------------------------------------------------------------


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
    verdict = coupled(
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
    verdict = coupled(draft, rows(PROMPT, own[:k]), sampling, PROMPT, position, ())
    assert verdict == Verdict(tuple(own), k, k)


# -- what both ways share ----------------------------------------------------------------------


@pytest.fixture(params=sorted(VERIFICATIONS))
def verify(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    return VERIFICATIONS[str(request.param)]


@given(tokens=st.lists(TOKENS, max_size=6), position=st.integers(0, 9))
def test_greedy_rejection_sampling_is_greedy_decoding(tokens: list[int], position: int) -> None:
    arguments = rows(PROMPT, tokens), Sampling(), PROMPT, position, frozenset({0})
    draft = Draft(tuple(tokens), "any")
    assert rejection(draft, *arguments) == coupled(draft, *arguments)


def test_without_a_draft_there_is_one_plain_token(verify: Callable[..., Verdict]) -> None:
    verdict = verify(NO_DRAFT, rows(PROMPT, ()), Sampling(), PROMPT, 0, ())
    assert (verdict.n_drafted, verdict.n_accepted) == (0, 0)
    assert verdict.origins == (Origin.PLAIN,)


def test_a_token_of_a_greedy_draft_is_verified_in_one_call_of_python() -> None:
    p = np.eye(N_VOCAB, dtype=np.float32)[[1] * 17]

    def calls_for(window: int) -> int:
        draft = Draft((1,) * window, "scripted")
        found, n_calls = python_calls(lambda: coupled(draft, p, Sampling(), (), 0, frozenset()))
        assert found.n_accepted == window
        return n_calls

    assert calls_for(16) - calls_for(8) == 8


def test_a_wrong_first_token_is_recovered_and_the_rest_ignored(
    verify: Callable[..., Verdict],
) -> None:
    (own,) = plain(PROMPT, Sampling(), 0, 1)
    wrong = (own + 1) % N_VOCAB
    verdict = verify(
        Draft((wrong, own), "x"), rows(PROMPT, (wrong, own)), Sampling(), PROMPT, 0, ()
    )
    assert verdict == Verdict((own,), 2, 0)
    assert verdict.origins == (Origin.RECOVERED,)


def test_an_end_of_text_inside_a_draft_ends_the_round_and_uncounts_what_follows(
    verify: Callable[..., Verdict],
) -> None:
    own = plain(PROMPT, Sampling(), 0, 3)
    first = own.index(own[1])  # in case the same token came before
    draft = Draft((*own, 5, 5), "x")
    verdict = verify(draft, rows(PROMPT, draft.tokens), Sampling(), PROMPT, 0, {own[1]})
    n = first + 1
    assert verdict == Verdict(tuple(own[:n]), n, n)
    assert verdict.origins == (Origin.ACCEPTED,) * n


def test_an_end_of_text_that_the_target_rejects_ends_nothing(
    verify: Callable[..., Verdict],
) -> None:
    own = plain(PROMPT, Sampling(), 0, 2)
    end = next(t for t in range(N_VOCAB) if t not in own)
    draft = Draft((own[0], end), "x")
    verdict = verify(draft, rows(PROMPT, draft.tokens), Sampling(), PROMPT, 0, {end})
    assert verdict == Verdict((own[0], own[1]), 2, 1)


def test_penalties_see_the_draft_tokens_accepted_in_the_same_round(
    verify: Callable[..., Verdict],
) -> None:
    row = np.array([1.0, 0.9, 0, 0, 0, 0], np.float32)
    p = np.array([row, row, row])
    sampling = Sampling(presence_penalty=0.5)
    verdict = verify(Draft((0, 1), "x"), p, sampling, (5,), 0, ())
    assert verdict.tokens == (0, 1, 0)  # after 0 and 1 are both spent, 0 leads again
    assert verdict.n_accepted == 2


# -- rejection sampling: the distribution is the target's --------------------------------------

N_POSITIONS = 3
SAMPLING = Sampling(temperature=0.9, top_k=5)


def stochastic(history: tuple[int, ...], position: int, k: int, sampling: Sampling) -> Draft:
    """As the draft model drafts: drawn from its own distribution, with its own noise."""
    tokens: list[int] = []
    q: list[Distribution] = []
    for j in range(k):
        q.append(distribution(DRAFTER((*history, *tokens)), sampling, ()))
        tokens.append(draw_from(q[-1], sampling.seed, position + j, DRAFT_STREAM))
    return Draft(tuple(tokens), "stochastic", q=tuple(q))


def deterministic(history: tuple[int, ...], position: int, k: int, sampling: Sampling) -> Draft:
    """As a lookup drafts: no chance involved."""
    tokens: list[int] = []
    for _ in range(k):
        tokens.append(int(DRAFTER((*history, *tokens)).argmax()))
    return Draft(tuple(tokens), "deterministic")


def answer(make: Callable[..., Draft], window: int, sampling: Sampling) -> tuple[int, ...]:
    """Several rounds, until enough tokens are there."""
    text: tuple[int, ...] = PROMPT
    while (position := len(text) - len(PROMPT)) < N_POSITIONS:
        draft = make(text, position, window, sampling)
        verdict = rejection(draft, rows(text, draft.tokens), sampling, text, position, ())
        text = (*text, *verdict.tokens)
    return text[len(PROMPT) : len(PROMPT) + N_POSITIONS]


@cache
def target_joint() -> dict[tuple[int, ...], float]:
    """The probability of every answer of three tokens, by the chain rule."""

    def p(token: int, text: tuple[int, ...]) -> float:
        return distribution(TARGET(text), SAMPLING, ()).of(token)

    return {
        (a, b, c): p(a, PROMPT) * p(b, (*PROMPT, a)) * p(c, (*PROMPT, a, b))
        for a, b, c in product(range(N_VOCAB), repeat=3)
    }


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("make", [stochastic, deterministic], ids=lambda make: make.__name__)
def test_rejection_sampling_emits_the_targets_distribution_at_every_position(
    make: Callable[..., Draft], window: int
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
    greedy_residual = Counter({0: int(n * 0.46), 1: int(n * 0.54)})
    assert not fits(greedy_residual, {0: 0.5, 1: 0.5}, n)


def overlap(p: Distribution, q: Distribution) -> float:
    return sum(min(p.of(token), q.of(token)) for token in range(N_VOCAB))


def accepted_share(make: Callable[..., Draft], n: int = 3000) -> float:
    accepted = 0
    for seed in range(n):
        sampling = replace(SAMPLING, seed=seed)
        draft = make(PROMPT, 0, 1, sampling)
        p = rows(PROMPT, draft.tokens)
        accepted += rejection(draft, p, sampling, PROMPT, 0, ()).n_accepted
    return accepted / n


def test_a_drawn_draft_is_accepted_as_often_as_the_two_distributions_overlap() -> None:
    p = distribution(TARGET(PROMPT), SAMPLING, ())
    q = distribution(DRAFTER(PROMPT), SAMPLING, ())
    assert accepted_share(stochastic) == pytest.approx(overlap(p, q), abs=0.04)


def test_a_certain_draft_is_accepted_as_often_as_the_target_says_it() -> None:
    guess = int(DRAFTER(PROMPT).argmax())
    p = distribution(TARGET(PROMPT), SAMPLING, ()).of(guess)
    assert accepted_share(deterministic) == pytest.approx(p, abs=0.04)


PROBABILITIES = (
    st.lists(st.integers(0, 9), min_size=N_VOCAB, max_size=N_VOCAB)
    .filter(any)
    .map(
        lambda weights: Distribution(
            np.flatnonzero(weights),
            np.array([w for w in weights if w]) / sum(weights),
        )
    )
)


@settings(max_examples=200)
@given(p=PROBABILITIES, q=PROBABILITIES)
def test_the_residual_is_the_positive_part_of_p_minus_q(p: Distribution, q: Distribution) -> None:
    left = {t: max(0.0, p.of(t) - q.of(t)) for t in range(N_VOCAB)}
    total = sum(left.values())
    found = residual(p, q)
    assert found.probs.sum() == pytest.approx(1)
    if total > 1e-9:
        for token in range(N_VOCAB):
            assert found.of(token) == pytest.approx(left[token] / total, abs=1e-9)
    else:
        assert found is p or total > 0


@given(p=PROBABILITIES, seed=st.integers(0, 99))
def test_drawing_from_a_distribution_never_gives_what_it_does_not_hold(
    p: Distribution, seed: int
) -> None:
    assert p.of(draw_from(p, seed, 3, DRAFT_STREAM)) > 0


@given(
    tokens=st.lists(TOKENS, max_size=6),
    sampling=SAMPLINGS,
    ends=st.frozensets(TOKENS, max_size=2),
    position=st.integers(0, 50),
)
def test_rejection_sampling_is_a_function_of_its_arguments_and_says_only_what_p_allows(
    tokens: list[int], sampling: Sampling, ends: frozenset[int], position: int
) -> None:
    p = rows(PROMPT, tokens)
    draft = Draft(tuple(tokens), "any")
    verdict = rejection(draft, p, sampling, PROMPT, position, ends)
    assert rejection(draft, p.copy(), sampling, list(PROMPT), position, ends) == verdict
    for j, token in enumerate(verdict.tokens):
        history = (*PROMPT, *verdict.tokens[:j])
        row: Row = p[j]
        assert distribution(row, sampling, history).of(token) > 0
    assert verdict.tokens[: verdict.n_accepted] == draft.tokens[: verdict.n_accepted]

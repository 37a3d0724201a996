"""Samplers against references written from their definitions, and draws against probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from parlay.decoding import sampling as sampling_module
from parlay.decoding.noise import gumbel
from parlay.decoding.sampling import Row, Sampling, candidates, draw
from parlay.errors import BadRequest, DecodeError, NothingFollows

N_VOCAB = 24
# Random by seed: nothing lies within rounding of an edge (the references sum in another order).
ROWS = st.builds(
    lambda seed, spread: (np.random.default_rng(seed).standard_normal(N_VOCAB) * spread).astype(
        np.float32
    ),
    seed=st.integers(0, 1 << 32),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
)
# Few different values: ties everywhere.
TIED_ROWS = st.lists(st.integers(-2, 2), min_size=N_VOCAB, max_size=N_VOCAB).map(
    lambda values: np.array(values, np.float32)
)
HISTORIES = st.lists(st.integers(0, N_VOCAB - 1), max_size=40)


def support(row: Row, sampling: Sampling, history: Sequence[int] = ()) -> list[int]:
    return list(probabilities(row, sampling, history))


def probabilities(row: Row, sampling: Sampling, history: Sequence[int] = ()) -> dict[int, float]:
    """What is drawn from: the likeliest alone where nothing is left to chance."""
    if sampling.greedy:
        return {draw(row, sampling, history, 0): 1.0}
    ids, scores = candidates(row, sampling, history)
    return softmax(dict(zip(ids.tolist(), scores.tolist(), strict=True)))


# -- the references: dictionaries from token to logit, one plain loop for each definition --------


def softmax(logits: dict[int, float]) -> dict[int, float]:
    top = max(logits.values())
    weights = {token: math.exp(logit - top) for token, logit in logits.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def reference_bias(logits: dict[int, float], bias: dict[int, float]) -> dict[int, float]:
    return {token: logit + bias.get(token, 0.0) for token, logit in logits.items()}


def reference_penalties(
    logits: dict[int, float], sampling: Sampling, history: Sequence[int]
) -> dict[int, float]:
    """llama.cpp's: only tokens seen lately; the rest as it is."""
    n = sampling.penalty_last_n
    seen = Counter(history[len(history) - n :] if n < len(history) else history)
    penalised = dict(logits)
    for token, count in seen.items():
        if penalised[token] <= 0:
            penalised[token] *= sampling.repeat_penalty
        else:
            penalised[token] /= sampling.repeat_penalty
        penalised[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return penalised


def by_rank(scores: dict[int, float]) -> list[int]:
    """Largest first; of equal ones the smaller id."""
    return sorted(scores, key=lambda token: (-scores[token], token))


def reference_top_k(logits: dict[int, float], k: int) -> dict[int, float]:
    return {token: logits[token] for token in (by_rank(logits)[:k] if k else logits)}


def shortest(tokens: Sequence[int], p_of: dict[int, float], p: float) -> list[int]:
    """The shortest start of `tokens` whose mass reaches p; at least one token."""
    mass, kept = 0.0, []
    for token in tokens:
        kept.append(token)
        mass += p_of[token]
        if mass >= p:
            break
    return kept


def reference_typical_p(logits: dict[int, float], p: float) -> dict[int, float]:
    p_of = softmax(logits)
    surprise = {token: -math.log(p_of[token]) for token in logits}
    entropy = math.fsum(p_of[token] * surprise[token] for token in logits)
    oddness = {token: abs(surprise[token] - entropy) for token in logits}
    order = sorted(oddness, key=lambda token: oddness[token])
    return {token: logits[token] for token in shortest(order, p_of, p)}


def reference_top_p(logits: dict[int, float], p: float) -> dict[int, float]:
    p_of = softmax(logits)
    return {token: logits[token] for token in shortest(by_rank(logits), p_of, p)}


def reference_min_p(logits: dict[int, float], min_p: float) -> dict[int, float]:
    p_of = softmax(logits)
    edge = min_p * max(p_of.values())
    return {token: logits[token] for token in logits if p_of[token] >= edge}


def reference(row: Row, sampling: Sampling, history: Sequence[int]) -> dict[int, float]:
    """All of them, in llama.cpp's order."""
    logits = {token: float(logit) for token, logit in enumerate(row)}
    logits = reference_bias(logits, dict(sampling.logit_bias))
    logits = reference_penalties(logits, sampling, history)
    logits = reference_top_k(logits, sampling.top_k)
    if sampling.typical_p < 1:
        logits = reference_typical_p(logits, sampling.typical_p)
    if sampling.top_p < 1:
        logits = reference_top_p(logits, sampling.top_p)
    if sampling.min_p > 0:
        logits = reference_min_p(logits, sampling.min_p)
    return softmax({token: logit / sampling.temperature for token, logit in logits.items()})


# -- each sampler ------------------------------------------------------------------------------


Reference = Callable[[dict[int, float], Any], dict[int, float]]
SAMPLERS: dict[str, tuple[Reference, st.SearchStrategy[Row], st.SearchStrategy[Any]]] = {
    # the k best; ties are cut by id
    "top_k": (reference_top_k, TIED_ROWS, st.integers(0, N_VOCAB + 3)),
    # the smallest set that reaches p
    "top_p": (reference_top_p, ROWS, st.floats(0, 1, exclude_max=True)),
    # what is likely enough beside the best
    "min_p": (reference_min_p, ROWS, st.floats(0.001, 1)),
    # the least surprising surprises
    "typical_p": (reference_typical_p, ROWS, st.floats(0, 1, exclude_max=True)),
}


@pytest.mark.parametrize("name", SAMPLERS)
@given(data=st.data())
def test_each_sampler_keeps_what_its_definition_says(name: str, data: st.DataObject) -> None:
    expected, rows, values = SAMPLERS[name]
    row, value = data.draw(rows), data.draw(values)
    kept = expected({i: float(x) for i, x in enumerate(row)}, value)
    assert support(row, Sampling(temperature=1, **{name: value})) == sorted(kept)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-12}, {"min_p": 1.0}, {"typical_p": 0.0}]
)
@given(row=ROWS)
def test_every_filter_keeps_at_least_one_token(options: dict[str, Any], row: Row) -> None:
    assert len(support(row, Sampling(temperature=1, **options))) >= 1


@given(
    row=ROWS,
    history=HISTORIES,
    repeat=st.floats(0.5, 2),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    last_n=st.integers(0, 64),
)
def test_penalties_follow_llama_cpps_definition(
    row: Row, history: list[int], repeat: float, presence: float, frequency: float, last_n: int
) -> None:
    sampling = Sampling(1.0, 0, 1.0, 0.0, 1.0, repeat, presence, frequency, last_n)
    expected = reference(row, sampling, history)
    assert probabilities(row, sampling, history) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_penalties_reach_back_exactly_as_far_as_they_are_told() -> None:
    row = np.zeros(4, np.float32)
    history = [0, 1, 1, 2]
    sampling = Sampling(temperature=1, frequency_penalty=1.0, penalty_last_n=3)
    found = probabilities(row, sampling, history)
    assert found[0] == found[3]  # token 0 lies too far back
    assert found[1] == pytest.approx(found[0] * math.exp(-2))
    assert found[2] == pytest.approx(found[0] * math.exp(-1))


def test_penalties_skip_tokens_that_a_smaller_vocabulary_does_not_have() -> None:
    row = np.array([1, 2, 3], np.float32)
    assert draw(row, Sampling(presence_penalty=5.0), [2, 700], 0) == 1


def test_logit_bias_moves_single_tokens_and_minus_infinity_forbids_one() -> None:
    row = np.array([3, 2, 1, 0], np.float32)
    assert draw(row, Sampling(logit_bias={3: 100.0}), (), 0) == 3
    assert draw(row, Sampling(logit_bias={0: -math.inf}), (), 0) == 1
    forbidden = Sampling(temperature=1, logit_bias={0: -math.inf})
    assert support(row, forbidden) == [1, 2, 3]


@given(
    row=ROWS | TIED_ROWS,
    bias=st.dictionaries(
        st.integers(0, N_VOCAB - 1), st.sampled_from([-math.inf, -2.0, 0.0, 2.0]), max_size=4
    ),
)
def test_greedy_with_biases_takes_the_first_of_the_largest_sums(
    row: Row, bias: dict[int, float]
) -> None:
    sums = reference_bias(dict(enumerate(row.tolist())), bias)
    assert draw(row, Sampling(logit_bias=bias), (), 0) == max(sums, key=sums.__getitem__)


def test_greedy_copies_no_row_for_a_bias_that_could_not_change_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sampling_module, "adjusted")
    row = np.array([3, 2, 1, 0], np.float32)
    assert draw(row, Sampling(logit_bias={1: -100.0, 2: -math.inf}), (), 0) == 0


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(logit_bias={1: -2.0}),
        Sampling(repeat_penalty=1.2),
        Sampling(temperature=1),
        Sampling(temperature=1, top_k=2),
        Sampling(typical_p=0.5),
    ],
)
def test_a_row_without_candidates_gives_no_token_but_says_so(sampling: Sampling) -> None:
    with pytest.raises(NothingFollows, match="no token may come next"):
        draw(np.full(4, -np.inf, np.float32), sampling, (1,), 0)
    with pytest.raises(DecodeError, match="no numbers"):
        draw(np.full(4, np.nan, np.float32), sampling, (1,), 0)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-12])
def test_however_cold_the_likeliest_token_is_drawn(temperature: float) -> None:
    row = np.array([-30, -20, -25, -1e30], np.float32)
    assert draw(row, Sampling(temperature=temperature), (), 0) == 1
    assert draw(row, Sampling(temperature=temperature, top_p=0.9), (), 0) == 1


@given(
    row=ROWS,
    history=HISTORIES,
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, N_VOCAB),
    typical_p=st.floats(0.3, 1),
    top_p=st.floats(0.3, 1),
    min_p=st.floats(0, 0.5),
    bias=st.dictionaries(st.integers(0, N_VOCAB - 1), st.floats(-5, 5), max_size=3),
)
def test_all_samplers_together_act_in_llama_cpps_order(
    row: Row,
    history: list[int],
    temperature: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
    bias: dict[int, float],
) -> None:
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repeat_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.1,
        logit_bias=bias,
    )
    expected = reference(row, sampling, history)
    assert probabilities(row, sampling, history) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_filters_look_at_the_distribution_before_the_temperature() -> None:
    # p = 0.6, 0.3, 0.1: at temperature 5 the first would need company to reach 0.5.
    row = np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    assert support(row, Sampling(temperature=5.0, top_p=0.5)) == [0]


def test_each_filter_renormalises_what_the_one_before_it_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    # Of the two that top_k leaves the first has 0.57: alone it is enough.
    assert support(row, Sampling(temperature=1, top_k=2, top_p=0.5)) == [0]
    assert support(row, Sampling(temperature=1, top_p=0.5)) == [0, 1]


def test_min_p_measures_against_the_best_that_is_left() -> None:
    row = np.log(np.array([0.9, 0.06, 0.04])).astype(np.float32)
    kept = support(row, Sampling(temperature=1, min_p=0.5, logit_bias={0: -math.inf}))
    assert kept == [1, 2]


# -- drawing -----------------------------------------------------------------------------------


@given(row=ROWS, history=HISTORIES, position=st.integers(0, 1000))
def test_greedy_drawing_takes_the_largest_adjusted_logit(
    row: Row, history: list[int], position: int
) -> None:
    assert draw(row, Sampling(), history, position) == int(row.argmax())
    sampling = Sampling(repeat_penalty=1.5, presence_penalty=1.0, logit_bias={3: 2.0})
    logits = reference_bias({i: float(x) for i, x in enumerate(row)}, {3: 2.0})
    adjusted = reference_penalties(logits, sampling, history)
    best = max(adjusted.values())
    assert adjusted[draw(row, sampling, history, position)] == pytest.approx(best)


def test_typical_p_is_not_dropped_at_temperature_zero() -> None:
    # The likeliest token is untypically likely here: llama.cpp drops it, greedy or not.
    row = np.log(np.array([0.4, 0.2, 0.2, 0.2])).astype(np.float32)
    typical = Sampling(typical_p=0.5)
    assert draw(row, typical, (), 0) != 0
    assert draw(row, typical, (), 0) in support(row, replace(typical, temperature=1.0))


@given(row=ROWS, history=HISTORIES, seed=st.integers(0, 99), position=st.integers(0, 99))
def test_a_draw_is_a_function_of_row_history_seed_and_position(
    row: Row, history: list[int], seed: int, position: int
) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.9, repeat_penalty=1.1, seed=seed)
    before = row.copy()
    first = draw(row, sampling, history, position)
    assert draw(row.copy(), sampling, tuple(history), position) == first
    assert first in support(row, sampling, history)
    np.testing.assert_array_equal(row, before)  # the row is a view of llama.cpp's own memory


SAMPLINGS = {
    "temperature 1": Sampling(temperature=1.0),
    "temperature 0.7": Sampling(temperature=0.7),
    "temperature 1.6": Sampling(temperature=1.6),
    "top_k 5": Sampling(temperature=1.0, top_k=5),
    "top_p 0.8": Sampling(temperature=0.9, top_p=0.8),
    "min_p 0.1": Sampling(temperature=1.2, min_p=0.1),
    "typical_p 0.7": Sampling(temperature=1.0, typical_p=0.7),
    "penalties": Sampling(temperature=1.0, repeat_penalty=1.3, frequency_penalty=0.4),
    "bias": Sampling(temperature=1.0, logit_bias={2: 1.5, 4: -2.0}),
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_draws_follow_the_softmax_of_what_the_filters_left(name: str, axis: str) -> None:
    row = (np.random.default_rng(4).standard_normal(16) * 1.5).astype(np.float32)
    history = [1, 1, 3, 5]
    n = 3000
    sampling = SAMPLINGS[name]
    if axis == "seeds":
        drawn = [draw(row, replace(sampling, seed=seed), history, 7) for seed in range(n)]
    else:
        drawn = [draw(row, sampling, history, position) for position in range(n)]
    expected = reference(row, sampling, history)
    assert chi_squared(drawn, expected) > 1e-4


def chi_squared(drawn: Sequence[int], expected: dict[int, float]) -> float:
    """The p-value; rare tokens share one bin."""
    counts = Counter(drawn)
    assert set(counts) <= set(expected)
    common = [token for token, p in expected.items() if p * len(drawn) >= 5]
    seen = [counts[token] for token in common]
    wanted = [expected[token] * len(drawn) for token in common]
    rest = len(drawn) - sum(seen)
    if len(drawn) - sum(wanted) > 1:
        seen, wanted = [*seen, rest], [*wanted, len(drawn) - sum(wanted)]
    scaled = np.array(wanted) * sum(seen) / sum(wanted)
    return float(stats.chisquare(seen, scaled).pvalue)


def test_far_tokens_are_left_out_of_the_draw_without_changing_it() -> None:
    """Noise is computed only for candidates that could win; the others must not matter."""
    row = np.concatenate([np.zeros(4), np.full(60, -45.0)]).astype(np.float32)
    short = row[:4]
    for seed in range(200):
        sampling = Sampling(temperature=1.0, seed=seed)
        assert draw(row, sampling, (), 3) == draw(short, sampling, (), 3)


@pytest.mark.parametrize("spread", [0.0, 2.0, 6.0])
def test_a_draw_is_the_most_of_score_and_noise_over_all_tokens(spread: float) -> None:
    """Whichever of them had their noise computed."""
    ids, from_far = np.arange(20_000), 0
    row = np.random.default_rng(1).normal(0, spread, len(ids)).astype(np.float32)
    row[::7] = -np.inf
    for seed in range(60):
        drawn = draw(row, Sampling(temperature=0.8, seed=seed), (), 3)
        scores = row.astype(np.float64) / 0.8
        assert drawn == int((scores + gumbel(seed, 3, ids)).argmax())
        from_far += scores[drawn] < scores.max() - 8
    assert spread != 2.0 or from_far  # such tokens do win


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"min_p": 2.0},
        {"typical_p": -1.0},
        {"repeat_penalty": 0.0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": 1e9},
        {"penalty_last_n": -1},
        {"seed": -1},
        {"seed": 1 << 64},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
    ],
)
def test_values_without_a_meaning_are_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(BadRequest, match=name) as caught:
        Sampling(**bad)
    assert "\n" not in caught.value.message


@settings(max_examples=50)
@given(row=ROWS)
def test_the_default_sampling_is_greedy_and_leaves_the_logits_alone(row: Row) -> None:
    assert Sampling().greedy
    assert Sampling().untouched
    assert probabilities(row, Sampling()) == {int(row.argmax()): 1.0}

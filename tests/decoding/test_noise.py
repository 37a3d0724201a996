"""Noise: the same key gives the same number, other keys give unrelated ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parlay.decoding import noise
from parlay.decoding.noise import exceeds, gumbel, key

SEEDS = st.integers(0, (1 << 64) - 1)
POSITIONS = st.integers(0, 1 << 20)
# Below this a test that is right by chance one time in a thousand million would fail.
SIGNIFICANT = 1e-6


@given(seed=SEEDS, position=POSITIONS, ids=st.lists(st.integers(0, 300_000), min_size=1))
def test_a_tokens_noise_depends_on_its_key_alone(seed: int, position: int, ids: list[int]) -> None:
    together = gumbel(seed, position, np.array(ids))
    alone = [gumbel(seed, position, np.array([token]))[0] for token in ids]
    assert together.tolist() == alone
    assert gumbel(seed, position, np.array(ids)).tolist() == together.tolist()


def test_the_numbers_are_the_same_in_every_process_and_version() -> None:
    # A seed promises a text: these change only with a note in the changelog.
    assert key(1, 2) == 0xC02FFF4677FD77B9
    assert gumbel(7, 3, np.array([0, 1, 49151])).tolist() == pytest.approx(
        [2.75385, 1.64762, -0.03755], abs=1e-5
    )


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_gumbel_numbers_are_gumbel_along_every_part_of_the_key(axis: str) -> None:
    one = np.array([42])
    if axis == "tokens":
        numbers = gumbel(3, 9, np.arange(50_000))
    elif axis == "positions":
        numbers = np.concatenate([gumbel(3, position, one) for position in range(20_000)])
    else:
        numbers = np.concatenate([gumbel(seed, 9, one) for seed in range(20_000)])
    assert stats.kstest(numbers, "gumbel_r").pvalue > SIGNIFICANT


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"seed": 7 + (1 << 40)},
        {"position": 4},
    ],
)
def test_neighbouring_keys_give_unrelated_noise(other: dict[str, int]) -> None:
    ids = np.arange(20_000)
    here = {"seed": 7, "position": 3}
    mine = gumbel(ids=ids, **here)
    theirs = gumbel(ids=ids, **(here | other))
    assert stats.spearmanr(mine, theirs).pvalue > SIGNIFICANT
    # Nor is it the same noise moved along by a few tokens.
    assert not set(mine) & set(theirs)


def test_consecutive_positions_are_independent() -> None:
    numbers = np.concatenate([gumbel(11, position, np.array([0])) for position in range(20_000)])
    numbers = np.exp(-np.exp(-numbers))  # uniform, as what they were made of
    pairs, _, _ = np.histogram2d(numbers[:-1], numbers[1:], bins=10, range=[[0, 1], [0, 1]])
    assert stats.chisquare(pairs.ravel()).pvalue > SIGNIFICANT


@pytest.mark.parametrize("bits", [0, (1 << 64) - 1])
def test_even_the_extreme_bits_give_finite_noise(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "_scramble", lambda x: bits)
    monkeypatch.setattr(noise, "_scramble_array", lambda x: np.full_like(x, bits))
    assert np.isfinite(gumbel(1, 2, np.array([0]))).all()


@pytest.mark.parametrize("least", [-3.0, 0.0, 2.5, 8.0, 20.0, 36.0, 60.0])
def test_who_has_so_much_noise_is_known_from_the_bits_alone(least: float) -> None:
    ids = np.arange(50_000)
    told, own = exceeds(5, 9, ids, least), gumbel(5, 9, ids) >= least
    assert not (own & ~told).any()  # nobody is forgotten
    assert (told & ~own).sum() <= 10  # and hardly anybody asked for nothing


def test_the_most_noise_there_can_be_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_scramble_array", lambda x: np.full_like(x, (1 << 64) - 1))
    most = float(gumbel(1, 2, np.array([0]))[0])
    assert exceeds(1, 2, np.array([0]), most).all()

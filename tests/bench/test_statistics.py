"""Statistics against simulations whose truth is known: intervals cover, nothing is made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parlay.bench import statistics
from parlay.bench.statistics import estimate, log_ratio, verdict

N_SIMULATIONS = 400


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for the tails of a simulation, and fast."""
    monkeypatch.setattr(statistics, "N_RESAMPLES", 200)


def simulate(
    rng: np.random.Generator,
    n_prompts: int,
    mean: float,
    between: float,
    within: float,
    heavy: bool = False,
) -> dict[str, list[float]]:
    """Log-ratios of five pairs a prompt; prompts differ, repeats are noisy."""
    centres = mean + between * rng.standard_normal(n_prompts)
    shape = (n_prompts, 5)
    noise = rng.standard_t(3, shape) / math.sqrt(3) if heavy else rng.standard_normal(shape)
    rows = centres[:, None] + within * noise
    return {str(i): list(row) for i, row in enumerate(rows)}


@pytest.mark.parametrize(
    ("n_prompts", "between", "within", "heavy", "n_runs"),
    [
        (12, 0.2, 0.05, False, N_SIMULATIONS),
        (12, 0.05, 0.05, True, N_SIMULATIONS),
        (12, 0.0, 0.1, False, N_SIMULATIONS),
        (60, 0.2, 0.1, False, N_SIMULATIONS // 4),
        (6, 0.1, 0.05, False, N_SIMULATIONS),
    ],
)
def test_95_percent_interval_covers_the_truth_in_92_to_98_percent(
    n_prompts: int, between: float, within: float, heavy: bool, n_runs: int
) -> None:
    rng = np.random.default_rng(7)
    truth = 1.3
    covered = 0
    for seed in range(n_runs):
        ratios = simulate(rng, n_prompts, math.log(truth), between, within, heavy)
        found = estimate(ratios, seed)
        assert found is not None
        assert found.scope == "tasks"
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / n_runs <= 0.98


def test_few_prompts_are_covered_for_themselves() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for seed in range(N_SIMULATIONS):
        centres = 0.2 * rng.standard_normal(3)
        rows = centres[:, None] + 0.05 * rng.standard_normal((3, 5))
        found = estimate({str(i): list(row) for i, row in enumerate(rows)}, seed)
        assert found is not None
        assert found.scope == "prompts"
        covered += found.low <= math.exp(centres.mean()) <= found.high
    assert 0.92 <= covered / N_SIMULATIONS <= 0.985


@pytest.mark.parametrize(("within", "n"), [(0.02, 200), (0.3, 1200)])
def test_identical_subjects_are_called_faster_in_under_3_percent(within: float, n: int) -> None:
    rng = np.random.default_rng(20)
    faster = slower = 0
    for seed in range(n):
        found = estimate(simulate(rng, 12, 0.0, 0.0, within, heavy=True), seed)
        assert found is not None
        faster += found.verdict == "faster"
        slower += found.verdict == "slower"
    assert faster / n < 0.03
    assert slower / n < 0.03


def test_a_real_gain_of_ten_percent_is_found() -> None:
    rng = np.random.default_rng(5)
    found = [estimate(simulate(rng, 12, math.log(1.1), 0.03, 0.05), s) for s in range(50)]
    assert sum(e is not None and e.verdict == "faster" for e in found) >= 48


def test_one_stalled_run_makes_no_speed_up() -> None:
    rows = {str(i): [0.0, 0.001, -0.001, 0.0, 0.002] for i in range(12)}
    rows["0"][2] = math.log(14.0)  # the baseline stood still for 14 s once
    found = estimate(rows)
    assert found is not None
    assert found.verdict == "no difference"
    assert found.ratio == pytest.approx(1.0, abs=0.002)


def test_figure_is_the_geometric_mean_never_a_ratio_of_means() -> None:
    rows = {str(i): [math.log(2.0)] * 5 for i in range(6)}
    rows |= {str(i): [math.log(0.5)] * 5 for i in range(6, 12)}
    found = estimate(rows)
    assert found is not None
    assert found.ratio == pytest.approx(1.0)
    assert found.low < 1 < found.high


def test_same_samples_and_seed_give_the_same_interval() -> None:
    rng = np.random.default_rng(1)
    rows = simulate(rng, 12, 0.1, 0.1, 0.1)
    assert estimate(rows, 4) == estimate(rows, 4)


def test_prompts_with_fewer_pairs_are_used_as_they_are() -> None:
    rows = {str(i): [0.1] * (1 + i % 5) for i in range(10)} | {"none": []}
    found = estimate(rows)
    assert found is not None
    assert (found.n_prompts, found.n_pairs) == (10, 30)


def test_a_single_pair_says_nothing() -> None:
    found = estimate({"p": [0.5]})
    assert found is not None
    assert found.verdict == "no difference"
    assert found.high / found.low > 1e6


def test_two_pairs_need_a_huge_effect() -> None:
    weak = estimate({"p": [0.1, 0.3]})
    strong = estimate({"p": [0.50, 0.51]})
    assert weak is not None and weak.verdict == "no difference"
    assert strong is not None and strong.verdict == "faster"


def test_without_pairs_there_is_no_estimate() -> None:
    assert estimate({}) is None
    assert estimate({"p": []}) is None


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 11, 59])
def test_t_quantile_is_right(dof: int) -> None:
    from scipy.stats import norm, t

    expected = t.ppf(0.975, dof) / norm.ppf(0.975)
    assert statistics._t_over_z(dof) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_are_no_speeds_have_no_ratio(bad: float) -> None:
    assert log_ratio(bad, 1.0) is None
    assert log_ratio(1.0, bad) is None
    assert log_ratio(2.0, 4.0) == pytest.approx(math.log(2))


def test_an_effect_too_small_to_matter_is_no_difference() -> None:
    assert verdict(1.005, 1.004, 1.006) == "no difference"
    assert verdict(1.02, 1.01, 1.03) == "faster"
    assert verdict(0.9, 0.85, 0.95) == "slower"
    assert verdict(1.2, 0.99, 1.5) == "no difference"

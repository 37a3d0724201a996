"""Ratios with intervals: log-ratios of pairs, their geometric mean, a bootstrap, a verdict.

Pure numbers; does not know what was measured, on which machine, or by whom.

A pair is two runs of one prompt, next to each other in time. A prompt's centre is the median of
its pairs, so that one stalled run cannot make a speed-up. The figure is the mean over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["faster", "slower", "no difference"]
Scope = Literal["tasks", "prompts"]

N_RESAMPLES: Final = 2000
LEVEL: Final = 0.95
# Fewer prompts than this say nothing about prompts that were not run: the interval then covers
# the noise of these prompts only, and says so.
MIN_PROMPTS: Final = 6
# Fewer repeats cannot be resampled: an interval from Student's t takes over, and it is wide.
MIN_REPEATS: Final = 4
# An effect below this is of no use to anybody, however narrow its interval.
MIN_EFFECT: Final = 0.01
# Seconds or rates closer than this are the same for every practical purpose.
_TINY: Final = 1e-12
_UNKNOWN: Final = math.log(1e5)
_Z: Final = 1.959964
# A little wider than theory asks for: machines misbehave in more ways than simulations.
_CAUTION: Final = 1.05
_SMALL_T: Final = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445}

LogRatios = Mapping[str, Sequence[float]]  # prompt -> one log-ratio for each pair
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio and the interval that holds it, at 95 %."""

    ratio: float
    low: float
    high: float
    n_prompts: int
    n_pairs: int
    scope: Scope  # "tasks": holds for prompts of this kind; "prompts": for these prompts

    @property
    def verdict(self) -> Verdict:
        return verdict(self.ratio, self.low, self.high)


def verdict(ratio: float, low: float, high: float) -> Verdict:
    """A ratio above 1 is "faster": give speeds, or inverse times."""
    if low > 1 and ratio >= 1 + MIN_EFFECT:
        return "faster"
    return "slower" if high < 1 and ratio <= 1 - MIN_EFFECT else "no difference"


def log_ratio(baseline: float, candidate: float) -> float | None:
    """How much more the candidate has; None where either figure is not a positive number."""
    if not (math.isfinite(baseline) and math.isfinite(candidate)):
        return None
    if baseline <= _TINY or candidate <= _TINY:
        return None
    return math.log(candidate / baseline)


def estimate(pairs: LogRatios, seed: int = 0) -> Estimate | None:
    """The geometric mean of the ratios with its interval; None without a single pair."""
    groups = [np.asarray(v, np.float64) for v in pairs.values() if len(v)]
    if not groups:
        return None
    rng = np.random.default_rng(seed)
    centres = np.array([np.median(group) for group in groups])
    scope: Scope = "tasks" if len(groups) >= MIN_PROMPTS else "prompts"
    if scope == "tasks":
        low, high = _interval(_over_tasks(groups, centres, rng))
    elif min(map(len, groups)) >= MIN_REPEATS:
        low, high = _interval(_over_repeats(groups, centres, rng))
    else:
        low, high = _by_t(np.concatenate(groups), float(centres.mean()))
    return Estimate(
        ratio=float(np.exp(centres.mean())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        n_prompts=len(groups),
        n_pairs=sum(map(len, groups)),
        scope=scope,
    )


def _interval(means: Floats) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _over_tasks(groups: list[Floats], centres: Floats, rng: np.random.Generator) -> Floats:
    """Resample prompts, then the repeats inside each; scaled to the width that truly covers.

    The bare bootstrap is too narrow for few prompts (it divides by n, and knows no t) and too wide
    where repeats are noisy (their noise counts twice: it is in the spread of the prompts already).
    Simulations in tests/bench/test_statistics.py hold it to its promise.
    """
    n = len(groups)
    drawn = _medians(groups, rng)
    prompts = rng.integers(n, size=(N_RESAMPLES, n))
    inner = rng.integers(N_RESAMPLES, size=(N_RESAMPLES, n))
    means: Floats = drawn[prompts, inner].mean(axis=1)
    spread = float(means.std())
    if spread <= _TINY:
        return means
    wanted = float(centres.std(ddof=1)) / math.sqrt(n) * _t_over_z(n - 1) * _CAUTION
    scaled: Floats = centres.mean() + (means - means.mean()) * (wanted / spread)
    return scaled


def _over_repeats(groups: list[Floats], centres: Floats, rng: np.random.Generator) -> Floats:
    """Resample the repeats of each prompt; the prompts stay."""
    means: Floats = _medians(groups, rng).mean(axis=0)
    moved: Floats = centres.mean() + (means - means.mean())
    return moved


def _medians(groups: list[Floats], rng: np.random.Generator) -> Floats:
    """Rows: prompts; columns: the median of one resample of its repeats."""
    drawn = np.empty((len(groups), N_RESAMPLES))
    for i, group in enumerate(groups):
        picks = rng.integers(len(group), size=(N_RESAMPLES, len(group)))
        drawn[i] = np.median(group[picks], axis=1)
    return drawn


def _by_t(pairs: Floats, centre: float) -> tuple[float, float]:
    """Every pair counts for itself; a single one says nothing."""
    n = len(pairs)
    if n < 2:
        return -_UNKNOWN, _UNKNOWN
    width = float(pairs.std(ddof=1)) / math.sqrt(n) * _t_over_z(n - 1) * _Z
    return max(-_UNKNOWN, centre - width), min(_UNKNOWN, centre + width)


def _t_over_z(dof: int) -> float:
    """Student's t over the normal quantile at 97.5 %, by Cornish and Fisher's expansion."""
    z = _Z
    if dof in _SMALL_T:
        return _SMALL_T[dof] / z
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * dof**3)
    return t / z

"""Ratios of measured figures with their intervals, as `parlay bench --peer` computes them.

Knows neither subjects nor units: figures by prompt go in, each beside the one next to it in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parlay.bench.statistics import Estimate, estimate, log_ratio

Figures = Mapping[str, Sequence[float]]  # prompt -> one figure for each repeat


def ratio(own: Figures, base: Figures) -> Estimate:
    """How much more `own` has, over all prompts that both answered."""
    pairs = {name: _logs(own[name], base[name]) for name in own if name in base}
    found = estimate(pairs)
    if found is None:
        raise SystemExit("no pair of figures to compare: every figure was zero or missing")
    return found


def ratio_of_repeats(own: Sequence[float], base: Sequence[float]) -> Estimate:
    """The same of one prompt, asked again and again."""
    return ratio({"": own}, {"": base})


def ratio_of_prompts(own: Sequence[float], base: Sequence[float]) -> Estimate:
    """The same of several prompts, each asked once."""
    return ratio(_alone(own), _alone(base))


def shown(found: Estimate) -> str:
    return f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"


def recorded(found: Estimate) -> dict[str, float]:
    """For a file of results."""
    named = {"ratio": found.ratio, "low": found.low, "high": found.high}
    return {name: round(value, 4) for name, value in named.items()}


def _logs(own: Sequence[float], base: Sequence[float]) -> list[float]:
    found = [log_ratio(b, a) for a, b in zip(own, base, strict=False)]
    return [log for log in found if log is not None]


def _alone(figures: Sequence[float]) -> dict[str, list[float]]:
    return {str(i): [figure] for i, figure in enumerate(figures)}

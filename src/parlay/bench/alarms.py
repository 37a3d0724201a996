"""What is wrong with a run, said aloud: stalls, drift, noise, few pairs, no drafts.

Pure: reads samples, knows no machine. A warning never changes a figure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from parlay.bench.comparison import acceptance
from parlay.bench.runner import MIN_PAIRS
from parlay.bench.sample import Clock, Sample
from parlay.bench.subjects.subject import ArmInfo
from parlay.reading.bounds import Label, Reason, Strict

WarningKind = Literal[
    "stall", "drift", "unstable", "few pairs", "failures", "no drafts", "remembers", "token count",
    "load", "builds",
]  # fmt: skip

STALL: Final = 0.5  # below this share of its own usual speed, a run stalled
DRIFT: Final = 0.05
UNSTABLE: Final = 0.10
_SURE: Final = 3.0  # standard errors


class Caution(Strict):
    """One thing a reader should know before believing the figures."""

    kind: WarningKind
    arm: Label | None = None
    text: Reason


def warnings_of(
    samples: Sequence[Sample], arms: Mapping[str, ArmInfo], n_cores: int | None = None
) -> list[Caution]:
    """Everything worth a warning, the gravest first."""
    found = [*_few_pairs(samples), *_failures(samples), *_builds(arms)]
    for name, info in arms.items():
        mine = [s for s in samples if s.arm == name]
        residuals = _residuals(mine)
        found += [*_no_drafts(mine, info), *_remembers(mine, name), *_counted(mine, name)]
        found += [*_stalls(residuals, name), *_drift(residuals, name), *_noise(residuals, name)]
    return [*found, *_load(samples, n_cores)]


# -- how each run differs from the usual run of its prompt ------------------------------------


def _residuals(samples: Iterable[Sample], clock: Clock = "decode") -> list[tuple[Sample, float]]:
    """Log of each speed over the median speed of the same prompt and arm."""
    by_prompt: defaultdict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample in samples:
        speed = sample.tokens_per_second(clock)
        if speed is not None:
            by_prompt[sample.prompt].append((sample, math.log(speed)))
    found = []
    for rows in by_prompt.values():
        usual = float(np.median([speed for _, speed in rows]))
        found += [(sample, speed - usual) for sample, speed in rows]
    return sorted(found, key=lambda row: row[0].position)


def _stalls(residuals: list[tuple[Sample, float]], arm: str) -> Iterable[Caution]:
    stalled = [(s, r) for s, r in residuals if r < math.log(STALL)]
    if stalled:
        worst, r = min(stalled, key=lambda row: row[1])
        what = f"{len(stalled)} stalled run(s); the worst, {worst.prompt} repeat {worst.repeat},"
        yield _warning("stall", arm, f"{what} ran at {math.exp(r):.0%} of its usual speed")


def _drift(residuals: list[tuple[Sample, float]], arm: str) -> Iterable[Caution]:
    """First third of the run against the last. Stalls are another matter and are left out."""
    calm = [r for _, r in residuals if r >= math.log(STALL)]
    third = len(calm) // 3
    if third < 4:
        return
    first, last = np.array(calm[:third]), np.array(calm[-third:])
    change = float(last.mean() - first.mean())
    error = math.sqrt(first.var(ddof=1) / third + last.var(ddof=1) / third)
    if abs(change) > DRIFT and abs(change) > _SURE * error:
        word = "slower" if change < 0 else "faster"
        text = (
            f"the machine got {math.expm1(abs(change)):.0%} {word} from the first third to the last"
        )
        yield _warning("drift", arm, text)


def _noise(residuals: list[tuple[Sample, float]], arm: str) -> Iterable[Caution]:
    """The usual distance from the median, scaled to a standard deviation."""
    if len(residuals) < MIN_PAIRS:
        return
    spread = 1.4826 * float(np.median([abs(r) for _, r in residuals]))
    if spread > UNSTABLE:
        text = (
            f"repeats of the same prompt differ by {spread:.0%}; is the machine doing other work?"
        )
        yield _warning("unstable", arm, text)


# -- the run as a whole -----------------------------------------------------------------------


def _few_pairs(samples: Sequence[Sample]) -> Iterable[Caution]:
    n = len({s.repeat for s in samples})
    if n < MIN_PAIRS:
        yield _warning("few pairs", None, f"{n} pair(s) a prompt; {MIN_PAIRS} make a verdict")


def _failures(samples: Sequence[Sample]) -> Iterable[Caution]:
    n = sum(s.outcome != "ok" for s in samples)
    if n:
        text = f"{n} of {len(samples)} requests failed; they are listed, not hidden"
        yield _warning("failures", None, text)


def _no_drafts(samples: Sequence[Sample], info: ArmInfo) -> Iterable[Caution]:
    taken = acceptance(samples)
    if info.speculates and taken is not None and taken.counts.drafted == 0:
        text = "claims to speculate, but drafted nothing: any difference is noise"
        yield _warning("no drafts", info.name, text)


def _remembers(samples: Sequence[Sample], arm: str) -> Iterable[Caution]:
    """A method that has seen the answer before is not what a user will have the first time."""
    first = acceptance(s for s in samples if s.repeat == 0)
    later = acceptance(s for s in samples if s.repeat > 0)
    if first is None or later is None or not later.counts.drafted:
        return
    if later.draft_share > first.draft_share + 0.1:
        text = (
            f"drafts {later.draft_share:.0%} of the text in repeats, {first.draft_share:.0%} the"
            " first time: it remembers earlier answers, so repeats flatter it"
        )
        yield _warning("remembers", arm, text)


def _counted(samples: Sequence[Sample], arm: str) -> Iterable[Caution]:
    if any(s.outcome == "ok" and s.counted == "chunks" for s in samples):
        text = "the server tells no token counts; chunks were counted, which misleads with drafts"
        yield _warning("token count", arm, text)


def _builds(arms: Mapping[str, ArmInfo]) -> Iterable[Caution]:
    builds = {info.build for info in arms.values() if info.build}
    if len(builds) > 1:
        text = "the arms are different builds: part of a difference may be the compiler's"
        yield _warning("builds", None, text)


def _load(samples: Sequence[Sample], n_cores: int | None) -> Iterable[Caution]:
    loads = [s.readings.load_1min for s in samples if s.readings and s.readings.load_1min]
    if n_cores and loads and float(np.median(loads)) > 1.5 * n_cores:
        text = f"load {float(np.median(loads)):.1f} on {n_cores} cores: others were at work"
        yield _warning("load", None, text)


def _warning(kind: WarningKind, arm: str | None, text: str) -> Caution:
    return Caution(kind=kind, arm=arm, text=text)

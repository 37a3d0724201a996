"""A candidate against the baseline: every figure of the result, from the samples alone.

Pure: the same samples give the same figures, so that anybody can compute a result again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from parlay.bench import statistics
from parlay.bench.sample import Clock, Sample
from parlay.bench.statistics import LogRatios, Scope, Verdict, log_ratio
from parlay.reading.bounds import Count, Finite, Label, Reason, Strict
from parlay.reading.speculation import Speculation, pooled

MAX_ROWS: Final = 10_000

Ratio = Annotated[Finite, Field(gt=0, le=1e6)]
Share = Annotated[Finite, Field(ge=0, le=1)]


class Interval(Strict):
    """A ratio with its 95 % interval; above 1 the candidate is better."""

    ratio: Ratio
    low: Ratio
    high: Ratio
    n_prompts: Count
    n_pairs: Count
    scope: Scope

    @property
    def verdict(self) -> Verdict:
        return statistics.verdict(self.ratio, self.low, self.high)


class CategoryResult(Strict):
    """The speed-up over the prompts of one category."""

    category: Label
    speedup: Interval
    verdict: Verdict
    token_acceptance: Share | None
    acceptance_length: Annotated[Finite, Field(ge=0, le=1000)] | None


class Acceptance(Strict):
    """What became of the drafts, by the definitions of docs/explanation/architecture.md."""

    generated: Count
    counts: Speculation
    token_acceptance: Share
    sequence_acceptance: Share | None
    draft_share: Share
    acceptance_length: Annotated[Finite, Field(ge=0, le=1000)]
    by_position: list[Share]  # P(accepted | those before it were)


class Difference(Strict):
    """Where the two texts of a prompt part."""

    prompt: Label
    character: Count
    token: Count | None = None
    baseline: Label | None = None
    candidate: Label | None = None
    # Log-probability of the baseline's token minus the candidate's, under plain decoding.
    gap: Annotated[Finite, Field(ge=0, le=1e4)] | None = None


class Identity(Strict):
    """How many prompts gave the same text in every pair."""

    n_identical: Count
    n_compared: Count
    baseline_repeats_itself: bool  # if not, differences say nothing about speculation
    differences: list[Difference] = Field(default=[], max_length=MAX_ROWS)


class Failure(Strict):
    """A request that gave no figure, or gave one that cannot be used."""

    prompt: Label
    arm: Label
    repeat: Count
    outcome: Literal["timeout", "error", "too short"]
    reason: Reason


class Comparison(Strict):
    """One candidate against the baseline."""

    baseline: Label
    candidate: Label
    clock: Clock
    verdict: Verdict | Literal["no result"]
    speedup: Interval | None
    wall: Interval | None  # of the whole request: prompt and answer
    first_token: Interval | None
    baseline_tokens_per_second: Annotated[Finite, Field(gt=0, le=1e6)] | None
    candidate_tokens_per_second: Annotated[Finite, Field(gt=0, le=1e6)] | None
    by_category: list[CategoryResult] = Field(max_length=200)
    acceptance: Acceptance | None
    identity: Identity
    failures: list[Failure] = Field(max_length=MAX_ROWS)


Measure = Callable[[Sample], float | None]


def compare(
    samples: Sequence[Sample],
    categories: Mapping[str, str],
    baseline: str,
    candidate: str,
    differences: Sequence[Difference] = (),
    seed: int = 0,
) -> Comparison:
    """All figures of one candidate. `categories`: prompt -> category."""
    ours = [s for s in samples if s.arm in (baseline, candidate)]
    clock = _clock(ours)
    pairs = Pairs(ours, baseline, candidate)
    ratios = pairs.log_ratios(lambda s: s.tokens_per_second(clock))
    speedup = interval(ratios, seed)
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        clock=clock,
        verdict=speedup.verdict if speedup else "no result",
        speedup=speedup,
        wall=interval(pairs.log_ratios(lambda s: s.tokens_per_second("wall")), seed),
        first_token=interval(pairs.log_ratios(_inverse_first_token), seed),
        baseline_tokens_per_second=_speed(ours, baseline, clock),
        candidate_tokens_per_second=_speed(ours, candidate, clock),
        by_category=_by_category(ratios, categories, ours, candidate, seed),
        acceptance=acceptance([s for s in ours if s.arm == candidate]),
        identity=_identity(pairs, ours, baseline, list(differences)),
        failures=_failures(ours, clock),
    )


def interval(ratios: LogRatios, seed: int) -> Interval | None:
    """An estimate as it is written into a result."""
    found = statistics.estimate(ratios, seed)
    if found is None:
        return None
    return Interval(
        ratio=round(found.ratio, 6),
        low=round(found.low, 6),
        high=round(found.high, 6),
        n_prompts=found.n_prompts,
        n_pairs=found.n_pairs,
        scope=found.scope,
    )


def _clock(samples: Iterable[Sample]) -> Clock:
    """The server's own clock where every answer has it; else ours, for both sides alike."""
    answered = [s for s in samples if s.outcome == "ok"]
    told = answered and all(s.server_decode_s is not None for s in answered)
    return "server" if told else "decode"


def _inverse_first_token(sample: Sample) -> float | None:
    ok = sample.outcome == "ok" and sample.first_token_s > 0
    return 1 / sample.first_token_s if ok else None


class Pairs:
    """Samples of two arms, matched by prompt and repeat."""

    def __init__(self, samples: Iterable[Sample], baseline: str, candidate: str) -> None:
        sides: defaultdict[tuple[str, int], dict[str, Sample]] = defaultdict(dict)
        for sample in samples:
            sides[sample.prompt, sample.repeat][sample.arm] = sample
        self.all = {
            place: (arms[baseline], arms[candidate])
            for place, arms in sorted(sides.items())
            if baseline in arms and candidate in arms
        }

    def log_ratios(self, measure: Measure) -> dict[str, list[float]]:
        """Per prompt one log-ratio for each pair that has one."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for (prompt, _repeat), (a, b) in self.all.items():
            x, y = measure(a), measure(b)
            ratio = None if x is None or y is None else log_ratio(x, y)
            if ratio is not None:
                found[prompt].append(ratio)
        return dict(found)


def _speed(samples: Sequence[Sample], arm: str, clock: Clock) -> float | None:
    """Median over prompts of the median over repeats: a figure to look at, never to divide."""
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        speed = sample.tokens_per_second(clock) if sample.arm == arm else None
        if speed is not None:
            by_prompt[sample.prompt].append(speed)
    medians = [_median(speeds) for speeds in by_prompt.values()]
    return round(_median(medians), 4) if medians else None


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def _by_category(
    ratios: LogRatios,
    categories: Mapping[str, str],
    samples: Sequence[Sample],
    candidate: str,
    seed: int,
) -> list[CategoryResult]:
    found = []
    for name in sorted(set(categories.values())):
        inside = {p: r for p, r in ratios.items() if categories.get(p) == name}
        speedup = interval(inside, seed)
        if speedup is None:
            continue
        mine = [s for s in samples if s.arm == candidate and categories.get(s.prompt) == name]
        taken = acceptance(mine)
        found.append(
            CategoryResult(
                category=name,
                speedup=speedup,
                verdict=speedup.verdict,
                token_acceptance=taken.token_acceptance if taken and taken.counts.drafted else None,
                acceptance_length=taken.acceptance_length if taken else None,
            )
        )
    return found


def acceptance(samples: Iterable[Sample]) -> Acceptance | None:
    """Pooled over answers; None where the subject tells nothing."""
    told = [s for s in samples if s.outcome == "ok" and s.speculation is not None]
    counts = pooled([s.speculation for s in told if s.speculation is not None])
    if counts is None:
        return None
    generated = sum(s.n_tokens for s in told)
    rounds = counts.rounds if counts.rounds is not None else generated - counts.accepted
    tried = counts.speculated_rounds
    known_full = counts.fully_accepted is not None and tried
    return Acceptance(
        generated=generated,
        counts=counts,
        token_acceptance=_share(counts.accepted, counts.drafted),
        sequence_acceptance=_share(counts.fully_accepted or 0, tried or 1) if known_full else None,
        draft_share=_share(counts.accepted, generated),
        acceptance_length=round(generated / rounds, 6) if rounds > 0 else 0.0,
        by_position=[
            _share(a, t) for a, t in zip(counts.accepted_at, counts.tried_at, strict=False)
        ],
    )


def _share(part: int, whole: int) -> float:
    return round(min(1.0, part / whole), 6) if whole else 0.0


def _identity(
    pairs: Pairs, samples: Sequence[Sample], baseline: str, differences: list[Difference]
) -> Identity:
    same: dict[str, bool] = {}
    for (prompt, _), (a, b) in pairs.all.items():
        if a.text_sha256 and b.text_sha256:
            same[prompt] = same.get(prompt, True) and a.text_sha256 == b.text_sha256
    return Identity(
        n_identical=sum(same.values()),
        n_compared=len(same),
        baseline_repeats_itself=_repeats_itself(samples, baseline),
        differences=differences,
    )


def _repeats_itself(samples: Iterable[Sample], arm: str) -> bool:
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for sample in samples:
        if sample.arm == arm and sample.text_sha256:
            texts[sample.prompt].add(sample.text_sha256)
    return all(len(found) == 1 for found in texts.values())


def _failures(samples: Iterable[Sample], clock: Clock) -> list[Failure]:
    found = []
    for s in samples:
        if s.outcome != "ok":
            reason = s.error or s.outcome
            found.append(_failure(s, s.outcome, reason))
        elif s.tokens_per_second(clock) is None:
            found.append(_failure(s, "too short", f"{s.n_tokens} token(s) have no speed"))
    return found


def _failure(s: Sample, outcome: Literal["timeout", "error", "too short"], why: str) -> Failure:
    return Failure(prompt=s.prompt, arm=s.arm, repeat=s.repeat, outcome=outcome, reason=why)

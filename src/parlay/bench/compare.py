"""From samples to figures: every candidate against the baseline, and what speaks against both.

Pure: the same samples give the same figures, so that anybody can compute a result again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Literal

import numpy as np

from parlay.bench.record import (
    Acceptance,
    ArmInfo,
    CategoryResult,
    Caution,
    Clock,
    Comparison,
    Failure,
    Identity,
    Interval,
    Sample,
)
from parlay.bench.statistics import LogRatios, estimate, log_ratio
from parlay.reading.speculation import pooled

MIN_PAIRS: Final = 5  # repeats of a prompt that make a verdict
STALL: Final = 0.5  # below this share of its own usual speed, a run stalled
DRIFT: Final = 0.05
UNSTABLE: Final = 0.10
_SURE: Final = 3.0  # standard errors

Measure = Callable[[Sample], float | None]
Place = tuple[str, int]  # prompt, repeat


def compare(
    samples: Sequence[Sample],
    categories: Mapping[str, str],
    baseline: str,
    candidate: str,
    seed: int = 0,
) -> Comparison:
    """All figures of one candidate. `categories`: prompt -> category."""
    ours = [s for s in samples if s.arm in (baseline, candidate)]
    mine = [s for s in ours if s.arm == candidate]
    clock = _clock(ours)
    pairs = _pairs(ours, baseline, candidate)
    ratios = _log_ratios(pairs, lambda s: s.tokens_per_second(clock))
    speedup = interval(ratios, seed)
    by_category = []
    for name in sorted(set(categories.values())):
        part = interval({p: r for p, r in ratios.items() if categories.get(p) == name}, seed)
        if part is None:
            continue
        taken = acceptance(s for s in mine if categories.get(s.prompt) == name)
        by_category.append(
            CategoryResult(
                category=name,
                speedup=part,
                verdict=part.verdict,
                token_acceptance=taken.token_acceptance if taken and taken.counts.drafted else None,
                acceptance_length=taken.acceptance_length if taken else None,
            )
        )
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        clock=clock,
        verdict=speedup.verdict if speedup else "no result",
        speedup=speedup,
        wall=interval(_log_ratios(pairs, lambda s: s.tokens_per_second("wall")), seed),
        first_token=interval(_log_ratios(pairs, _inverse_first_token), seed),
        baseline_tokens_per_second=_speed(ours, baseline, clock),
        candidate_tokens_per_second=_speed(ours, candidate, clock),
        by_category=by_category,
        acceptance=acceptance(mine),
        identity=_identity(pairs, ours, baseline),
        failures=list(_failures(ours, clock)),
    )


def compare_all(
    samples: Sequence[Sample], arms: Iterable[str], categories: Mapping[str, str]
) -> list[Comparison]:
    """Every arm after the first against the first."""
    baseline, *candidates = arms
    return [compare(samples, categories, baseline, name) for name in candidates]


def interval(ratios: LogRatios, seed: int) -> Interval | None:
    """An estimate as it is written into a result."""
    found = estimate(ratios, seed)
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


def _pairs(
    samples: Iterable[Sample], baseline: str, candidate: str
) -> dict[Place, tuple[Sample, Sample]]:
    """Samples of two arms, matched by prompt and repeat."""
    sides: defaultdict[Place, dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        sides[sample.prompt, sample.repeat][sample.arm] = sample
    whole = ((place, arms) for place, arms in sorted(sides.items()) if len(arms) == 2)
    return {place: (arms[baseline], arms[candidate]) for place, arms in whole}


def _log_ratios(
    pairs: Mapping[Place, tuple[Sample, Sample]], measure: Measure
) -> dict[str, list[float]]:
    """Per prompt one log-ratio for each pair that has one."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for (prompt, _repeat), (a, b) in pairs.items():
        x, y = measure(a), measure(b)
        ratio = None if x is None or y is None else log_ratio(x, y)
        if ratio is not None:
            found[prompt].append(ratio)
    return dict(found)


def _speed(samples: Iterable[Sample], arm: str, clock: Clock) -> float | None:
    """Median over prompts of the median over repeats: a figure to look at, never to divide."""
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        speed = sample.tokens_per_second(clock) if sample.arm == arm else None
        if speed is not None:
            by_prompt[sample.prompt].append(speed)
    medians = [median(speeds) for speeds in by_prompt.values()]
    return round(median(medians), 4) if medians else None


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
    pairs: Mapping[Place, tuple[Sample, Sample]], samples: Iterable[Sample], baseline: str
) -> Identity:
    same: dict[str, bool] = {}
    for (prompt, _), (a, b) in pairs.items():
        if a.text_sha256 and b.text_sha256:
            same[prompt] = same.get(prompt, True) and a.text_sha256 == b.text_sha256
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for sample in samples:
        if sample.arm == baseline and sample.text_sha256:
            texts[sample.prompt].add(sample.text_sha256)
    return Identity(
        n_identical=sum(same.values()),
        n_compared=len(same),
        baseline_repeats_itself=all(len(found) == 1 for found in texts.values()),
        differing=[prompt for prompt, equal in same.items() if not equal],
    )


def _failures(samples: Iterable[Sample], clock: Clock) -> Iterator[Failure]:
    for s in samples:
        outcome: Literal["timeout", "error", "too short"] = "too short"
        reason = f"{s.n_tokens} token(s) have no speed"
        if s.outcome != "ok":
            outcome, reason = s.outcome, s.error or s.outcome
        elif s.tokens_per_second(clock) is not None:
            continue
        yield Failure(prompt=s.prompt, arm=s.arm, repeat=s.repeat, outcome=outcome, reason=reason)


# -- what is wrong with a run, said aloud; a warning never changes a figure -----------------------


def warnings_of(
    samples: Sequence[Sample], arms: Mapping[str, ArmInfo], n_cores: int | None = None
) -> list[Caution]:
    """Everything worth a warning, the gravest first."""
    found = list(_of_the_run(samples, arms))
    for name, info in arms.items():
        mine = [s for s in samples if s.arm == name]
        found += _of_drafts(mine, info)
        found += _of_speeds(_residuals(mine), name)
    loads = [s.readings.load_1min for s in samples if s.readings and s.readings.load_1min]
    if n_cores and loads and median(loads) > 1.5 * n_cores:
        text = f"load {median(loads):.1f} on {n_cores} cores: others were at work"
        found.append(Caution(kind="load", text=text))
    return found


def _of_the_run(samples: Sequence[Sample], arms: Mapping[str, ArmInfo]) -> Iterator[Caution]:
    n_repeats = len({s.repeat for s in samples})
    if n_repeats < MIN_PAIRS:
        text = f"{n_repeats} pair(s) a prompt; {MIN_PAIRS} make a verdict"
        yield Caution(kind="few pairs", text=text)
    n_failed = sum(s.outcome != "ok" for s in samples)
    if n_failed:
        text = f"{n_failed} of {len(samples)} requests failed; they are listed, not hidden"
        yield Caution(kind="failures", text=text)
    if len({info.build for info in arms.values() if info.build}) > 1:
        text = "the arms are different builds: part of a difference may be the compiler's"
        yield Caution(kind="builds", text=text)


def _of_drafts(samples: Sequence[Sample], info: ArmInfo) -> Iterator[Caution]:
    """A method that drafted nothing, one that has seen the answers before, counts that mislead."""
    taken = acceptance(samples)
    if info.speculates and taken is not None and taken.counts.drafted == 0:
        text = "claims to speculate, but drafted nothing: any difference is noise"
        yield Caution(kind="no drafts", arm=info.name, text=text)
    first = acceptance(s for s in samples if s.repeat == 0)
    later = acceptance(s for s in samples if s.repeat > 0)
    if first and later and later.counts.drafted and later.draft_share > first.draft_share + 0.1:
        text = (
            f"drafts {later.draft_share:.0%} of the text in repeats, {first.draft_share:.0%} the"
            " first time: it remembers earlier answers, so repeats flatter it"
        )
        yield Caution(kind="remembers", arm=info.name, text=text)
    if any(s.outcome == "ok" and s.counted == "chunks" for s in samples):
        text = "the server tells no token counts; chunks were counted, which misleads with drafts"
        yield Caution(kind="token count", arm=info.name, text=text)


def _residuals(samples: Iterable[Sample]) -> list[tuple[Sample, float]]:
    """Log of each speed over the median speed of the same prompt, in the order of the run."""
    by_prompt: defaultdict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample in samples:
        if (speed := sample.tokens_per_second("decode")) is not None:
            by_prompt[sample.prompt].append((sample, math.log(speed)))
    found = [
        (sample, speed - median(each for _, each in rows))
        for rows in by_prompt.values()
        for sample, speed in rows
    ]
    return sorted(found, key=lambda row: row[0].position)


def _of_speeds(residuals: list[tuple[Sample, float]], arm: str) -> Iterator[Caution]:
    stalled = [(r, s) for s, r in residuals if r < math.log(STALL)]
    if stalled:
        r, worst = min(stalled, key=lambda row: row[0])
        what = f"{len(stalled)} stalled run(s); the worst, {worst.prompt} repeat {worst.repeat},"
        text = f"{what} ran at {math.exp(r):.0%} of its usual speed"
        yield Caution(kind="stall", arm=arm, text=text)
    # First third of the run against the last. Stalls are another matter and are left out.
    calm = [r for _, r in residuals if r >= math.log(STALL)]
    third = len(calm) // 3
    if third >= 4:
        first, last = np.array(calm[:third]), np.array(calm[-third:])
        change = float(last.mean() - first.mean())
        error = math.sqrt(first.var(ddof=1) / third + last.var(ddof=1) / third)
        if abs(change) > DRIFT and abs(change) > _SURE * error:
            word = "slower" if change < 0 else "faster"
            by = f"{math.expm1(abs(change)):.0%} {word}"
            text = f"the machine got {by} from the first third to the last"
            yield Caution(kind="drift", arm=arm, text=text)
    if len(residuals) >= MIN_PAIRS:
        # The usual distance from the median, scaled to a standard deviation.
        spread = 1.4826 * median(abs(r) for _, r in residuals)
        if spread > UNSTABLE:
            by = f"{spread:.0%}"
            text = f"repeats of the same prompt differ by {by}; is the machine doing other work?"
            yield Caution(kind="unstable", arm=arm, text=text)

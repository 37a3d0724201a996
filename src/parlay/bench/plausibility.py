"""Tests a result against arithmetic and physics: can these figures be true together?

Pure: reads a record, measures nothing. The same tests run when a result is made and when it is
sent in.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from parlay import models
from parlay.bench.compare import compare
from parlay.bench.record import Check, Comparison, Interval, Record, Sample
from parlay.bench.suite import BUILT_IN, load_suite, suite_hash

# Input embeddings are looked up, not read: so much of a file at least is read for every token.
READ_SHARE: Final = 0.7
# Room for what a measurement of bandwidth misses, and for clocks that change.
MARGIN: Final = 1.25


def check(record: Record) -> list[Check]:
    """Every test, in order."""
    tests = (_whole, _suite, _models, _times, _counts, _bandwidth, _speculation)
    return [found for test in tests for found in test(record)]


def failed(record: Record) -> list[Check]:
    """The tests that a record does not pass, its figures computed again."""
    return [c for c in [*check(record), *figures(record)] if c.ok is False]


def _check(name: str, ok: bool | None, text: str) -> Check:
    return Check(name=name, ok=ok, text=text[:200])


# -- is it all there, and does it add up ------------------------------------------------------


def _whole(record: Record) -> Iterator[Check]:
    """Every arm, prompt and repeat is there: nobody left out what did not please."""
    arms = {arm.name for arm in record.arms}
    repeats = range(record.run.n_repeats_done)
    wanted = {(r, p, a) for r in repeats for p in record.suite.categories for a in arms}
    places = [(s.repeat, s.prompt, s.arm) for s in record.samples]
    missing, extra = wanted - set(places), set(places) - wanted
    once = len(places) == len(set(places)) and len(arms) == len(record.arms)
    what = f"{len(places)} samples, {len(missing)} missing, {len(extra)} unexpected"
    yield _check("complete", not missing and not extra and once, what)


def figures(record: Record) -> Iterator[Check]:
    """The comparisons follow from the samples; computed again from scratch."""
    for given in record.comparisons:
        again = compare(
            record.samples, record.suite.categories, record.baseline.name, given.candidate
        )
        ok = given.baseline == record.baseline.name and _same(given, again)
        yield _check("figures", ok, f"{given.candidate}: the figures follow from the samples")


def _same(a: Comparison, b: Comparison) -> bool:
    exact = ("verdict", "clock", "failures", "identity", "acceptance")
    if any(getattr(a, name) != getattr(b, name) for name in exact):
        return False
    if len(a.by_category) != len(b.by_category):
        return False
    pairs = [(a.speedup, b.speedup), (a.wall, b.wall), (a.first_token, b.first_token)]
    pairs += [(x.speedup, y.speedup) for x, y in zip(a.by_category, b.by_category, strict=True)]
    return all(_close(x, y) for x, y in pairs)


def _close(a: Interval | None, b: Interval | None) -> bool:
    if a is None or b is None:
        return a is b
    # numpy's random streams may change between versions, so bounds may differ by a hair.
    bounds = ((a.ratio, b.ratio, 1e-4), (a.low, b.low, 0.02), (a.high, b.high, 0.02))
    return all(abs(x - y) <= tolerance * y for x, y, tolerance in bounds)


def _suite(record: Record) -> Iterator[Check]:
    suite = record.suite
    if suite.name not in BUILT_IN:
        yield _check("suite", None, "own prompts: nobody else can repeat this run")
        return
    known = load_suite(suite.name)
    ran = [prompt for prompt in known.prompts if prompt.id in suite.categories]
    same = {prompt.id: prompt.category for prompt in ran} == suite.categories
    whole = len(ran) == len(known.prompts) or record.run.quick
    ok = same and whole and suite_hash(ran) == suite.sha256 and known.version == suite.version
    yield _check("suite", ok, f"{suite.name}: hash, version and prompts are those of Parlay")


def _models(record: Record) -> Iterator[Check]:
    for model in filter(None, (record.target, record.drafter)):
        bits = model.tensor_bytes * 8 / model.n_params
        ok = model.tensor_bytes <= model.file_bytes and model.n_experts_used <= model.n_experts
        if model.name == models.MEMBER.rsplit("/", 1)[-1].removesuffix(".gguf"):
            ok = ok and model.sha256 == models.SHA256
        yield _check(
            "model file", ok and 1.0 <= bits <= 34, f"{model.name}: {bits:.1f} bits a weight"
        )


def _times(record: Record) -> Iterator[Check]:
    bad = [s for s in record.samples if s.outcome == "ok" and not _possible(s)]
    total = sum(s.wall_s for s in record.samples)
    in_order = sorted(record.samples, key=lambda s: s.position)
    rising = all(a.at_s <= b.at_s for a, b in pairwise(in_order))
    ok = not bad and total <= record.run.duration_s * 1.05 + 1 and rising
    yield _check("times", ok, f"{len(bad)} samples with impossible times; {total:.0f} s in all")


def _possible(s: Sample) -> bool:
    told = s.speculation
    inside = (told.draft_s or 0) + (told.verify_s or 0) + (told.overhead_s or 0) if told else 0
    longest = max(s.first_token_s + s.decode_s, s.server_decode_s or 0, inside)
    return longest <= s.wall_s + 0.05 * s.wall_s + 0.05


def _counts(record: Record) -> Iterator[Check]:
    bad = 0
    for s in record.samples:
        told = s.speculation
        bad += s.n_tokens > record.suite.max_tokens
        if told is not None and s.outcome == "ok":
            bad += told.accepted > told.drafted or told.accepted > s.n_tokens
            bad += any(a > t for a, t in zip(told.accepted_at, told.tried_at, strict=False))
    yield _check("counts", not bad, f"{bad} samples with impossible counts")


# -- physics ----------------------------------------------------------------------------------


def _bandwidth(record: Record) -> Iterator[Check]:
    """Plain decoding reads the weights once a token: no faster than memory lets it."""
    speeds = (c.baseline_tokens_per_second for c in record.comparisons)
    speed = next((s for s in speeds if s is not None), None)
    model, machine = record.target, record.machine
    on_cpu = not machine.gpus or (record.baseline.device or "").startswith("CPU")
    nominal = [gpu.nominal_bandwidth or 0.0 for gpu in machine.gpus]
    of_cards = sum(nominal) if all(nominal) else None
    ceiling = machine.memory_bandwidth if on_cpu else of_cards
    if speed is None or model is None or record.baseline.speculates:
        yield _check("bandwidth", None, "no plain speed or no model file to judge by")
    elif not ceiling:
        yield _check("bandwidth", None, "the bandwidth of this device is not known")
    elif on_cpu and machine.cache_bytes and model.tensor_bytes <= machine.cache_bytes:
        yield _check("bandwidth", None, "the model fits into the CPU's cache")
    else:
        share = model.n_experts_used / model.n_experts if model.n_experts else 1.0
        needed = speed * model.tensor_bytes * READ_SHARE * share
        text = f"plain decoding reads at least {needed / 1e9:.1f} GB/s of {ceiling / 1e9:.1f}"
        yield _check("bandwidth", needed <= ceiling * MARGIN, text)


def _speculation(record: Record) -> Iterator[Check]:
    """Who is faster has drafted; and a round takes at least one plain step, so there is no
    speed-up beyond the tokens a round makes."""
    base = record.baseline
    for comparison in record.comparisons:
        arm, taken = record.arm(comparison.candidate), comparison.acceptance
        if taken is None:
            continue
        if arm.speculates:
            text = f"{arm.name} drafted {taken.counts.drafted} tokens"
            yield _check(
                "drafted", taken.counts.drafted > 0 or comparison.verdict != "faster", text
            )
        alike = (arm.kind, arm.build, arm.device) == (base.kind, base.build, base.device)
        if comparison.speedup is not None and alike:
            ratio, length = comparison.speedup.ratio, taken.acceptance_length
            text = f"{arm.name}: {ratio:.2f}x with {length:.2f} tokens a round"
            yield _check("speed-up", ratio <= length * MARGIN, text)

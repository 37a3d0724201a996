"""Each lie about a result is caught by the check meant for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parlay.bench.compare import compare_all
from parlay.bench.plausibility import check, failed
from parlay.bench.record import Record
from tests.results import made


def with_samples(change: Callable[[Any], dict[str, Any]], arm: str | None = None) -> Record:
    record = made.record()
    samples = [
        s.model_copy(update=change(s)) if arm in (None, s.arm) else s for s in record.samples
    ]
    return record.model_copy(update={"samples": samples})


def faster(s: Any) -> dict[str, Any]:
    decode = s.decode_s / 4
    return {"decode_s": decode, "server_decode_s": decode, "wall_s": 0.2 + decode,
            "speculation": s.speculation.model_copy(
                update={"draft_s": 0.0, "verify_s": decode, "overhead_s": 0.0})}  # fmt: skip


def names(record: Record) -> set[str]:
    return {c.name for c in failed(record)}


def test_an_honest_record_fails_nothing() -> None:
    assert failed(made.record()) == []
    assert failed(made.record(gpu=True, ratio=0.7)) == []


def test_a_left_out_sample_is_missed() -> None:
    record = made.record()
    assert "complete" in names(record.model_copy(update={"samples": record.samples[:-1]}))


def test_a_sample_counted_twice_is_seen() -> None:
    record = made.record()
    doubled = record.model_copy(update={"samples": [*record.samples, record.samples[0]]})
    assert "complete" in names(doubled)


def test_figures_that_do_not_follow_from_the_samples_are_seen() -> None:
    record = made.record()
    c = record.comparisons[0]
    assert c.speedup is not None
    better = c.model_copy(update={"speedup": c.speedup.model_copy(update={"ratio": 1.8})})
    assert names(record.model_copy(update={"comparisons": [better]})) >= {"figures"}


def test_a_verdict_of_ones_own_is_seen() -> None:
    record = made.record(ratio=0.8)
    c = record.comparisons[0].model_copy(update={"verdict": "faster"})
    assert "figures" in names(record.model_copy(update={"comparisons": [c]}))


def recompared(record: Record) -> Record:
    """With figures that do follow from the samples: a careful liar."""
    arms = [arm.name for arm in record.arms]
    comparisons = compare_all(record.samples, arms, record.suite.categories)
    return record.model_copy(update={"comparisons": comparisons})


def test_more_speed_than_tokens_a_round_is_impossible() -> None:
    assert "speed-up" in names(recompared(with_samples(faster, "suffix")))


def test_plain_decoding_beyond_the_memory_is_impossible() -> None:
    lie = recompared(with_samples(faster))
    slow = made.MACHINE.model_copy(update={"memory_bandwidth": 50e9})
    assert "bandwidth" in names(lie.model_copy(update={"machine": slow}))


def test_a_model_inside_the_cache_is_not_judged_by_memory() -> None:
    record = made.record()
    big = made.MACHINE.model_copy(update={"cache_bytes": 4 << 30, "memory_bandwidth": 1e9})
    found = {c.name: c.ok for c in check(record.model_copy(update={"machine": big}))}
    assert found["bandwidth"] is None


def test_a_mixture_of_experts_reads_only_those_it_uses() -> None:
    record = made.record()
    slow = made.MACHINE.model_copy(update={"memory_bandwidth": 10e9})
    moe = made.TARGET.model_copy(update={"n_experts": 64, "n_experts_used": 8})
    dense = record.model_copy(update={"machine": slow})
    assert "bandwidth" in names(dense)
    assert "bandwidth" not in names(dense.model_copy(update={"target": moe}))


def test_a_speed_up_without_a_single_draft_is_impossible() -> None:
    def no_drafts(s: Any) -> dict[str, Any]:
        told = s.speculation.model_copy(
            update={"drafted": 0, "accepted": 0, "rounds": s.n_tokens, "tried_at": [],
                    "accepted_at": []})  # fmt: skip
        return {"speculation": told}

    assert names(recompared(with_samples(no_drafts, "suffix"))) >= {"drafted", "speed-up"}


def test_parts_longer_than_the_whole_are_impossible() -> None:
    assert "times" in names(with_samples(lambda s: {"first_token_s": s.wall_s * 2}))


def test_more_samples_than_the_run_had_time_for_are_impossible() -> None:
    record = made.record()
    run = record.run.model_copy(update={"duration_s": 10.0})
    assert "times" in names(record.model_copy(update={"run": run}))


def test_more_accepted_than_drafted_is_impossible() -> None:
    def more(s: Any) -> dict[str, Any]:
        return {"speculation": s.speculation.model_copy(update={"accepted": s.n_tokens})}

    assert "counts" in names(with_samples(more, "suffix"))


def test_more_tokens_than_allowed_are_impossible() -> None:
    assert "counts" in names(with_samples(lambda s: {"n_tokens": 300}))


def test_other_prompts_under_a_known_name_are_seen() -> None:
    record = made.record()
    suite = record.suite.model_copy(update={"sha256": "0" * 64})
    assert "suite" in names(record.model_copy(update={"suite": suite}))


def test_a_suite_cut_short_is_seen() -> None:
    record = made.record()
    kept = {p: c for p, c in record.suite.categories.items() if c == "math"}
    samples = [s for s in record.samples if s.prompt in kept]
    suite = record.suite.model_copy(update={"categories": kept})
    assert "suite" in names(record.model_copy(update={"suite": suite, "samples": samples}))


@pytest.mark.parametrize(
    "update",
    [
        {"tensor_bytes": 9_000_000_000},
        {"n_params": 10**13},
        {"name": "SmolLM2-135M-Instruct.Q4_1"},
    ],
)
def test_impossible_model_files_are_seen(update: dict[str, Any]) -> None:
    record = made.record()
    target = made.TARGET.model_copy(update=update)
    assert "model file" in names(record.model_copy(update={"target": target}))

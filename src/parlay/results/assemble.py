"""Builds a record from a finished run: figures, warnings, analysis, checks.

Knows the bench's data and the model's file header; asks no subject and shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from parlay import __version__
from parlay.bench.alarms import warnings_of
from parlay.bench.analysis import Costs, analyse
from parlay.bench.comparison import Comparison, Difference, compare
from parlay.bench.machine_facts import Machine
from parlay.bench.runner import Run, RunOptions
from parlay.bench.sample import Sample
from parlay.bench.subjects.subject import ArmInfo
from parlay.bench.suite import Suite
from parlay.llama.facts import read_facts
from parlay.pairing.hashes import sha256_of
from parlay.reading.speculation import pooled
from parlay.results import plausibility
from parlay.results.privacy import scrub_all
from parlay.results.record import Analysis, ModelInfo, Record, RunInfo, SuiteInfo, identify


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, apart from the run itself."""

    suite: Suite
    options: RunOptions
    arms: Mapping[str, ArmInfo]
    machine: Machine
    target: ModelInfo | None = None
    drafter: ModelInfo | None = None
    costs: Costs | None = None
    differences: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    quick: bool = False


def assemble(setting: Setting, run: Run) -> Record:
    """The record of a run."""
    comparisons = compare_all(
        run.samples, setting.arms, _categories(setting.suite), setting.differences
    )
    fields: dict[str, Any] = {
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "parlay": __version__,
        "suite": _suite_info(setting),
        "run": _run_info(setting, run),
        "machine": setting.machine,
        "target": setting.target,
        "drafter": setting.drafter,
        "arms": list(setting.arms.values()),
        "comparisons": comparisons,
        "costs": setting.costs,
        "analyses": _analyses(setting, run.samples, comparisons),
        "warnings": warnings_of(run.samples, setting.arms, setting.machine.n_cores),
        "samples": run.samples,
    }
    draft = Record(id="0" * 16, **fields)
    checked = draft.model_copy(update={"checks": plausibility.check(draft)})
    return finish(checked)


def finish(record: Record) -> Record:
    """Without names and paths, and with the hash it is known by."""
    clean = scrub_all(record.model_dump(mode="json", exclude={"id"}))
    return Record.model_validate({**clean, "id": identify(clean)})


def compare_all(
    samples: Sequence[Sample],
    arms: Mapping[str, ArmInfo],
    categories: Mapping[str, str],
    differences: Mapping[str, Sequence[Difference]],
) -> list[Comparison]:
    """Every arm after the first against the first."""
    baseline, *candidates = arms
    return [
        compare(samples, categories, baseline, name, differences.get(name, ()))
        for name in candidates
    ]


def _categories(suite: Suite) -> dict[str, str]:
    return {prompt.id: prompt.category for prompt in suite.prompts}


def _suite_info(setting: Setting) -> SuiteInfo:
    suite, limit = setting.suite, setting.options.max_tokens
    longest = max(prompt.max_tokens for prompt in suite.prompts)
    return SuiteInfo(
        name=suite.name,
        version=suite.version,
        sha256=suite.sha256,
        categories=_categories(suite),
        temperature=suite.temperature,
        n_context=suite.n_context,
        max_tokens=longest if limit is None else min(limit, longest),
    )


def _run_info(setting: Setting, run: Run) -> RunInfo:
    options = setting.options
    return RunInfo(
        seed=options.seed,
        n_repeats_planned=options.n_repeats,
        n_repeats_done=len({s.repeat for s in run.samples}),
        warm_up=run.shapes,
        cool_down_s=options.cool_down_s,
        time_limit_s=options.time_limit_s,
        duration_s=round(run.duration_s, 3),
        n_sittings=run.n_sittings,
        stopped_early=run.stopped_early,
        quick=setting.quick,
    )


# -- break-even -------------------------------------------------------------------------------


def _analyses(
    setting: Setting, samples: Sequence[Sample], comparisons: Sequence[Comparison]
) -> list[Analysis]:
    if setting.costs is None:
        return []
    found = []
    for c in comparisons:
        if setting.arms[c.candidate].kind != "parlay" or c.acceptance is None:
            continue
        costs = _with_drafter(setting.costs, samples, c.candidate)
        cycle, plain = round_s(samples, c.candidate), round_s(samples, c.baseline)
        told = analyse(costs, c.acceptance, c.speedup, cycle, plain)
        found.append(Analysis(candidate=c.candidate, break_even=told))
    return found


def _with_drafter(costs: Costs, samples: Sequence[Sample], arm: str) -> Costs:
    """What this arm's drafts took: timed whole where only a draft model drafted, else the mean."""
    told = _pooled(samples, arm)
    if told is None or not told.drafted or told.draft_s is None:
        return costs.model_copy(update={"drafts": []})
    per_token = told.draft_s / told.drafted
    drafts = costs.drafts if set(told.proposers) == {"model"} else []
    return costs.model_copy(update={"drafter_s_per_token": per_token, "drafts": drafts})


def round_s(samples: Sequence[Sample], arm: str) -> float | None:
    """Seconds of an average round; the prompt's own token has no round of its own."""
    told = _pooled(samples, arm)
    if told is None or told.rounds is None or told.verify_s is None:
        return None
    n_answers = sum(s.arm == arm and s.outcome == "ok" for s in samples)
    seconds = (told.draft_s or 0.0) + told.verify_s + (told.overhead_s or 0.0)
    return seconds / (told.rounds - n_answers) if told.rounds > n_answers and seconds else None


def _pooled(samples: Sequence[Sample], arm: str) -> Any:
    mine = [s for s in samples if s.arm == arm and s.outcome == "ok"]
    return pooled([s.speculation for s in mine if s.speculation is not None])


# -- model files ------------------------------------------------------------------------------


def model_info(path: Path) -> ModelInfo:
    """A model file by its header and its hash."""
    facts = read_facts(path)
    return ModelInfo(
        name=path.name.removesuffix(".gguf")[:90],
        architecture=facts.architecture,
        file_type=facts.file_type,
        tensor_type=facts.tensor_type,
        n_params=facts.n_params,
        n_experts=facts.n_experts,
        n_experts_used=facts.n_experts_used,
        file_bytes=facts.file_bytes,
        tensor_bytes=facts.tensor_bytes,
        sha256=sha256_of(path),
    )

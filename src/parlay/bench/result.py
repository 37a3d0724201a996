"""A finished run as a record: figures, warnings, checks, without names and paths.

Knows the bench's data and the model file's header; asks no subject and shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from parlay import __version__
from parlay.bench import plausibility
from parlay.bench.compare import compare_all, warnings_of
from parlay.bench.record import ArmInfo, Machine, ModelInfo, Record, RunInfo, SuiteInfo, identify
from parlay.bench.run import Run, RunOptions
from parlay.bench.suite import Suite
from parlay.llama.facts import read_facts
from parlay.pairing.hashes import sha256_of


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, apart from the run itself."""

    suite: Suite
    options: RunOptions
    arms: Mapping[str, ArmInfo]
    machine: Machine
    target: ModelInfo | None = None
    drafter: ModelInfo | None = None
    quick: bool = False


def assemble(setting: Setting, run: Run) -> Record:
    """The record of a run."""
    suite, options = setting.suite, setting.options
    categories = {prompt.id: prompt.category for prompt in suite.prompts}
    longest = max(prompt.max_tokens for prompt in suite.prompts)
    draft = Record(
        id="0" * 16,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        parlay=__version__,
        suite=SuiteInfo(
            name=suite.name,
            version=suite.version,
            sha256=suite.sha256,
            categories=categories,
            temperature=suite.temperature,
            n_context=suite.n_context,
            max_tokens=min(options.max_tokens or longest, longest),
        ),
        run=RunInfo(
            seed=options.seed,
            n_repeats_planned=options.n_repeats,
            n_repeats_done=len({s.repeat for s in run.samples}),
            time_limit_s=options.time_limit_s,
            duration_s=round(run.duration_s, 3),
            n_sittings=run.n_sittings,
            stopped_early=run.stopped_early,
            quick=setting.quick,
        ),
        machine=setting.machine,
        target=setting.target,
        drafter=setting.drafter,
        arms=list(setting.arms.values()),
        comparisons=compare_all(run.samples, setting.arms, categories),
        warnings=warnings_of(run.samples, setting.arms, setting.machine.n_cores),
        samples=run.samples,
    )
    return finish(draft.model_copy(update={"checks": plausibility.check(draft)}))


def finish(record: Record) -> Record:
    """Without names and paths, and with the hash it is known by."""
    clean = scrub(record.model_dump(mode="json", exclude={"id"}))
    return Record.model_validate({**clean, "id": identify(clean)})


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


# -- people are kept out of results -----------------------------------------------------------

# What no figure needs and nobody wants published. Each with the word used in a refusal.
LEAKS: Final = (
    ("a web or network address", re.compile(r"\b[a-z][a-z0-9+.-]*://", re.I)),
    (
        "a path",
        re.compile(r"(?:^|[\s\"'=(:,])(?:~|\.{0,2})/[\w.-]+/[\w./-]*|\b[A-Za-z]:[\\/]|\\\\\w"),
    ),
    ("a mail address", re.compile(r"[\w.+-]+@[\w-]+\.\w+")),
    ("a network address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d+|\blocalhost\b", re.I)),
    ("HTML", re.compile(r"<[/!a-z]", re.I)),
)
_TOKENS: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]*://\S+|(?:~|\.{0,2})/[\w.-]+/[\w./-]*|\b[A-Za-z]:[\\/]\S+|\\\\\S+"
    r"|[\w.+-]+@[\w-]+\.\w+|\b(?:\d{1,3}\.){3}\d{1,3}:\d+|\blocalhost(?::\d+)?",
    re.I,
)
_TAG: Final = re.compile(r"<(?=[/!a-z])", re.I)


def scrub(value: Any) -> Any:
    """JSON values without paths, addresses and hosts; what looks like a tag looks like none."""
    if isinstance(value, str):
        return _TAG.sub(
            "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", _TOKENS.sub("(removed)", value)
        )
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {key: scrub(item) for key, item in value.items()}
    return value


def leaks(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every place inside JSON values that gives something away: (place, what)."""
    if isinstance(value, str):
        found = next((what for what, pattern in LEAKS if pattern.search(value)), None)
        if found:
            yield where, found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaks(item, f"{where}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaks(str(key), f"{where}.{key}"[:80])
            yield from leaks(item, f"{where}.{key}"[:80])

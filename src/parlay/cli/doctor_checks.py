"""The deployment checklist: each item looks at one thing and says what it found and what to do.

Reads the deployment, headers, records and the machine; loads no model and changes nothing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from parlay import store
from parlay.deployment import KEPT_NAMES, Deployment
from parlay.engine.exact.class_calibration import exactness_told
from parlay.engine.start import FREE_PROPOSERS
from parlay.errors import ParlayError
from parlay.hub.resolving import missing_model, resolve_model
from parlay.llama import capture, kernels, library, threads
from parlay.llama.cpu import features, leaves_avx512, may_rearrange
from parlay.llama.facts import read_facts
from parlay.pairing import tokenizer_file
from parlay.pairing.alignment import check_pair
from parlay.pairing.baseline import load_baseline
from parlay.pairing.tokenizer import read_tokenizer
from parlay.parlay import known_draft, named_draft
from parlay.planning.devices import GIB, pools
from parlay.planning.limits import Wanted, engine_contexts, load_list, plan_here, proposals_for
from parlay.planning.needs import Load
from parlay.planning.requests import read_logs
from parlay.planning.workload import MIN_REQUESTS, profile
from parlay.routing import parse_draft
from parlay.server.lifecycle.engine_start import load_settings

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the list."""

    item: str
    status: Status
    found: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """The deployment, and the files it names."""

    deployment: Deployment
    target: Path
    drafter: Path | None


MIN_CYCLES = 100
MIN_DISK = GIB
_DAY = 86400.0
# Where windows are chosen by time, a share of plain rounds tells nothing: most may rightly be.
_NO_SHARE = "at no share of plain rounds: unprofitable ones are normal"

Check = Callable[[Patient], Iterator[Finding]]
Examined = TypeVar("Examined")


def examine(deployment: Deployment) -> list[Finding]:
    """Run every check; one that cannot be run is a failure of its item, not of the list."""
    for name in (deployment.model.target, *parse_draft(deployment.model.drafter)):
        if name not in KEPT_NAMES and (missing := missing_model(name)) is not None:
            told = f"{missing} is not on this machine"
            return [Finding("files", "fail", told, f"parlay pull {missing}")]
    try:
        target = resolve_model(deployment.model.target)
    except ParlayError as error:
        return [Finding("files", "fail", error.message, "name a GGUF file")]
    named = deployment.model.drafter
    draft = known_draft(target) if named == "auto" else named_draft(named)
    names = [n for n in draft if n not in FREE_PROPOSERS]
    patient = Patient(deployment, target, Path(names[0]) if names else None)
    return [
        finding for item, check in CHECKS.items() for finding in run_check(item, check, patient)
    ]


def run_check(
    item: str, check: Callable[[Examined], Iterator[Finding]], patient: Examined
) -> list[Finding]:
    """One item's findings; an error is one of them."""
    try:
        return list(check(patient))
    except ParlayError as error:
        return [Finding(item, "fail", error.message, "repair this first")]
    except OSError as error:
        name = Path(str(error.filename)).name
        return [Finding(item, "fail", f"{name}: {error.strerror}", "repair this first")]


# -- models -------------------------------------------------------------------


def _memory(patient: Patient) -> Iterator[Finding]:
    plan = plan_here(_loads(patient), budget_gb=patient.deployment.runtime.vram_budget_gb)
    where, needed, free = (
        ("on the GPU", plan.on_gpu, plan.gpu_free)
        if plan.on_gpu
        else ("in RAM", plan.in_ram, plan.ram_free)
    )
    found = f"{plan.verdict}: {needed / GIB:.2f} of {free / GIB:.2f} GB {where}"
    if plan.verdict == "fits":
        unlimited = plan.budget is None
        todo = "set runtime.vram_budget_gb, so that nothing else is crowded out"
        yield Finding("memory", "warn" if unlimited else "ok", found, todo if unlimited else "")
        return
    options = [proposal.option for proposal in proposals_for(plan)]
    yield Finding("memory", "fail", found, f"try {' or '.join(options) or 'a smaller model'}")


def _loads(patient: Patient) -> list[Load]:
    runtime = patient.deployment.runtime
    drafter_types = runtime.drafter_cache_type_k, runtime.drafter_cache_type_v
    # Threads are a finding of their own.
    given = replace(load_settings(patient.deployment), threads=1)
    context, own = engine_contexts(given.context, runtime.fixed_window, drafter_types)
    settings = given.model
    drafter_settings = settings.for_drafter(runtime.drafter_gpu_layers)
    drafter = patient.drafter
    return load_list(
        Wanted(patient.target, settings, context),
        [] if drafter is None else [Wanted(drafter, drafter_settings, own)],
    )


def _tokenizer(patient: Patient) -> Iterator[Finding]:
    given = patient.deployment.model.tokenizer
    if given is not None:
        difference = tokenizer_file.difference(Path(given), read_tokenizer(patient.target))
        if difference is not None:
            todo = "leave model.tokenizer out: the target's own is used"
            yield Finding("tokenizer", "fail", difference, todo)
            return
    if patient.drafter is None:
        yield Finding("tokenizer", "ok", "no draft model, so none to align")
        return
    alignment = check_pair(patient.target, patient.drafter)
    details = "; ".join(f"{d.what}: {d.detail}" for d in alignment.differences)
    found = f"{alignment.verdict}{f' ({details})' if details else ''}"
    good = alignment.verdict != "incompatible"
    todo = "" if good else "use a drafter of the same family, or model.drafter: suffix"
    yield Finding("tokenizer", "ok" if good else "fail", found, todo)


def _baseline(patient: Patient) -> Iterator[Finding]:
    drafter = patient.drafter
    if drafter is None:
        yield Finding("acceptance baseline", "ok", "no draft model: nothing to measure ahead")
        return
    files = shlex.join([str(patient.target), str(drafter)])
    todo = f"run parlay pair check {files} --measure --cycles 100"
    known = load_baseline(patient.target, drafter)
    if known is None:
        yield Finding("acceptance baseline", "warn", "none for exactly these files", todo)
        return
    age = (time.time() - known.measured_at) / _DAY
    found = f"{known.cycles} cycles, {known.token_acceptance:.0%} accepted, {age:.0f} days old"
    newest = max(path.stat().st_mtime for path in (patient.target, drafter))
    if known.cycles < MIN_CYCLES:
        yield Finding("acceptance baseline", "warn", found, todo)
    elif known.measured_at < newest:
        yield Finding("acceptance baseline", "warn", f"{found}; the files are newer", todo)
    else:
        worth = known.best_window > 0
        hint = "no window pays on this machine: use model.drafter: suffix"
        yield Finding(
            "acceptance baseline", "ok" if worth else "warn", found, "" if worth else hint
        )


# -- settings -----------------------------------------------------------------


def _thresholds(patient: Patient) -> Iterator[Finding]:
    runtime = patient.deployment.runtime
    token, whole = runtime.min_token_acceptance, runtime.min_sequence_acceptance
    if token is None and whole is None and runtime.adaptive:
        yield Finding("thresholds", "ok", "none set: every round is weighed by measured time")
        return
    if token is None and whole is None:
        todo = "set runtime.min_token_acceptance, such as 0.4"
        yield Finding("thresholds", "warn", "no acceptance is too low", todo)
        return
    found = f"token acceptance {token}, sequence acceptance {whole}"
    k = runtime.fixed_window
    # At acceptance a the whole draft of k tokens is accepted with a^k: a gate on whole drafts
    # shuts long before one on tokens does.
    if whole and k > 1 and whole > 0.9**k:
        todo = (
            f"at a window of {k} even 90 % token acceptance gives {0.9**k:.0%} whole drafts;"
            " lower min_sequence_acceptance or leave it out"
        )
        yield Finding("thresholds", "warn", found, todo)
    elif token is not None and not 0.05 <= token <= 0.95:
        yield Finding("thresholds", "fail", found, "a useful minimum is between 0.05 and 0.95")
    else:
        yield Finding("thresholds", "ok", found)


def _workload(patient: Patient) -> Iterator[Finding]:
    yield from workload(patient.deployment)


def workload(deployment: Deployment) -> Iterator[Finding]:
    """What the request log says of those who ask."""
    path = deployment.monitoring.request_log
    if path is None:
        todo = "set monitoring.request_log, then run parlay profile"
        yield Finding("workload", "warn", "unknown: no request log is kept", todo)
        return
    log = Path(path)
    requests = read_logs([log]).requests if log.is_file() else ()
    if len(requests) < MIN_REQUESTS:
        todo = "serve for a while, then run parlay profile"
        yield Finding("workload", "warn", f"{len(requests)} requests logged so far", todo)
        return
    losing = [route.name for route in profile(requests) if route.advice == "plain"]
    found = f"{len(requests)} requests logged"
    if losing:
        todo = f"parlay profile has rules for: {', '.join(losing)}"
        yield Finding("workload", "warn", f"{found}; speculation gains nothing on some", todo)
    else:
        yield Finding("workload", "ok", found)


def _reasoning(patient: Patient) -> Iterator[Finding]:
    template = read_facts(patient.target).chat_template or ""
    thinks = "<think" in template or "reasoning_content" in template
    rule = next((r for r in patient.deployment.routes if r.when.reasoning), None)
    if rule is not None:
        how = f"{rule.policy}{', unless measured to gain' if rule.auto else ''}"
        yield Finding("reasoning policy", "ok", f"rule {rule.name}: {how}")
    elif thinks:
        todo = "add a routes: rule with when: {reasoning: true}"
        yield Finding("reasoning policy", "warn", "the target reasons and no rule says how", todo)
    else:
        yield Finding("reasoning policy", "ok", "none needed: the target does not reason")


def _alerts(patient: Patient) -> Iterator[Finding]:
    monitoring, runtime = patient.deployment.monitoring, patient.deployment.runtime
    limit = runtime.fallback_threshold_pct
    if limit is None and not runtime.adaptive:
        todo = "set runtime.fallback_threshold_pct, such as 15"
        yield Finding("fallback alert", "warn", "no share of fallbacks is too high", todo)
        return
    found = _NO_SHARE if limit is None else f"at {limit:g} %"
    if not monitoring.alert_on_acceptance_drop:
        todo = "set monitoring.alert_on_acceptance_drop: true"
        yield Finding("fallback alert", "warn", f"{found}; drops are not told", todo)
    else:
        yield Finding("fallback alert", "ok", f"on a drop of acceptance, and {found}")


def _cache(patient: Patient) -> Iterator[Finding]:
    runtime, every = patient.deployment.runtime, patient.deployment.monitoring
    trained = int(read_facts(patient.target).n_ctx_train * (runtime.rope_scale or 1))
    found = (
        f"context {runtime.context_size} of {trained} trained, when full: {runtime.context_full}"
    )
    if runtime.context_size != "auto" and runtime.context_size > trained:
        yield Finding("cache", "fail", found, f"lower runtime.context_size to {trained}")
    elif every.cache_compaction_interval == 0 and runtime.context_full == "slide":
        todo = "set monitoring.cache_compaction_interval, such as 8192"
        yield Finding("cache", "warn", f"{found}, never compacted", todo)
    else:
        yield Finding("cache", "ok", found)


# -- the machine --------------------------------------------------------------


def _disk(patient: Patient) -> Iterator[Finding]:
    log = patient.deployment.monitoring.request_log
    places = {store.cache_folder(), *([Path(log).parent] if log else [])}
    yield from map(room, sorted(places))


def room(place: Path) -> Finding:
    """Where something is written."""
    there = next(p for p in (place, *place.parents) if p.exists())
    free = shutil.disk_usage(there).free
    low = free < MIN_DISK
    todo = "make room: logs and caches need it" if low else ""
    return Finding("disk", "fail" if low else "ok", f"{free / GIB:.1f} GB free", todo)


def _threads(patient: Patient) -> Iterator[Finding]:
    cores, wanted = library.default_threads(), patient.deployment.runtime.threads
    if wanted > cores:
        todo = f"llama.cpp's threads spin: set runtime.threads to {cores} or 0"
        yield Finding("threads", "fail", f"{wanted} threads on {cores} cores", todo)
        return
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = load > cores / 2
    follows = patient.deployment.runtime.follow_load
    hint = "stop other work on these cores" + ("" if follows else ", or set runtime.follow_load")
    todo = hint if busy else ""
    found = f"{wanted or cores} threads on {cores} cores, load {load:.1f}"
    yield Finding("threads", "warn" if busy else "ok", found, todo)


def _gpu(patient: Patient) -> Iterator[Finding]:
    found = [pool for pool in pools() if pool.kind != "ram"]
    if not found:
        yield Finding("GPU", "ok", "none: everything runs on the CPU")
        return
    for pool in found:
        others = pool.n_processes
        todo = "stop them, or set runtime.vram_budget_gb" if others else ""
        said = f"{pool.name}: {pool.free / GIB:.1f} GB free, {others} other processes"
        yield Finding("GPU", "warn" if others else "ok", said, todo)


# What an engine may lack, and whether it does.
_OPTIONAL: dict[str, Callable[[], bool]] = {
    "states for drafters that read them": capture.can_read,
    "a choice of kernels that agree to the bit": kernels.can_choose,
    "threads that sleep beside other work": threads.can_sleep,
}


def _engine(patient: Patient) -> Iterator[Finding]:
    here = features()
    fast = sorted(here & {"AVX2", "AVX512", "NEON", "SVE", "VSX", "RVV"})
    on_gpu = library.has_gpu()
    devices = ", ".join(device.description for device in library.devices())
    said = f"{library.engine().name}, llama.cpp {library.version()}, on {devices}"
    said += f", kernels: {', '.join(fast) or 'no vector units'}"
    if lacks := [what for what, is_there in _OPTIONAL.items() if not is_there()]:
        said += f"; without {', '.join(lacks)}"
    wants = any(pool.kind != "ram" for pool in pools()) and patient.deployment.runtime.layers
    if wants and not on_gpu:
        todo = "parlay engine build -- with the option for this GPU (docs/how-to/install.md)"
        yield Finding("engine", "fail", f"{said}; a GPU is here that it cannot use", todo)
    elif not fast and not on_gpu:
        yield Finding("engine", "warn", said, "parlay engine fetch, or parlay engine build")
    elif not on_gpu and not may_rearrange():
        todo = "parlay engine build leaves those kernels out"
        said = f"{said}; prompts are read slowly, for its kernels for AMX end the process"
        yield Finding("engine", "warn", said, todo)
    else:
        if leaves_avx512() and not on_gpu:
            said += "; parlay engine fetch brings kernels for AVX-512, which this processor has"
        yield Finding("engine", "ok", said)


def _exactness(patient: Patient) -> Iterator[Finding]:
    """What the last start found; only a start can measure it."""
    if patient.deployment.runtime.mode == "faithful":
        yield Finding("exactness", "ok", "not asked for: the mode is faithful")
        return
    told = exactness_told(patient.target)
    yield Finding("exactness", "ok", told or "not measured yet: the first start does")


CHECKS: dict[str, Check] = {
    "memory": _memory,
    "tokenizer": _tokenizer,
    "thresholds": _thresholds,
    "workload": _workload,
    "reasoning policy": _reasoning,
    "fallback alert": _alerts,
    "cache": _cache,
    "acceptance baseline": _baseline,
    "disk": _disk,
    "threads": _threads,
    "GPU": _gpu,
    "engine": _engine,
    "exactness": _exactness,
}

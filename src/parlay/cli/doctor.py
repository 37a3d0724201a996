"""`parlay doctor`: the deployment checklist, run: each item looks at one thing and says what it
found and what to do.

Reads the deployment, headers, hashes and the machine, and asks remote servers how they are; loads
no model and changes nothing but, with --record, the manifest of pairs.
"""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import httpx
import typer
from rich.console import Console
from rich.text import Text

from parlay import store
from parlay.cli.common import Draft, Json, Set, deployment_of, described, keys, settings
from parlay.cli.plan import plan_of
from parlay.cli.serve import deployment_file
from parlay.deployment import KEPT_NAMES, Deployment
from parlay.engine.exact.choice import exactness_told
from parlay.engine.start import FREE_PROPOSERS
from parlay.errors import BadRequest, ParlayError
from parlay.front.browsers import is_loopback
from parlay.front.gate import Keys, check_bind
from parlay.front.remote.server import key_headers
from parlay.hub.resolving import missing_model, resolve_model
from parlay.llama import capture, kernels, library, threads
from parlay.llama.cpu import features, leaves_avx512, may_rearrange
from parlay.llama.facts import read_facts
from parlay.pairing import tokenizer_file
from parlay.pairing.alignment import check_pair
from parlay.pairing.manifest import all_pairs
from parlay.pairing.records import record, verify
from parlay.pairing.tokenizer import read_tokenizer
from parlay.parlay import known_draft, named_draft
from parlay.planning.devices import GIB, pools
from parlay.planning.limits import proposals_for, usable_pools
from parlay.planning.workload import MIN_REQUESTS, profile, read_logs
from parlay.reading import counters
from parlay.routing import parse_draft

EXAMPLE = """
Example: parlay doctor speculative-deploy.yaml --junit doctor.xml

Example: parlay doctor target.gguf --draft drafter.gguf --record

No model is loaded; with engine: endpoints each server is asked how it is. --record writes a pair
that fits into your manifest, where --draft auto finds it.
Exit code 0: nothing fails (warnings may be shown); 1: something does.
"""
Status = Literal["ok", "warn", "fail"]
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_ASK_S = 5.0


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


Check = Callable[[Patient], Iterator[Finding]]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", help=described("Is it set up well? A checklist.", EXAMPLE))(doctor)


def doctor(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[DEPLOYMENT|MODEL]", help="speculative-deploy.yaml, or a model."),
    ] = None,
    draft: Draft = None,
    is_recorded: Annotated[
        bool, typer.Option("--record", help="Keep the pair, if it fits.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit file for CI.")] = None,
    set_key: Set = None,
    json_output: Json = False,
) -> None:
    """Examine a deployment."""
    file = deployment_file(what)
    given = keys(model=what if file is None else None, draft=draft) | settings(set_key)
    deployment = deployment_of(given, file)
    remote = deployment.engine == "endpoints"
    findings = list(_remote(deployment)) if remote else _examine(deployment, is_recorded)
    failed = sum(finding.status == "fail" for finding in findings)
    if junit is not None:
        try:
            junit.write_text(junit_xml(findings), "utf-8")
        except OSError as error:
            raise BadRequest(f"{junit} cannot be written ({error.strerror})") from None
    if json_output:
        rows = [asdict(finding) for finding in findings]
        typer.echo(json.dumps({"ok": not failed, "findings": rows}))
    else:
        out = Console(highlight=False)
        for finding in findings:
            line = Text(f"{finding.status:5}", style=_COLOURS[finding.status])
            line.append(f"{finding.item:17} ", style="bold")
            line.append(finding.found, style="default")
            out.print(line, soft_wrap=True)
            if finding.todo:
                out.print(Text(f"     {'':17} {finding.todo}", style="dim"), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def junit_xml(findings: Sequence[Finding]) -> str:
    """One test case for each finding; warnings pass, with what to do as their output."""
    failures = sum(finding.status == "fail" for finding in findings)
    counts = {"name": "parlay doctor", "tests": str(len(findings)), "failures": str(failures)}
    suite = ET.Element("testsuite", counts)
    for finding in findings:
        case = ET.SubElement(suite, "testcase", classname="parlay.doctor", name=finding.item)
        text = f"{finding.found}. {finding.todo}" if finding.todo else finding.found
        # XML knows no control characters, however they are written.
        text = "".join(c if c.isprintable() else "?" for c in text)
        if finding.status == "fail":
            ET.SubElement(case, "failure", message=text)
        else:
            ET.SubElement(case, "system-out").text = f"{finding.status}: {text}"
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _examine(deployment: Deployment, is_recorded: bool) -> list[Finding]:
    """Run every check; one that cannot be run is a failure of its item, not of the list."""
    for name in (deployment.model.target, *parse_draft(deployment.model.drafter)):
        if name not in KEPT_NAMES and (missing := missing_model(name)) is not None:
            return [Finding("files", "fail", f"{missing} is not here", f"parlay pull {missing}")]
    try:
        target = resolve_model(deployment.model.target)
    except ParlayError as error:
        return [Finding("files", "fail", error.message, "name a GGUF file")]
    named = deployment.model.drafter
    draft = known_draft(target) if named == "auto" else named_draft(named)
    files = [Path(name) for name in draft if name not in FREE_PROPOSERS]
    patient = Patient(deployment, target, files[0] if files else None)
    found: list[Finding] = []
    for item, check in CHECKS.items():
        try:
            found += check(patient)
        except ParlayError as error:
            found.append(Finding(item, "fail", error.message, "repair this first"))
        except OSError as error:
            said = f"{Path(str(error.filename)).name}: {error.strerror}"
            found.append(Finding(item, "fail", said, "repair this first"))
    if is_recorded and patient.drafter is not None:
        alignment = check_pair(target, patient.drafter)
        if alignment.verdict != "incompatible":
            pair = record(target, patient.drafter, alignment, "parlay doctor")
            found.append(Finding("pair", "ok", f"recorded: {pair.name}"))
    return found


# -- models -----------------------------------------------------------------------------------


def _memory(patient: Patient) -> Iterator[Finding]:
    # Threads are a finding of their own.
    runtime = patient.deployment.runtime.model_copy(update={"threads": 0})
    deployment = patient.deployment.model_copy(update={"runtime": runtime})
    plan = plan_of(deployment, usable_pools(), drafts=True)
    where, needed, free = ("in RAM", plan.in_ram, plan.ram_free)
    if plan.on_gpu:
        where, needed, free = ("on the GPU", plan.on_gpu, plan.gpu_free)
    found = f"{plan.verdict}: {needed / GIB:.2f} of {free / GIB:.2f} GB {where}"
    if plan.verdict != "fits":
        options = [proposal.option for proposal in proposals_for(plan)]
        yield Finding("memory", "fail", found, f"try {' or '.join(options) or 'a smaller model'}")
    elif plan.budget is None:
        todo = "set runtime.vram_budget_gb, so that nothing else is crowded out"
        yield Finding("memory", "warn", found, todo)
    else:
        yield Finding("memory", "ok", found)


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
    if alignment.verdict != "incompatible":
        yield Finding("tokenizer", "ok", found)
    elif patient.deployment.runtime.translate:
        yield Finding("tokenizer", "ok", f"{found}; it drafts through text")
    else:
        todo = "use a drafter of the same family, model.drafter: suffix, or runtime.translate"
        yield Finding("tokenizer", "fail", found, todo)


def _pairs(patient: Patient) -> Iterator[Finding]:
    """Every recorded file, hashed again."""
    verified = verify(all_pairs())
    changed = [v for v in verified if v.problem is not None]
    for item in changed:
        todo = "record the pair again: parlay doctor TARGET --draft DRAFTER --record"
        yield Finding("pairs", "warn", f"{item.member.name} {item.problem}", todo)
    if not changed:
        yield Finding("pairs", "ok", f"{len(verified)} recorded files have their hashes")


def _reasoning(patient: Patient) -> Iterator[Finding]:
    template = read_facts(patient.target).chat_template or ""
    rule = next((r for r in patient.deployment.routes if r.when.reasoning), None)
    if rule is not None:
        how = f"{rule.policy}{', unless measured to gain' if rule.auto else ''}"
        yield Finding("reasoning policy", "ok", f"rule {rule.name}: {how}")
    elif "<think" in template or "reasoning_content" in template:
        todo = "add a routes: rule with when: {reasoning: true}"
        yield Finding("reasoning policy", "warn", "the target reasons and no rule says how", todo)
    else:
        yield Finding("reasoning policy", "ok", "none needed: the target does not reason")


def _exactness(patient: Patient) -> Iterator[Finding]:
    """What the last start found; only a start can measure it."""
    told = exactness_told(patient.target) or "not measured yet: the first start does"
    faithful = patient.deployment.runtime.mode == "faithful"
    yield Finding("exactness", "ok", "not asked for: the mode is faithful" if faithful else told)


# -- settings ---------------------------------------------------------------------------------


def _thresholds(patient: Patient) -> Iterator[Finding]:
    runtime = patient.deployment.runtime
    token, whole, k = (
        runtime.min_token_acceptance,
        runtime.min_sequence_acceptance,
        runtime.fixed_window,
    )
    found = f"token acceptance {token}, sequence acceptance {whole}"
    if token is None and whole is None and runtime.adaptive:
        yield Finding("thresholds", "ok", "none set: every round is weighed by measured time")
    elif token is None and whole is None:
        todo = "set runtime.min_token_acceptance, such as 0.4"
        yield Finding("thresholds", "warn", "no acceptance is too low", todo)
    elif whole and k > 1 and whole > 0.9**k:
        # At acceptance a the whole draft of k tokens is accepted with a^k: a gate on whole drafts
        # shuts long before one on tokens does.
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
    yield _log(patient.deployment)


def _log(deployment: Deployment) -> Finding:
    """What the request log says of those who ask."""
    path = deployment.monitoring.request_log
    if path is None:
        todo = "set monitoring.request_log, then run parlay plan --log"
        return Finding("workload", "warn", "unknown: no request log is kept", todo)
    requests = read_logs([Path(path)]).requests if Path(path).is_file() else ()
    found = f"{len(requests)} requests logged"
    if len(requests) < MIN_REQUESTS:
        return Finding("workload", "warn", found, "serve for a while, then run parlay plan --log")
    losing = [route.name for route in profile(requests) if route.advice == "plain"]
    if losing:
        todo = f"parlay plan --log has rules for: {', '.join(losing)}"
        return Finding("workload", "warn", f"{found}; speculation gains nothing on some", todo)
    return Finding("workload", "ok", found)


def _alerts(patient: Patient) -> Iterator[Finding]:
    monitoring, runtime = patient.deployment.monitoring, patient.deployment.runtime
    limit = runtime.fallback_threshold_pct
    # Where windows are chosen by time, a share of plain rounds tells nothing: most may be right.
    found = "at no share of plain rounds: unprofitable ones are normal"
    found = found if limit is None else f"at {limit:g} %"
    if limit is None and not runtime.adaptive:
        todo = "set runtime.fallback_threshold_pct, such as 15"
        yield Finding("fallback alert", "warn", "no share of fallbacks is too high", todo)
    elif not monitoring.alert_on_acceptance_drop:
        todo = "set monitoring.alert_on_acceptance_drop: true"
        yield Finding("fallback alert", "warn", f"{found}; drops are not told", todo)
    else:
        yield Finding("fallback alert", "ok", f"on a drop of acceptance, and {found}")


def _cache(patient: Patient) -> Iterator[Finding]:
    runtime, every = patient.deployment.runtime, patient.deployment.monitoring
    trained = int(read_facts(patient.target).n_ctx_train * (runtime.llama.rope_scale or 1))
    full, size = runtime.context_full, runtime.context_size
    found = f"context {size} of {trained} trained, when full: {full}"
    if size != "auto" and size > trained:
        yield Finding("cache", "fail", found, f"lower runtime.context_size to {trained}")
    elif every.cache_compaction_interval == 0 and full == "slide":
        todo = "set monitoring.cache_compaction_interval, such as 8192"
        yield Finding("cache", "warn", f"{found}, never compacted", todo)
    else:
        yield Finding("cache", "ok", found)


def _door(patient: Patient) -> Iterator[Finding]:
    yield _address(patient.deployment)


def _address(deployment: Deployment) -> Finding:
    item, host = "keys and address", deployment.server.host
    try:
        found = Keys.of(deployment)
        check_bind(deployment, found)
    except ParlayError as error:
        return Finding(item, "fail", error.message, "parlay serve would not start")
    if found or is_loopback(host):
        told = "with keys" if found else "reached from this machine only"
        return Finding(item, "ok", f"{host}, {told}")
    todo = "set server.api_keys_file unless everyone who reaches it may ask"
    return Finding(item, "warn", f"{host}, open to everyone", todo)


# -- the machine ------------------------------------------------------------------------------


def _disk(patient: Patient) -> Iterator[Finding]:
    log = patient.deployment.monitoring.request_log
    for place in sorted({store.cache_folder(), *([Path(log).parent] if log else [])}):
        there = next(p for p in (place, *place.parents) if p.exists())
        free = shutil.disk_usage(there).free
        todo = "make room: logs and caches need it" if free < GIB else ""
        yield Finding("disk", "fail" if todo else "ok", f"{free / GIB:.1f} GB free", todo)


def _threads(patient: Patient) -> Iterator[Finding]:
    cores, runtime = library.default_threads(), patient.deployment.runtime
    if runtime.threads > cores:
        todo = f"llama.cpp's threads spin: set runtime.threads to {cores} or 0"
        yield Finding("threads", "fail", f"{runtime.threads} threads on {cores} cores", todo)
        return
    load = os.getloadavg()[0]
    todo = ""
    if load > cores / 2:
        more = "" if runtime.follow_load else ", or set runtime.follow_load"
        todo = f"stop other work on these cores{more}"
    found = f"{runtime.threads or cores} threads on {cores} cores, load {load:.1f}"
    yield Finding("threads", "warn" if todo else "ok", found, todo)


def _gpu(patient: Patient) -> Iterator[Finding]:
    found = [pool for pool in pools() if pool.kind != "ram"]
    if not found:
        yield Finding("GPU", "ok", "none: everything runs on the CPU")
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
    fast = sorted(features() & {"AVX2", "AVX512", "NEON", "SVE", "VSX", "RVV"})
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


CHECKS: dict[str, Check] = {
    "memory": _memory,
    "tokenizer": _tokenizer,
    "pairs": _pairs,
    "thresholds": _thresholds,
    "workload": _workload,
    "reasoning policy": _reasoning,
    "fallback alert": _alerts,
    "cache": _cache,
    "keys and address": _door,
    "disk": _disk,
    "threads": _threads,
    "GPU": _gpu,
    "engine": _engine,
    "exactness": _exactness,
}


# -- remote servers ---------------------------------------------------------------------------


def _remote(deployment: Deployment) -> Iterator[Finding]:
    """Each server's health, models and counters; what only its own machine can tell is its own."""
    for pool in deployment.upstreams:
        try:
            headers = key_headers(pool)
        except ParlayError as error:
            todo = f"write the key of {pool.name} into that file; it was not asked without it"
            yield Finding("upstream keys", "fail", error.message, todo)
            continue
        for url in pool.urls:
            with httpx.Client(base_url=url, headers=headers, timeout=_ASK_S) as client:
                yield from _server(client, pool.name, pool.health, pool.model, pool.speculative)
    if len({pool.speculative for pool in deployment.upstreams}) < 2:
        todo = "add a pool of the other kind, so that what speculation gains is measured"
        yield Finding("thresholds", "warn", "every pool is of one kind", todo)
    yield _address(deployment)
    yield _log(deployment)


def _server(
    client: httpx.Client, pool: str, health: str, wanted: str | None, speculates: bool
) -> Iterator[Finding]:
    where = f"{pool}: {str(client.base_url).rstrip('/')}"
    try:
        told, listing = client.get(health), client.get("/v1/models")
        page = client.get("/metrics")
    except httpx.HTTPError as error:
        todo = "start it, or correct upstreams[].urls; a firewall looks alike"
        yield Finding("upstreams", "fail", f"{where} is unreachable ({type(error).__name__})", todo)
        return
    if told.status_code != httpx.codes.OK:
        todo = "correct its api_key_file, upstreams[].urls or health, or look into its log"
        yield Finding("upstreams", "fail", f"{where}{health} answers {told.status_code}", todo)
        return
    yield Finding("upstreams", "ok", f"{where} is well")
    try:
        names = [str(row["id"]) for row in listing.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = []
    if not names or wanted not in (None, *names):
        shown = ", ".join(names[:5]) or "none"
        todo = f"set {pool}'s model to one that it lists, or correct upstreams[].urls"
        yield Finding("models", "fail", f"{where} lists {shown}", todo)
    else:
        yield Finding("models", "ok", f"{where} serves {wanted or names[0]}")
    counted = counters.parse(page.text if page.status_code == httpx.codes.OK else "")
    if counted.drafting and not speculates:
        todo = f"set speculative: true for {pool}, or start it without speculation"
        yield Finding(
            "speculative mark", "fail", f"{where} counts drafts, yet is marked plain", todo
        )
    elif speculates and not counted.speculates and "parlay_" not in page.text:
        todo = "start it with speculation and its metrics page, or mark the pool plain"
        yield Finding("speculative mark", "warn", f"{where} counts no drafts", todo)
    else:
        yield Finding("speculative mark", "ok", f"{where} is as the file says")

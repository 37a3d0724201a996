"""The checklist of a gateway: its servers, address and log; models are the engines' business.

Asks each server for its health, its models and its counters, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from parlay.cli.doctor_checks import Finding, Status, run_check
from parlay.cli.doctor_checks import room as _room
from parlay.cli.doctor_checks import workload as _workload_of
from parlay.deployment import Deployment, DeploymentError
from parlay.front.remote.server import Fetched, key_headers
from parlay.gateway.checks import UpstreamLook, look
from parlay.gateway.in_flight import left_behind
from parlay.web.browsers import is_loopback
from parlay.web.security import Keys, check_bind

MAX_LINES = 20  # of one kind; a fleet that is down is one fault, not thousands
_REFUSED = (401, 403)
# How an engine is made to count drafts, by the name it gives itself.
_COUNTING = {
    "vllm": "start vLLM with --speculative-config (docs/explanation/scale.md),"
    " or mark the pool plain",
    "sglang": "start SGLang with --speculative-algorithm and --enable-metrics, ask it something,"
    " or mark the pool plain",
    "llamacpp": "start llama-server with --metrics and --spec-type, or mark the pool plain",
}
_COUNTING_ANY = "start it with speculation and its metrics page, or mark the pool plain"
# What the local list asks and only an engine's own machine can answer.
ELSEWHERE = {
    "memory": "run parlay plan, or read the engine's log at its start",
    "tokenizer": "run parlay pair check where target and drafter are",
    "cache": "context and its cache are set where the engine is started",
    "acceptance baseline": "run parlay bench --endpoint or parlay ab against the servers",
    "threads": "set where the engine is started",
    "GPU": "look at it where the engine runs",
    "engine": "the engine's own, with its version",
    "exactness": "each engine's own; a Parlay server tells it in every answer",
}


@dataclass(frozen=True, slots=True)
class SeenGateway:
    """The deployment, and what its servers showed; nothing where they could not be asked."""

    deployment: Deployment
    looks: Sequence[UpstreamLook]

    @property
    def well(self) -> list[UpstreamLook]:
        return [seen for seen in self.looks if seen.health.problem is None]

    @property
    def kinds(self) -> set[bool]:
        return {pool.speculative for pool in self.deployment.upstreams}


Check = Callable[[SeenGateway], Iterator[Finding]]


def examine(deployment: Deployment) -> list[Finding]:
    """Run every check; one that cannot be run is a failure of its item, not of the list."""
    keyless = list(_unreadable_keys(deployment))
    gateway = SeenGateway(deployment, [] if keyless else look(deployment))
    found = [f for item, check in CHECKS.items() for f in run_check(item, check, gateway)]
    return [*keyless, *found]


def _unreadable_keys(deployment: Deployment) -> Iterator[Finding]:
    for pool in deployment.upstreams:
        try:
            key_headers(pool)
        except DeploymentError as error:
            todo = f"write the key of {pool.name} into that file; no server was asked without it"
            yield Finding("upstream keys", "fail", error.message, todo)


# -- the servers --------------------------------------------------------------


def _health(gateway: SeenGateway) -> Iterator[Finding]:
    bad = [seen for seen in gateway.looks if seen.health.problem is not None]
    for seen in bad[:MAX_LINES]:
        found = f"{seen.pool.name}: {seen.url}{_path(seen)} {_said(seen.health)}"
        yield Finding("upstreams", "fail", found, _cure(seen))
    if len(bad) > MAX_LINES:
        more = f"{len(bad) - MAX_LINES} more servers fail their check"
        yield Finding("upstreams", "fail", more, "the same holds for them")
    for name, group in groupby(gateway.looks, lambda seen: seen.pool.name):
        states = [seen.health.problem is None for seen in group]
        if all(states):
            yield Finding("upstreams", "ok", f"{name}: {_servers(len(states))} well")


def _path(seen: UpstreamLook) -> str:
    return seen.pool.health if seen.health.status is not None else ""


def _said(page: Fetched) -> str:
    return f"is {page.problem} ({page.detail})" if page.problem == "unreachable" else page.detail


def _cure(seen: UpstreamLook) -> str:
    status = seen.health.status
    if status is None:
        return "start it, or correct upstreams[].urls; a firewall or https for http looks alike"
    if status in _REFUSED:
        return _key_cure(seen)
    if status == 404:
        return "correct upstreams[].urls, or name its health path in upstreams[].health"
    return "look into its log: it is there and says that it is not well"


def _key_cure(seen: UpstreamLook) -> str:
    keyed = bool(key_headers(seen.pool))
    return (
        f"its key was refused: correct {seen.pool.name}'s api_key_file"
        if keyed
        else f"it wants a key: set api_key_file for {seen.pool.name} under upstreams"
    )


def _models(gateway: SeenGateway) -> Iterator[Finding]:
    yield from islice(filter(None, map(_model_problem, gateway.well)), MAX_LINES)
    for name, group in groupby(gateway.well, lambda seen: seen.pool.name):
        pairs = {(s.model.name, s.engine) for s in group if s.model is not None}
        if pairs:
            shown = ", ".join(sorted(f"{m} ({e or 'engine unknown'})" for m, e in pairs))
            yield Finding("models", "ok", f"{name}: {shown}")
    if not gateway.well:
        yield _unasked("models")


def _model_problem(seen: UpstreamLook) -> Finding | None:
    where, wanted = f"{seen.pool.name}: {seen.url}", seen.pool.model
    if seen.listing.status in _REFUSED:
        found = f"{where}/v1/models answers {seen.listing.status}"
        return Finding("models", "fail", found, _key_cure(seen))
    if not seen.models:
        status: Status = "fail" if wanted is None else "warn"
        todo = "is it an OpenAI-compatible server? Correct upstreams[].urls, or set its model"
        return Finding("models", status, f"{where}/v1/models lists none", todo)
    if seen.model is None:
        names = ", ".join(model.name for model in seen.models[:5])
        todo = f"set {seen.pool.name}'s model to one of: {names}"
        return Finding("models", "fail", f"{where} does not list {wanted}", todo)
    return None


def _same_model(gateway: SeenGateway) -> Iterator[Finding]:
    """By what servers tell of it; a name alone is weak, and two names may mean one model."""
    models = [seen.model for seen in gateway.well if seen.model is not None]
    if not models:
        yield _unasked("same model")
        return
    if len(models) == 1:
        yield Finding("same model", "ok", f"{models[0].name}: no other is named")
        return
    told = {key for model in models for key in model.facts}
    values = {key: {m.facts[key] for m in models if key in m.facts} for key in sorted(told)}
    differ = {key: found for key, found in values.items() if len(found) > 1}
    names = {model.name for model in models}
    if differ:
        found = "; ".join(f"{key}: {', '.join(sorted(v))}" for key, v in differ.items())
        todo = "all pools must serve one target with one length: texts change with the pool else"
        yield Finding("same model", "warn", found, todo)
    elif len(names) > 1 and not any(len(found) == 1 for found in values.values()):
        todo = "see that these names mean the same target: texts change with the pool else"
        yield Finding("same model", "warn", f"names: {', '.join(sorted(names))}", todo)
    else:
        same = ", ".join(f"{key} {found.pop()}" for key, found in values.items())
        yield Finding(
            "same model", "ok", f"{', '.join(sorted(names))}{f': {same}' if same else ''}"
        )


def _speculation(gateway: SeenGateway) -> Iterator[Finding]:
    problems = list(filter(None, map(_mark_problem, gateway.well)))
    yield from problems[:MAX_LINES]
    fine = [seen for seen in gateway.well if _mark_problem(seen) is None]
    for name, group in groupby(fine, lambda seen: seen.pool.name):
        yield Finding("speculative mark", "ok", f"{name}: {_counted(list(group))}")
    if not gateway.well:
        yield _unasked("speculative mark")


def _mark_problem(seen: UpstreamLook) -> Finding | None:
    page = seen.counters
    where = f"{seen.pool.name}: {seen.url}/metrics"
    if seen.pool.speculative and not page.speculates and seen.engine != "parlay":
        why = seen.metrics.detail or "counts no drafts"
        todo = _COUNTING.get(seen.engine or "", _COUNTING_ANY)
        return Finding(
            "speculative mark", "warn", f"{where} {why}, yet the file marks it speculative", todo
        )
    # vLLM has these counters only where it speculates.
    bets = page.drafting or (page.speculates and seen.engine == "vllm")
    if bets and not seen.pool.speculative:
        todo = f"set speculative: true for {seen.pool.name}, or start it without speculation"
        return Finding(
            "speculative mark", "fail", f"{where} counts drafts, yet the file marks it plain", todo
        )
    return None


def _counted(group: Sequence[UpstreamLook]) -> str:
    pages = [seen.counters for seen in group]
    if not group[0].pool.speculative:
        return "plain, and no drafts are counted"
    drafted, accepted = (sum(getattr(page, n) for page in pages) for n in ("drafted", "accepted"))
    if drafted:
        return f"{drafted} tokens drafted so far, {accepted / drafted:.0%} accepted"
    lengths = [page.accept_length for page in pages if page.accept_length]
    if lengths:
        return f"{sum(lengths) / len(lengths):.2f} tokens a step lately"
    if all(seen.engine == "parlay" for seen in group):
        return "Parlay tells it with each answer, not on this page"
    return "drafts are counted, none so far"


# -- the address --------------------------------------------------------------


def _door(gateway: SeenGateway) -> Iterator[Finding]:
    server = gateway.deployment.server
    item = "keys and address"
    try:
        keys = Keys.of(gateway.deployment)
        check_bind(gateway.deployment, keys)
    except DeploymentError as error:
        yield Finding(item, "fail", error.message, "parlay serve would not start")
        return
    if keys:
        yield Finding(item, "ok", f"{server.host}, with keys")
    elif is_loopback(server.host):
        yield Finding(item, "ok", f"{server.host}, reached from this machine only")
    else:
        todo = "set server.api_keys_file unless everyone who reaches it may ask"
        yield Finding(item, "warn", f"{server.host}, open to everyone", todo)


def _thresholds(gateway: SeenGateway) -> Iterator[Finding]:
    share = gateway.deployment.gateway.explore_share
    if len(gateway.kinds) < 2:
        kind = "speculative" if True in gateway.kinds else "plain"
        todo = "add a pool of the other kind, so that what speculation gains is measured"
        yield Finding("thresholds", "warn", f"none apply: every pool is {kind}", todo)
    elif not share:
        todo = "set gateway.explore_share, such as 0.05: else the slower side stays unknown"
        yield Finding("thresholds", "warn", "traffic follows time measured once", todo)
    else:
        yield Finding("thresholds", "ok", "none needed: traffic follows measured time per token")


def _unused(gateway: SeenGateway) -> Iterator[Finding]:
    if kept := left_behind(gateway.deployment):
        todo = "set them where the engines are started (parlay deploy render), and leave them out"
        yield Finding("unused keys", "warn", f"without effect here: {kept}", todo)
    else:
        yield Finding("unused keys", "ok", "none")


def _workload(gateway: SeenGateway) -> Iterator[Finding]:
    yield from _workload_of(gateway.deployment)


def _reasoning(gateway: SeenGateway) -> Iterator[Finding]:
    rules = gateway.deployment.routes
    rule = next((r for r in rules if r.when.reasoning), None)
    if rule is None:
        todo = "if the target reasons, add a routes: rule with when: {reasoning: true}"
        yield Finding("reasoning policy", "warn", "no rule says how", todo)
    elif rule.policy == "plain" and not rule.auto and False not in gateway.kinds:
        todo = "add a plain pool, or auto: true to the rule"
        found = f"rule {rule.name} wants plain decoding and no pool is plain"
        yield Finding("reasoning policy", "warn", found, todo)
    else:
        how = f"{rule.policy}{', unless measured to gain' if rule.auto else ''}"
        yield Finding("reasoning policy", "ok", f"rule {rule.name}: {how}")


def _alerts(gateway: SeenGateway) -> Iterator[Finding]:
    if gateway.deployment.monitoring.alert_webhook:
        yield Finding("alerts", "ok", "servers and pools that are out are told to the webhook")
    else:
        todo = "set monitoring.alert_webhook, or watch parlay_upstream_up and parlay_alerts_total"
        yield Finding("alerts", "warn", "servers that are out are told in the log only", todo)


def _disk(gateway: SeenGateway) -> Iterator[Finding]:
    log = gateway.deployment.monitoring.request_log
    if log is None:
        yield Finding("disk", "ok", "nothing is written: no request log is kept")
    else:
        yield _room(Path(log).parent)


def _elsewhere(gateway: SeenGateway) -> Iterator[Finding]:
    for item, hint in ELSEWHERE.items():
        yield Finding(item, "ok", f"the upstreams' business: {hint}")


def _unasked(item: str) -> Finding:
    """The fault itself is another item's."""
    return Finding(item, "warn", "not known: no server tells", "repair upstreams first")


def _servers(n: int) -> str:
    return f"{n} server{'' if n == 1 else 's'}"


CHECKS: dict[str, Check] = {
    "upstreams": _health,
    "models": _models,
    "same model": _same_model,
    "speculative mark": _speculation,
    "keys and address": _door,
    "thresholds": _thresholds,
    "unused keys": _unused,
    "workload": _workload,
    "reasoning policy": _reasoning,
    "alerts": _alerts,
    "disk": _disk,
    "elsewhere": _elsewhere,
}

"""What a tuning leaves behind: a deployment file, an entry in the manifest of pairs, a submission.

Knows those formats; what is in them was measured elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from parlay import store
from parlay.bench.machine_facts import describe
from parlay.bench.runner import Run, RunOptions
from parlay.bench.sample import Sample
from parlay.deployment import load_deployment
from parlay.engine.start import MODEL
from parlay.errors import BadRequest
from parlay.pairing.alignment import check_pair
from parlay.pairing.manifest import Member, Pair, save_pair
from parlay.pairing.records import member, record
from parlay.pairing.tokenizer import read_tokenizer
from parlay.results.assemble import Setting, assemble, model_info
from parlay.results.record import Record as ResultRecord
from parlay.routing import DEFAULT_RULES, Rule
from parlay.tuning.outcome import Outcome
from parlay.tuning.sitting import PLAIN, SittingWay
from parlay.tuning.tuner import MAX_LAPS, Tuner

_WRITTEN = "Written by parlay tune"  # how such a file begins, after its mark


def deployment(target: str, outcome: Outcome) -> dict[str, Any]:
    """The keys that differ from the defaults."""
    content: dict[str, Any] = {
        "model": {"target": target, "drafter": drafter_text(target, outcome.winner, outcome.routes)}
    }
    if outcome.routes:
        rules = [_rule(rule, outcome) for rule in DEFAULT_RULES]
        content["routes"] = [
            rule.model_dump(mode="json", exclude_defaults=True, exclude_none=True) for rule in rules
        ]
    return content


def drafter_text(target: str, winner: SittingWay | None, routes: Any = ()) -> str:
    """`model.drafter`: what the winner needs, and what a route asks for beside it."""
    if winner is None:
        return "none"
    ways = [winner, *(way for way in dict(routes).values() if way is not None)]
    names = dict.fromkeys(name for way in ways for name in way.proposers.split(","))
    file = None
    if winner.drafter is not None:
        file = target if winner.drafter.kind == "head" else winner.drafter.name
    return ",".join(str(file) if name == MODEL else name for name in names)


def _rule(rule: Rule, outcome: Outcome) -> Rule:
    """Every route that drafts says with what: more is loaded than the winner alone needs."""
    if rule.policy == "plain":
        return rule
    way = outcome.routes.get(rule.name, outcome.winner)
    if way is None:
        return rule.model_copy(update={"policy": "plain"})
    return rule.model_copy(update={"draft": way.proposers})


def is_ours(path: Path) -> bool:
    """Whether a deployment was left by an earlier tuning: only those are written over."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(100).startswith(f"# {_WRITTEN}")
    except (OSError, UnicodeDecodeError):
        return False


def write_deployment(path: Path, target: str, outcome: Outcome, about: str) -> None:
    """The file, whole or not at all, read back once to be sure that it can be served."""
    head = "".join(f"# {line}\n" for line in [about, *_table(outcome)])
    text = head + yaml.safe_dump(deployment(target, outcome), sort_keys=False, allow_unicode=True)
    try:
        with store.whole(path) as part:
            part.write_text(text, "utf-8")
            load_deployment(part, environ={})
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror}); choose --out") from None


def _table(outcome: Outcome) -> list[str]:
    lines = []
    for row in outcome.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x [{row.low:.2f}, {row.high:.2f}] "
        lines.append(f"  {row.label}: {ratio}{row.state}")
    return lines


def about(target: str, suite: str, outcome: Outcome) -> str:
    """One line: what was raced, on what, when."""
    day = datetime.now(timezone.utc).date().isoformat()
    return (
        f"{_WRITTEN} on {day}: {Path(target).name} on {suite},"
        f" {outcome.n_prompts} prompts, {outcome.n_tokens} tokens, speed over plain decoding:"
    )


# -- the manifest of pairs --------------------------------------------------------------------


def write_pair(target: Path, winner: SittingWay, notes: str) -> Pair:
    """The winner, to be found by `--draft auto` from now on."""
    if winner.drafter is not None and winner.drafter.kind == "model":
        drafter = winner.drafter.path
        return record(target, drafter, check_pair(target, drafter), notes)
    # Heads use the target's vocabulary, proposers without a file need none.
    own = member(target, read_tokenizer(target).fingerprint)
    drafts = Member(name=winner.proposers)
    if winner.drafter is not None:
        drafts = member(winner.drafter.path, own.tokenizer or "")
    pair = Pair(target=own, drafter=drafts, verdict="compatible", notes=notes)
    save_pair(pair)
    return pair


# -- a result for the map ---------------------------------------------------------------------


def result(tuner: Tuner, winner: SittingWay, target: Path) -> ResultRecord | None:
    """The winner's sitting as a result of the bench; None: not one whole lap was raced."""
    found = next(r for r in tuner.records if winner in r.sitting.ways)
    drafter = winner.drafter
    kept = {PLAIN: found.infos[PLAIN], winner.label: found.infos[winner.label]}
    ran = sorted((s for s in found.samples if s.arm in kept), key=lambda sample: sample.at_s)
    samples = [
        sample.model_copy(update={"position": i})
        for i, sample in enumerate(_whole_laps(ran, len(tuner.workload.suite.prompts) * len(kept)))
    ]
    if not samples:
        return None
    setting = Setting(
        suite=tuner.workload.source,
        options=RunOptions(MAX_LAPS, max_tokens=tuner.n_tokens),
        arms=kept,
        machine=describe(),
        target=model_info(target),
        drafter=None if drafter is None else model_info(drafter.path),
    )
    run = Run(samples, found.file.texts, found.shapes, tuner.spent_s, 1, stopped_early=True)
    return assemble(setting, run)


def _whole_laps(samples: Sequence[Sample], size: int) -> list[Sample]:
    """Without the lap in which the time was over: the map takes whole ones."""
    sizes = Counter(sample.repeat for sample in samples)
    return [sample for sample in samples if sizes[sample.repeat] == size]

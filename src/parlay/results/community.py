"""The community's folder: every file in it read, doubted and compared with the others.

Knows submissions and plausibility; CI runs it over `community/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parlay.results import plausibility
from parlay.results.record import BadResult, ModelInfo, Record, identify
from parlay.results.submission import MAX_BYTES, Submission, parse


@dataclass(frozen=True, slots=True)
class CommunityVerdict:
    """What was found wrong with one file; nothing, if it is fine."""

    file: str
    problems: tuple[str, ...]
    submission: Submission | None = None


def validate(folder: Path) -> list[CommunityVerdict]:
    """Every submission in the folder, those that clash with others included."""
    files = sorted(path for path in folder.rglob("*") if _is_candidate(path))
    verdicts = [validate_file(path) for path in files]
    clashes = _clashes([v for v in verdicts if v.submission is not None])
    return [
        CommunityVerdict(v.file, (*v.problems, *clashes.get(v.file, ())), v.submission)
        for v in verdicts
    ]


def _is_candidate(path: Path) -> bool:
    """Everything but documentation counts as a submission: nothing slips in beside them."""
    return (path.is_file() or path.is_symlink()) and path.suffix != ".md"


def validate_file(path: Path) -> CommunityVerdict:
    """One file by itself."""
    name = path.name
    try:
        made = parse(_read(path), name)
    except BadResult as error:
        return CommunityVerdict(name, (error.message,))
    problems = [p for record in made.results for p in problems_of(record)]
    if path.stem != made.name or path.suffix != ".json":
        problems.append(f"the file must be called {made.name}.json")
    return CommunityVerdict(name, tuple(problems), made)


def _read(path: Path) -> bytes:
    """Never more than the cap, and no link to elsewhere."""
    if path.is_symlink():
        raise BadResult(f"{path.name}: links are not accepted")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise BadResult(f"{path.name}: {size:,} bytes; at most {MAX_BYTES:,} are accepted")
    return path.read_bytes()


def problems_of(record: Record) -> list[str]:
    """Why a result cannot be believed; empty if it can."""
    found = [f"{record.id}: {c.name}: {c.text}" for c in plausibility.failed(record)]
    if identify(record.model_dump(mode="json")) != record.id:
        found.append(f"{record.id}: the contents have been changed since it was made")
    if all(c.speedup is None for c in record.comparisons):
        found.append(f"{record.id}: it has no figure")
    if record.run.quick or record.suite.version is None:
        found.append(f"{record.id}: send a whole run of a built-in suite")
    return found


def _clashes(verdicts: Sequence[CommunityVerdict]) -> dict[str, list[str]]:
    """Results that were sent twice, and model files that are two things at once."""
    found: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    models: dict[str, tuple[int, int]] = {}
    for verdict in verdicts:
        assert verdict.submission is not None
        for record in verdict.submission.results:
            first = seen.setdefault(_fingerprint(record), verdict.file)
            if first != verdict.file or _repeated(verdict.submission, record):
                text = f"{record.id}: the same samples are in {first}"
                found.setdefault(verdict.file, []).append(text)
            for model in _models(record):
                facts = (model.n_params, model.file_bytes)
                if models.setdefault(model.sha256, facts) != facts:
                    text = f"{record.id}: {model.name} has the hash of another file"
                    found.setdefault(verdict.file, []).append(text)
    return found


def _fingerprint(record: Record) -> str:
    """Of the samples alone: a copy with another name or date is still a copy."""
    return identify({"samples": [s.model_dump(mode="json") for s in record.samples]})


def _repeated(submission: Submission, record: Record) -> bool:
    return sum(_fingerprint(r) == _fingerprint(record) for r in submission.results) > 1


def _models(record: Record) -> Iterable[ModelInfo]:
    return (model for model in (record.target, record.drafter) if model is not None)


def load(folder: Path) -> list[Submission]:
    """The submissions that pass; the map shows no others."""
    return [v.submission for v in validate(folder) if v.submission is not None and not v.problems]

"""The community's results: a submission is made, read, doubted and compared with the others.

Knows records and plausibility; sends nothing. `python -m parlay.bench.community FOLDER ...` is the
validator that CI runs over `community/`: a line for each file, exit code 1 if one is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from parlay.bench import plausibility
from parlay.bench.record import LICENCE, BadResult, Record, dump, explain, identify
from parlay.bench.result import leaks
from parlay.reading.bounds import Printable, Strict

MAX_BYTES: Final = 4_000_000
MAX_NOTES: Final = 500

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{2,63}$")]
Notes = Annotated[str, Field(max_length=MAX_NOTES), Printable]


class Submission(Strict):
    """One file of the community's folder; its file is called `name`.json."""

    format: Literal["parlay.submission"] = "parlay.submission"
    version: Literal[1] = 1
    name: Name
    licence: Literal["CC-BY-4.0"] = LICENCE
    notes: Notes = ""
    results: list[Record] = Field(min_length=1, max_length=50)


def build(name: str, notes: str, results: Sequence[Record]) -> Submission:
    """A submission from results; refuses names, notes and sizes that would be refused later."""
    try:
        made = Submission(name=name, notes=notes, results=list(results))
    except ValidationError as error:
        hint = "a name has 3 to 64 of a-z, 0-9 and -, such as rtx4090-ryzen7950x"
        raise BadResult(f"{explain(error)}; {hint}") from error
    size = len(dump(made).encode())
    if size > MAX_BYTES:
        raise BadResult(f"{size:,} bytes; at most {MAX_BYTES:,} are accepted: send fewer results")
    _refuse_leaks(made, "this submission")
    return made


def parse(data: bytes, what: str) -> Submission:
    """Read one; size first, then shape, then what must not be in it."""
    if len(data) > MAX_BYTES:
        raise BadResult(f"{what}: {len(data):,} bytes; at most {MAX_BYTES:,} are accepted")
    try:
        made = Submission.model_validate_json(data)
    except ValidationError as error:
        raise BadResult(f"{what}: {explain(error)}") from error
    except RecursionError as error:
        raise BadResult(f"{what}: nested too deeply") from error
    _refuse_leaks(made, what)
    return made


def _refuse_leaks(made: Submission, what: str) -> None:
    """Names, paths, addresses and HTML have no place in a result."""
    found = next(leaks(made.model_dump(mode="json")), None)
    if found is not None:
        place, kind = found
        raise BadResult(f"{what}: {place.lstrip('.')} holds {kind}; remove it")


def preview(made: Submission) -> list[str]:
    """What will be public, in a few lines."""
    lines = [f"name      {made.name}", f"licence   {made.licence} (CC BY 4.0)"]
    if made.notes:
        lines.append(f"notes     {made.notes}")
    for record in made.results:
        machine, gpus = record.machine, ", ".join(g.name for g in record.machine.gpus) or "no GPU"
        gib = f"{machine.memory_bytes / 2**30:.0f} GiB"
        lines.append(f"result    {record.id}, {record.created}, {record.suite.name}")
        lines.append(f"machine   {machine.cpu}, {gpus}, {gib}, {machine.os}")
        if record.target:
            lines.append(f"target    {record.target.name} ({record.target.sha256[:12]})")
        for c in record.comparisons:
            ratio = f"{c.speedup.ratio:.2f}x" if c.speedup else "no figure"
            lines.append(f"figure    {c.candidate}: {ratio}, {c.verdict}")
    return lines


# -- the folder -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommunityVerdict:
    """What was found wrong with one file; nothing, if it is fine."""

    file: str
    problems: tuple[str, ...]
    submission: Submission | None = None


def validate(folder: Path) -> list[CommunityVerdict]:
    """Every submission in the folder, those that clash with others included."""
    # Everything but documentation counts as a submission: nothing slips in beside them.
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() or p.is_symlink())
    verdicts = [_validate_file(path) for path in files if path.suffix != ".md"]
    clashes = _clashes([v for v in verdicts if v.submission is not None])
    return [replace(v, problems=(*v.problems, *clashes.get(v.file, ()))) for v in verdicts]


def _validate_file(path: Path) -> CommunityVerdict:
    try:
        made = parse(_read(path), path.name)
    except BadResult as error:
        return CommunityVerdict(path.name, (error.message,))
    problems = [p for record in made.results for p in problems_of(record)]
    if path.stem != made.name or path.suffix != ".json":
        problems.append(f"the file must be called {made.name}.json")
    return CommunityVerdict(path.name, tuple(problems), made)


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
        for record in verdict.submission.results if verdict.submission else ():
            # The samples alone: a copy with another name or date is still a copy.
            samples = identify({"samples": [s.model_dump(mode="json") for s in record.samples]})
            if samples in seen:
                text = f"{record.id}: the same samples are in {seen[samples]}"
                found.setdefault(verdict.file, []).append(text)
            seen.setdefault(samples, verdict.file)
            for model in filter(None, (record.target, record.drafter)):
                facts = (model.n_params, model.file_bytes)
                if models.setdefault(model.sha256, facts) != facts:
                    text = f"{record.id}: {model.name} has the hash of another file"
                    found.setdefault(verdict.file, []).append(text)
    return found


def main(folders: list[str]) -> int:
    """Say what was found; 1 if a file is refused."""
    verdicts = [v for folder in folders for v in validate(Path(folder))]
    for verdict in verdicts:
        print(f"{verdict.file}: {'; '.join(verdict.problems) or 'fine'}")
    n_refused = sum(bool(v.problems) for v in verdicts)
    print(f"{len(verdicts)} submission(s), {n_refused} refused")
    return 1 if n_refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A submission: results under one name, in one file, ready to be sent.

Knows records and their bounds; sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from parlay.reading.bounds import Printable, Strict
from parlay.results.privacy import leaks
from parlay.results.record import LICENCE, BadResult, Record, dump, explain

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
    refuse_leaks(made, what)
    return made


def refuse_leaks(made: Submission, what: str) -> None:
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
        lines += _preview(record)
    return lines


def _preview(record: Record) -> list[str]:
    machine: Any = record.machine
    gpus = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU"
    lines = [
        f"result    {record.id}, {record.created}, {record.suite.name}",
        f"machine   {machine.cpu}, {gpus}, {machine.memory_bytes / 2**30:.0f} GiB, {machine.os}",
    ]
    if record.target:
        lines.append(f"target    {record.target.name} ({record.target.sha256[:12]})")
    for c in record.comparisons:
        ratio = f"{c.speedup.ratio:.2f}x" if c.speedup else "no figure"
        lines.append(f"figure    {c.candidate}: {ratio}, {c.verdict}")
    return lines

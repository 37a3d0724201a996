"""The map: where speculation helps and where it hurts, as one page that needs no network.

Knows submissions, and figures that others published (marked as such, with their source); decides
nothing, shows intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from parlay.bench.community import Submission
from parlay.bench.page import escape, page
from parlay.bench.record import Record
from parlay.reading.bounds import Finite, Label, Strict

Row = dict[str, Any]
Text = Annotated[str, Field(max_length=300)]

# Upper bounds in billions of parameters, and what a class is called.
SIZES: Final = (
    (1.0, "under 1B"),
    (4.0, "1B to 4B"),
    (10.0, "4B to 10B"),
    (20.0, "10B to 20B"),
    (40.0, "20B to 40B"),
    (float("inf"), "40B and more"),
)


class ReportedRow(Strict):
    """One published figure; it is compared with nothing and enters no statistic."""

    hardware: Label
    device: Literal["cpu", "gpu"]
    model: Label
    params_b: Annotated[Finite, Field(gt=0, le=100_000)]
    method: Label
    task: Label
    speedup: Annotated[Finite, Field(gt=0, le=1000)]
    baseline: Annotated[Finite, Field(gt=0)] | None = None  # tokens a second
    candidate: Annotated[Finite, Field(gt=0)] | None = None


class Study(Strict):
    """Where figures come from, and how they were made."""

    study: Label
    source: Annotated[str, Field(pattern=r"^https://[\w./-]+$", max_length=200)]
    protocol: Text
    rows: list[ReportedRow]


class Reported(Strict):
    """All of them: the data that comes with the package."""

    about: Text
    studies: list[Study]

    @classmethod
    def shipped(cls) -> Reported:
        return cls.model_validate_json(_asset("reported.json"))


def community_map(submissions: Sequence[Submission], reported: Reported) -> str:
    """The page."""
    rows = [
        *(row for made in submissions for r in made.results for row in _measured(made, r)),
        *_reported(reported),
    ]
    body = _asset("map.html").replace("{about}", escape(reported.about))
    title = "Parlay: where speculative decoding helps"
    return page(title, body, [_asset("map.js")], {"rows": rows}, _asset("map.css"))


def _asset(name: str) -> str:
    return (resources.files("parlay.bench") / "data" / name).read_text("utf-8")


def _measured(submission: Submission, record: Record) -> Iterator[Row]:
    for number, c in enumerate(record.comparisons):
        arm, target = record.arm(c.candidate), record.target
        on_cpu = not record.machine.gpus or (arm.device or "").startswith("CPU")
        common = {
            "layer": "measured",
            "hardware": record.machine.cpu if on_cpu else record.machine.hardware,
            "device": "cpu" if on_cpu else "gpu",
            "model": target.name if target else (arm.model or "unknown"),
            "params_b": round(target.n_params / 1e9, 3) if target else 0.0,
            "method": f"{arm.kind} {arm.method}",
            "source": submission.name,
            "url": "",
        }
        for task, found in [("all", c.speedup), *((p.category, p.speedup) for p in c.by_category)]:
            if found is not None:
                figures = {"ratio": found.ratio, "low": found.low, "high": found.high}
                own = {"id": f"{record.id}-{number}-{task}", "task": task, **figures}
                yield _row({**common, **own, "verdict": found.verdict}, submission.notes)


def _reported(reported: Reported) -> Iterator[Row]:
    rows = [(study, row) for study in reported.studies for row in study.rows]
    for number, (study, row) in enumerate(rows, 1):
        own = {
            "layer": "reported",
            "id": f"reported-{number}",
            "ratio": row.speedup,
            "low": None,
            "high": None,
            # No interval, no verdict: only the sign of what was said.
            "verdict": "faster" if row.speedup > 1 else "slower",
            "source": study.study,
            "url": study.source,
        }
        yield _row(
            row.model_dump(exclude={"speedup", "baseline", "candidate"}) | own, study.protocol
        )


def _row(fields: Row, notes: str) -> Row:
    size = next(name for limit, name in SIZES if fields["params_b"] < limit)
    named = ("hardware", "model", "method", "task", "source")
    words = " ".join([*(str(fields[name]) for name in named), notes]).lower()
    return {**fields, "size": size, "words": words}

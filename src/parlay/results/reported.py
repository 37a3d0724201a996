"""Figures that others published: a layer of the map, marked as such, with their source.

Data only; they are compared with nothing and enter no statistic.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from parlay.reading.bounds import Finite, Label, Strict

Text = Annotated[str, Field(max_length=300)]


class ReportedRow(Strict):
    """One published figure."""

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
    """All of them."""

    about: Text
    studies: list[Study]


def load() -> Reported:
    """The data that comes with the package."""
    file = resources.files("parlay.results") / "data" / "reported.json"
    return Reported.model_validate_json(file.read_bytes())

"""The JSON Schemas of results and submissions, as files in `data`.

Generated from the models; a test holds the files to them.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from parlay.reading.bounds import Strict
from parlay.results.record import Record
from parlay.results.submission import Submission

MODELS: Final[dict[str, type[Strict]]] = {
    "result-1": Record,
    "submission-1": Submission,
}


def generate(name: str) -> dict[str, Any]:
    """The schema of a model."""
    made = MODELS[name].model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def load(name: str) -> dict[str, Any]:
    """The schema that is published."""
    file = resources.files("parlay.results") / "data" / f"{name}.schema.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def text(name: str) -> str:
    """As it is written to its file."""
    return json.dumps(generate(name), indent=1) + "\n"

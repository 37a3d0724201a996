"""The record: strict, versioned, with a published schema, and nobody's name in it."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from parlay.results import schema
from parlay.results.record import BadResult, Record, dump, identify, parse
from tests.results import made


def test_a_record_survives_its_file() -> None:
    found = parse(dump(made.record()).encode())
    assert found == made.record()
    assert identify(found.model_dump(mode="json")) == found.id


def test_every_figure_of_a_consistent_run_is_plausible() -> None:
    record = made.record()
    assert [c for c in record.checks if c.ok is False] == []
    assert {"complete", "suite", "times", "counts", "bandwidth", "speed-up", "explained"} <= {
        c.name for c in record.checks
    }
    assert record.comparisons[0].verdict == "faster"
    assert record.comparisons[0].speedup is not None
    assert record.comparisons[0].speedup.ratio == pytest.approx(1.5, rel=0.03)


def test_differences_carry_the_token_and_the_gap() -> None:
    identity = made.record().comparisons[0].identity
    assert (identity.n_identical, identity.n_compared) == (11, 12)
    [difference] = identity.differences
    assert (difference.prompt, difference.baseline, difference.candidate) == ("code-01", "o", "X")
    assert difference.gap == pytest.approx(0.05)


@pytest.mark.parametrize("name", sorted(schema.MODELS))
def test_published_schema_is_that_of_the_models(name: str) -> None:
    assert schema.load(name) == json.loads(schema.text(name)), (
        "regenerate src/parlay/results/data/*.schema.json"
    )


@pytest.mark.parametrize("name", sorted(schema.MODELS))
def test_schema_admits_no_further_properties_anywhere(name: str) -> None:
    def objects(node: Any) -> list[dict[str, Any]]:
        if isinstance(node, list):
            return [o for item in node for o in objects(item)]
        if not isinstance(node, dict):
            return []
        inner = [o for item in node.values() for o in objects(item)]
        return [node, *inner] if "properties" in node else inner

    found = objects(schema.load(name))
    assert len(found) > 10
    assert all(o.get("additionalProperties") is False for o in found)


def test_a_record_fits_the_published_schema() -> None:
    jsonschema.validate(made.fields(made.record()), schema.load("result-1"))


def test_schema_refuses_what_the_model_refuses() -> None:
    fields = made.fields(made.record())
    fields["samples"][0]["hostname"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fields, schema.load("result-1"))
    with pytest.raises(BadResult, match=r"samples\.0\.hostname"):
        parse(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"format": "parlay.result"}']
)
def test_what_is_no_record_is_refused_on_one_line(data: bytes) -> None:
    with pytest.raises(BadResult) as caught:
        parse(data)
    assert "\n" not in caught.value.message


def test_failures_in_a_run_are_kept_without_paths() -> None:
    record = made.record()
    sample = record.samples[0].model_copy(
        update={"outcome": "error", "error": "cannot open /home/somebody/x.gguf <b>"}
    )
    clean = made.changed(record, samples=[sample, *record.samples[1:]])
    assert clean.samples[0].error is not None
    assert "somebody" not in dump(clean)
    assert "<b" not in clean.samples[0].error


def test_raw_samples_are_kept() -> None:
    record = made.record()
    assert len(record.samples) == 12 * 5 * 2
    assert all(math.isfinite(s.wall_s) for s in record.samples)
    assert Record.model_fields["version"].default == 1

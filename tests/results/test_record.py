"""The record: strict, versioned, with a published schema, and nobody's name in it."""

from __future__ import annotations

import json
import math

import pytest

from parlay.bench.record import BadResult, Record, dump, identify, parse
from tests.results import made


def test_a_record_survives_its_file() -> None:
    found = parse(dump(made.record()).encode())
    assert found == made.record()
    assert identify(found.model_dump(mode="json")) == found.id


def test_every_figure_of_a_consistent_run_is_plausible() -> None:
    record = made.record()
    assert [c for c in record.checks if c.ok is False] == []
    assert {"complete", "suite", "times", "counts", "bandwidth", "speed-up"} <= {
        c.name for c in record.checks
    }
    assert record.comparisons[0].verdict == "faster"
    assert record.comparisons[0].speedup is not None
    assert record.comparisons[0].speedup.ratio == pytest.approx(1.5, rel=0.03)


def test_texts_that_differ_are_named() -> None:
    identity = made.record().comparisons[0].identity
    assert (identity.n_identical, identity.n_compared) == (11, 12)
    assert identity.differing == ["code-01"]


def test_a_field_that_nobody_knows_is_refused_by_its_place() -> None:
    fields = made.fields(made.record())
    fields["samples"][0]["hostname"] = "x"
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

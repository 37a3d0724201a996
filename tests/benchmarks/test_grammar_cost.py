"""The benchmark of a grammar's cost: its examples keep to their schemas, and a short run of it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measurements.grammar_cost import ANSWERS, KINDS, PARTS, Widened, example, measure
from parlay.bench.suite import load_suite
from parlay.llama.vocabulary import open_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"type": "string", "enum": ["a", "b"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def test_an_example_has_every_required_property_of_its_schema() -> None:
    assert example(SCHEMA) == {"name": "a few words of text", "kind": "b"} != example(SCHEMA, 1)
    schemas = [prompt.json_schema for prompt in load_suite("structured-24").prompts]
    assert all(json.dumps(example(schema)) for schema in schemas if schema)


def test_the_widened_vocabulary_costs_a_round_and_writes_texts_as_before(tiny_llama: Path) -> None:
    with open_vocabulary(tiny_llama) as own:
        wide = Widened(own, own.size + 100)
        assert wide.size == own.size + 100
        assert wide.piece(own.size).isalpha() and wide.piece(65) == own.piece(65)
        assert wide.continuation("two words") == own.continuation("two words")
        results = [each for kind in KINDS for each in measure(wide, [SCHEMA], 8, kind)]
    assert [found["answer"] for found in results] == [*ANSWERS] * len(KINDS)
    for found in results:
        assert found["rounds"] > 1
        assert found["us"].keys() == {*PARTS, "read", "round"}
        assert 0 < found["us"]["read"]["p50"] <= found["us"]["read"]["p95"]

"""The benchmark of many streams and deep contexts: its cells, its ratios, and a short run of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.measurements.load import (
    AUTO,
    PEER,
    PLAIN,
    Cell,
    Sample,
    lots,
    main,
    prompt,
    summary,
)

CELL = Cell(4, 500, 96, "chat")


def asked(**changed: object) -> argparse.Namespace:
    given = {"streams": [1, 4, 16], "depths": [500, 7000], "answers": [16, 96, 400]}
    return argparse.Namespace(**{**given, "texts": ["chat", "edit"], **changed})


def test_deep_contexts_are_asked_of_few_slots() -> None:
    (shallow, wide, short), (deep, few, long) = lots(asked())
    assert (wide, few) == (16, 4)
    assert short < 2048 < 8192 < long
    assert {cell.depth for cell in shallow} == {500}
    assert {cell.depth for cell in deep} == {7000}


def test_every_number_of_streams_every_depth_and_every_answer_is_asked_for() -> None:
    cells = [cell for found, _, _ in lots(asked()) for cell in found]
    assert {cell.streams for cell in cells} == {1, 4, 16}
    assert {cell.answer for cell in cells} == {16, 96, 400}
    assert {cell.text for cell in cells} == {"chat", "edit"}


@pytest.mark.parametrize("text", ["chat", "edit", "extract"])
def test_no_two_prompts_begin_alike(text: str) -> None:
    cell = Cell(4, 500, 96, text)
    made = [
        prompt(cell, i, salt, who)
        for i in range(4)
        for salt in range(5)
        for who in ("plain", "controller")
    ]
    assert len({each[:12] for each in made}) == len(made)
    assert all(1_000 < len(each) < 3_000 for each in made)


def sample(subject: str, speed: float, first_ms: float = 10.0) -> Sample:
    return Sample(subject, CELL, speed, speed, first_ms, 5.0, 100.0, 96, 500)


def test_ratios_are_geometric_means_of_neighbours() -> None:
    samples = [
        sample(PLAIN, 100), sample(AUTO, 121), sample(PEER, 50, first_ms=20.0),
        sample(PLAIN, 100), sample(AUTO, 100), sample(PEER, 200, first_ms=5.0),
    ]  # fmt: skip
    [found] = summary(samples)
    assert found["ratios"]["controller over plain"] == pytest.approx(1.1)
    assert found["ratios"]["plain over llama.cpp"] == pytest.approx(1.0)
    assert found["ratios"]["first token over llama.cpp"] == pytest.approx(1.0)


@pytest.mark.weights
def test_a_short_run_answers_every_cell_with_both_of_the_own_subjects(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    sizes = [
        "--streams",
        "1",
        "2",
        "--depths",
        "40",
        "--answers",
        "8",
        "--budget",
        "0",
        "--settle",
        "0",
        "--threads",
        "1",
    ]
    main([*sizes, "--no-peer", "--json", str(out)])
    cells = json.loads(out.read_text())["cells"]
    assert [cell["streams"] for cell in cells] == [1, 2]
    for cell in cells:
        plain, auto = cell["subjects"][PLAIN], cell["subjects"][AUTO]
        assert plain["n_tokens"] == auto["n_tokens"] > 0

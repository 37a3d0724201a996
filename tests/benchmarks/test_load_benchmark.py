"""The benchmark of many streams and deep contexts: its cells, its ratios, and a short run of it."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.measurements import load
from benchmarks.measurements.load import (
    AUTO,
    PEER,
    PLAIN,
    Cell,
    Sample,
    Stream,
    lots,
    main,
    named_cell,
    named_lots,
    prompt,
    summary,
)
from benchmarks.shared.served import Subject

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


def test_cells_can_be_named_and_keep_their_order() -> None:
    cells = [named_cell(text) for text in ("16:500:16:edit", "1:500:400:chat", "2:7000:96:extract")]
    (shallow, wide, _), (deep, few, long) = named_lots(cells)
    assert shallow == cells[:2]
    assert (wide, few) == (16, 2)
    assert deep == [Cell(2, 7000, 96, "extract")]
    assert long > 7000


@pytest.mark.parametrize("text", ["16:500:16", "a:500:16:chat", "1:500:16:poem", "0:500:16:chat"])
def test_a_cell_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="STREAMS:DEPTH"):
        named_cell(text)


def test_every_server_is_woken_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, str]] = []

    async def burst(_client: object, subject: Subject, cell: Cell, salt: int) -> str:
        asked.append((subject.name, cell.answer, prompt(cell, 0, salt)[:12]))
        return subject.name

    monkeypatch.setattr(load, "_burst", burst)
    subjects = [Subject(name, "", {}) for name in (PLAIN, PEER)]
    found = asyncio.run(load._pair(None, subjects, CELL, 7))  # type: ignore[arg-type]
    order = [PLAIN, PEER, PEER, PLAIN]
    assert [str(name) for name in found] == order
    assert [name for name, _, _ in asked] == [n for name in order for n in (name, name)]
    assert [n for _, n, _ in asked] == [2, CELL.answer] * 4
    assert len({(name, head) for name, _, head in asked}) == 8  # nobody finds his own in a cache
    assert len({head for _, _, head in asked}) == 4  # and all are asked the same


@pytest.mark.parametrize("text", ["chat", "edit", "extract"])
def test_no_two_prompts_begin_alike(text: str) -> None:
    cell = Cell(4, 500, 96, text)
    made = [prompt(cell, i, salt) for i in range(4) for salt in range(5)]
    assert len({each[:12] for each in made}) == len(made)
    assert all(1_000 < len(each) < 3_000 for each in made)


def sample(subject: str, speed: float, first_ms: float = 10.0) -> Sample:
    return Sample(subject, CELL, speed, 77.0, first_ms, 5.0, 100.0, 96, 500)


def test_ratios_are_geometric_means_of_neighbours() -> None:
    samples = [
        sample(PLAIN, 100), sample(AUTO, 121), sample(PEER, 50, first_ms=20.0),
        sample(PLAIN, 100), sample(AUTO, 100), sample(PEER, 200, first_ms=5.0),
    ]  # fmt: skip
    [found] = summary(samples)
    assert found["ratios"]["controller over plain"] == pytest.approx(1.1)
    assert found["ratios"]["plain over llama.cpp"] == pytest.approx(1.0)
    assert found["ratios"]["first token over llama.cpp"] == pytest.approx(1.0)
    low, high = found["intervals"]["controller over plain"]
    assert low <= 1.1 <= high


def test_whoever_answers_sooner_is_not_the_slower_for_it() -> None:
    """Both need two seconds for a burst; one gives its first token at once."""
    late = [Stream(50, 500, 1.0, 2.0, 0.5)] * 2
    early = [Stream(50, 500, 0.1, 1.5, 0.1), Stream(50, 500, 1.0, 2.0, 0.5)]
    samples = [load._sample(PLAIN, CELL, early, 2.0), load._sample(PEER, CELL, late, 2.0)]
    [found] = summary(samples)
    assert found["ratios"]["plain over llama.cpp"] == 1.0
    assert found["ratios"]["first token over llama.cpp"] < 1


SHORT = "--streams 1 2 --answers 8 --budget 0 --settle 0 --threads 1 --no-peer"


def test_a_short_run_answers_every_cell_and_tells_how_far_plain_decoding_is_from_itself(
    target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "load.json"
    own = ["--depths", "10", "--own=--context-size 1024"]  # a token of this model is a letter
    main([*SHORT.split(), *own, "--model", str(target), "--again", "--json", str(out)])
    cells = json.loads(out.read_text())["cells"]
    assert [cell["streams"] for cell in cells] == [1, 2]
    for cell in cells:
        plain, auto = cell["subjects"][PLAIN], cell["subjects"][AUTO]
        assert plain["n_tokens"] == auto["n_tokens"] > 0
        assert "plain over itself" in cell["intervals"]

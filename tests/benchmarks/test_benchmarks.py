"""The benchmarks as a set: each is in the index, called in one way, and shares what they share.

Runs none of them: those with a test of their own have it elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.shared.between import Between
from benchmarks.shared.ratios import ratio, ratio_of_prompts, ratio_of_repeats, recorded, shown

FOLDER = Path(__file__).parents[2] / "benchmarks"
INDEX = (FOLDER / "README.md").read_text("utf-8")
FILES = sorted(FOLDER.rglob("*.py"))
CALLED = [path for path in FILES if path.parent.name != "shared" and path.stem != "trainings"]


def indexed() -> dict[str, list[str]]:
    """Folder -> the names in its table."""
    sections = re.findall(r"\| `benchmarks\.(\w+)\.` \|.*?\n((?:\|.*\n)+)", INDEX)
    return {folder: re.findall(r"^\| `(\w+)`", rows, re.MULTILINE) for folder, rows in sections}


def test_the_index_names_every_file_once_and_nothing_else() -> None:
    named = sorted(f"{folder}/{name}" for folder, names in indexed().items() for name in names)
    assert named == sorted(f"{path.parent.name}/{path.stem}" for path in FILES)


def test_every_row_says_what_is_shown_how_long_it_takes_and_where_the_result_is() -> None:
    callable_names = {path.stem for path in CALLED}
    for row in re.findall(r"^\| `\w+`.*$", INDEX, re.MULTILINE):
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        if name.strip("`") in callable_names:
            assert len(cells) == 3 and all(cells), row


@pytest.mark.parametrize("path", CALLED, ids=lambda path: path.stem)
def test_every_benchmark_is_a_module_that_says_how_it_is_called(path: Path) -> None:
    source = path.read_text("utf-8")
    assert f"python -m benchmarks.{path.parent.name}.{path.stem}" in source.split('"""')[1]
    assert source.rstrip().split("\n")[-2] == 'if __name__ == "__main__":'


def test_llama_cpps_server_is_started_in_one_place() -> None:
    starts = [
        p.stem for p in FILES if re.search(r"LlamaServer\(|xllamacpp as", p.read_text("utf-8"))
    ]
    assert starts == ["served"]


def test_no_benchmark_has_a_bootstrap_of_its_own() -> None:
    own = re.compile(r"\.choices\(|geometric_mean|for _ in range\([1-9]000\)")
    assert not [path.stem for path in CALLED if own.search(path.read_text("utf-8"))]


# -- ratios ---------------------------------------------------------------------------------------


def test_a_ratio_is_of_the_pairs_of_each_prompt() -> None:
    found = ratio({"a": [2.0, 2.0], "b": [8.0, 8.0]}, {"a": [1.0, 1.0], "b": [1.0, 1.0]})
    assert found.ratio == pytest.approx(4.0)
    assert (found.n_prompts, found.n_pairs) == (2, 4)


def test_repeats_are_one_prompt_and_prompts_are_several() -> None:
    own, base = [2.0, 2.0, 2.1], [1.0, 1.0, 1.0]
    assert ratio_of_repeats(own, base).n_prompts == 1
    assert ratio_of_prompts(own, base).n_prompts == 3


def test_figures_that_are_not_there_are_left_out_and_none_at_all_is_told() -> None:
    assert ratio_of_repeats([2.0, 0.0], [1.0, 1.0]).n_pairs == 1
    with pytest.raises(SystemExit, match="no pair"):
        ratio_of_repeats([0.0], [1.0])


def test_a_ratio_is_shown_and_recorded_with_its_interval() -> None:
    found = ratio_of_repeats([2.0] * 4, [1.0] * 4)
    assert shown(found) == "2.000 [2.000, 2.000]"
    assert recorded(found) == {"ratio": 2.0, "low": 2.0, "high": 2.0}


def test_a_draft_models_passes_are_a_rounds_where_it_waits_for_them() -> None:
    between = Between()
    between.verified(0.0, 10.0)
    between.drafted(8.0, 12.0)  # under way when the target's pass ended
    between.wait()
    between.drafted(13.0, 15.0)
    between.verified(16.0, 20.0)
    assert between.inside_s == 2.0 + 2.0

    between.drafted(16.5, 18.5)  # beside the target's pass
    between.drafted(19.5, 21.0)
    between.verified(21.5, 25.0)
    assert between.inside_s == 0.0  # nobody asked for it

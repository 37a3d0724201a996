"""Submissions: honest ones pass, hostile ones are refused with the reason, on one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parlay.bench import community
from parlay.bench.community import MAX_BYTES, build, parse, preview
from parlay.bench.record import BadResult, dump
from tests.results import made

Fields = dict[str, Any]


def honest() -> Fields:
    found: Fields = json.loads(dump(made.submission()))
    return found


def refused(folder: Path, data: bytes, name: str = "ryzen7950x.json") -> str:
    (folder / name).write_bytes(data)
    [verdict] = community.validate(folder)
    assert verdict.problems
    for problem in verdict.problems:
        assert "\n" not in problem and len(problem) < 500
    return "; ".join(verdict.problems)


def test_an_honest_submission_passes(tmp_path: Path) -> None:
    (tmp_path / "ryzen7950x.json").write_text(dump(made.submission()))
    (tmp_path / "README.md").write_text("not a submission")
    [verdict] = community.validate(tmp_path)
    assert verdict.problems == ()
    assert verdict.submission is not None and verdict.submission.name == "ryzen7950x"


def first(fields: Fields) -> Fields:
    found: Fields = fields["results"][0]
    return found


def put(*path: Any, value: Any) -> Callable[[Fields], None]:
    """Writes a value at a place inside the first result."""

    def change(fields: Fields) -> None:
        node: Any = first(fields)
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    return change


def at_top(name: str, value: Any) -> Callable[[Fields], None]:
    return lambda fields: fields.__setitem__(name, value)


HOSTILE = {
    "wrong type": (put("samples", 0, "n_tokens", value="many"), "n_tokens"),
    "float for int": (put("samples", 0, "n_tokens", value=12.5), "n_tokens"),
    "bool for number": (put("samples", 0, "wall_s", value=True), "wall_s"),
    "null machine": (put("machine", value=None), "machine"),
    "negative": (put("samples", 0, "wall_s", value=-1.0), "wall_s"),
    "huge number": (put("samples", 0, "wall_s", value=1e300), "wall_s"),
    "huge integer": (put("target", "n_params", value=10**400), "n_params"),
    "impossible bandwidth": (put("machine", "memory_bandwidth", value=1e18), "memory_bandwidth"),
    "unknown field": (put("machine", "hostname", value="box"), "hostname"),
    "unknown version": (put("version", value=2), "version"),
    "other licence": (at_top("licence", "all rights reserved"), "licence"),
    "HTML in notes": (at_top("notes", "<img src=x onerror=alert(1)>"), "HTML"),
    "path in notes": (at_top("notes", "see /home/somebody/x"), "a path"),
    "long notes": (at_top("notes", "x" * 501), "notes"),
    "control characters": (at_top("notes", "a\u0000b\u202e"), "notes"),
    "HTML in hardware": (put("machine", "cpu", value="<script>x</script>"), "HTML"),
    "HTML as prompt": (put("samples", 0, "prompt", value="</script><b>"), "HTML"),
    "address in an error": (put("samples", 0, "error", value="http://10.0.0.1/x"), "address"),
    "odd name": (at_top("name", "../../etc/passwd"), "name"),
    "no results": (at_top("results", []), "results"),
    "bad hash": (put("target", "sha256", value="abc"), "sha256"),
    "script as id": (put("id", value="x' onclick='alert"), "id"),
    "date as text": (put("created", value="yesterday"), "created"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_fields_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    change, reason = HOSTILE[case]
    fields = honest()
    change(fields)
    assert reason in refused(tmp_path, json.dumps(fields).encode())


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(word: str, tmp_path: Path) -> None:
    fields = honest()
    first(fields)["samples"][0]["wall_s"] = 123.456
    text = json.dumps(fields).replace("123.456", word)
    assert "wall_s" in refused(tmp_path, text.encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b'"text"', b"\x00" * 100, b"[" * 200_000, b'{"a":' * 50_000, b"\xff\xfe"],
)
def test_rubbish_is_refused(data: bytes, tmp_path: Path) -> None:
    refused(tmp_path, data)


def test_ten_megabytes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    assert f"at most {MAX_BYTES:,}" in refused(tmp_path, b" " * 10_000_000)
    with pytest.raises(BadResult, match="at most"):
        parse(b" " * 10_000_000, "x")


def test_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ryzen7950x.json").symlink_to("/etc/hostname")
    [verdict] = community.validate(tmp_path)
    assert "links are not accepted" in verdict.problems[0]


def test_other_files_do_not_slip_in(tmp_path: Path) -> None:
    (tmp_path / "evil.html").write_text("<script>")
    [verdict] = community.validate(tmp_path)
    assert verdict.problems


def test_contents_changed_by_hand_are_seen(tmp_path: Path) -> None:
    fields = honest()
    first(fields)["machine"]["cpu"] = "Some Other CPU"
    assert "have been changed" in refused(tmp_path, json.dumps(fields).encode())


def test_impossible_figures_are_refused_even_with_a_new_hash(tmp_path: Path) -> None:
    slow = made.MACHINE.model_copy(update={"memory_bandwidth": 1e9})
    lie = build("liar", "", [made.changed(made.record(), machine=slow)])
    assert "bandwidth" in refused(tmp_path, dump(lie).encode(), "liar.json")


def test_the_file_carries_the_name_of_its_submission(tmp_path: Path) -> None:
    text = dump(made.submission()).encode()
    assert "must be called ryzen7950x.json" in refused(tmp_path, text, "other.json")


def test_the_same_samples_under_two_names_are_seen(tmp_path: Path) -> None:
    (tmp_path / "ryzen7950x.json").write_text(dump(made.submission()))
    copy = build("a-copy", "", [made.changed(made.record(), created="2026-01-01")])
    (tmp_path / "a-copy.json").write_text(dump(copy))
    problems = {v.file: v.problems for v in community.validate(tmp_path)}
    assert problems["a-copy.json"] == ()
    assert "the same samples are in a-copy.json" in problems["ryzen7950x.json"][0]


def test_one_hash_for_two_models_is_seen(tmp_path: Path) -> None:
    (tmp_path / "ryzen7950x.json").write_text(dump(made.submission()))
    target = made.TARGET.model_copy(update={"n_params": 3_000_000_000})
    other = made.changed(made.record(seed=5), target=target)
    (tmp_path / "other.json").write_text(dump(build("other", "", [other])))
    problems = {v.file: v.problems for v in community.validate(tmp_path)}
    assert any("hash of another file" in p for p in problems["ryzen7950x.json"])


def test_quick_runs_stay_at_home(tmp_path: Path) -> None:
    record = made.record()
    run = record.run.model_copy(update={"quick": True})
    text = dump(build("quick-one", "", [made.changed(record, run=run)])).encode()
    assert "send a whole run" in refused(tmp_path, text, "quick-one.json")


@pytest.mark.parametrize("name", ["", "ab", "UPPER", "with space", "a/b", "x" * 65, "-a-"])
def test_names_are_plain(name: str) -> None:
    if name == "-a-":
        name = "-leading"
    with pytest.raises(BadResult, match="such as rtx4090-ryzen7950x"):
        build(name, "", [made.record()])


def test_preview_shows_what_becomes_public() -> None:
    text = "\n".join(preview(made.submission(notes="undervolted")))
    for part in ("CC BY 4.0", "undervolted", "AMD Ryzen 9 7950X", "Qwen2.5-3B", "faster"):
        assert part in text


def test_our_own_folder_is_valid() -> None:
    folder = Path(__file__).parents[2] / "community"
    assert [v for v in community.validate(folder) if v.problems] == []

"""Found texts: bounded, whole, in a fixed order, and fewer where a library has no sources."""

from __future__ import annotations

import ast
import sys
import sysconfig
from pathlib import Path

import pytest

from parlay_train import found
from parlay_train.found import MAX_CHARACTERS, MAX_TEXTS, MIN_CHARACTERS, found_texts, passages


def test_there_are_many_of_both_kinds_and_none_twice() -> None:
    for texts in (found_texts().prose, found_texts().code):
        assert 500 < len(texts) <= MAX_TEXTS
        assert len(set(texts)) == len(texts)
        assert all(MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS for text in texts)


def test_code_is_whole_functions_and_classes() -> None:
    for text in found_texts().code[::20]:
        assert len(ast.parse(text).body) == 1


def test_the_order_is_the_same_every_time(library: Path) -> None:
    for i in (3, 1, 2):
        (library / f"m{i}.py").write_text(FUNCTION.replace("def f", f"def m{i}"))
    found = found_texts.__wrapped__()
    assert [text[:6] for text in found.code] == ["def m1", "def m2", "def m3"]
    assert found_texts.__wrapped__() == found


def test_no_module_is_imported_for_it(library: Path) -> None:
    (library / "odd.py").write_text("import sys\nsys.odd = True\n" + FUNCTION)
    assert found_texts.__wrapped__().code == (FUNCTION.strip(),)
    assert not hasattr(sys, "odd") and "odd" not in sys.modules


def test_a_file_that_cannot_be_read_is_passed_over(library: Path) -> None:
    (library / "a.py").write_bytes(b"\xff\xfe")
    (library / "b.py").write_text("def (:\n")
    (library / "test").mkdir()
    (library / "test" / "c.py").write_text(FUNCTION)
    (library / "d.py").write_text(FUNCTION.replace("def f", "def d"))
    assert [text[:5] for text in found_texts.__wrapped__().code] == ["def d"]


def test_a_library_without_sources_gives_none(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert found_texts.__wrapped__() == found.FoundText((), ())
    library.rmdir()
    assert found_texts.__wrapped__() == found.FoundText((), ())


def test_no_file_and_no_library_gives_more_than_its_part(library: Path) -> None:
    many = "".join(FUNCTION.replace("def f", f"def f{i}") for i in range(100))
    (library / "many.py").write_text(many)
    code = found_texts.__wrapped__().code
    assert len(code) == 16
    assert "def f0(" in code[0] and "def f9" in code[-1]


def test_of_a_class_that_is_too_long_its_methods_are_taken(library: Path) -> None:
    methods = "".join(
        "    " + line + "\n" if line else "\n"
        for i in range(10)
        for line in FUNCTION.replace("def f", f"@property\ndef f{i}").split("\n")
    )
    (library / "long.py").write_text("class Long:\n" + methods)
    code = found_texts.__wrapped__().code
    assert len(code) == 10 and all(text.startswith("@property\ndef f") for text in code)


def test_passages_end_where_paragraphs_do() -> None:
    paragraphs = [f"{i} " + "word " * 100 for i in range(12)]
    cut = list(passages("\n\n".join(p.strip() for p in paragraphs)))
    assert len(cut) == 3
    assert "\n\n".join(cut).split("\n\n") == [p.strip() for p in paragraphs]
    assert not list(passages("Short."))
    assert not list(passages("x" * (MAX_CHARACTERS + 1)))


FUNCTION = """
def f(numbers):
    total = 0
    for number in numbers:
        # Comments make it long enough to be taken, as there is a least length for every text.
        if number > 3 and number % 2:
            total += number * number
        else:
            total -= 1
    return total
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty standard library."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder

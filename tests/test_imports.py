"""Imports point one way: cli, then what serves people, then the engine, its parts, and the ground.

Reads the source, so that an import inside a function or for types alone counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "parlay"

# A part may import parts further down and its neighbours, never one further up.
LEVELS = (
    ("cli",),
    ("front", "gateway", "server", "bench", "results", "rendering", "tuning"),
    ("web", "backend"),
    ("parlay",),  # the Python interface, parlay/parlay.py
    ("engine",),
    ("hub", "timing"),
    ("proposers", "control", "replay", "pairing", "planning"),
    ("llama", "decoding", "reading", "chat"),
    ("errors", "ask", "option_types", "store", "models"),
)
LEVEL = {part: n for n, parts in enumerate(LEVELS) for part in parts}
# Modules of the package itself that belong to no part yet, and where they stand.
PLACED = {
    "deployment": "web",
    "routing": "engine",
    "upstreams": "engine",
}

LLAMA_CPP = frozenset({"llama_cpp"})
HTTP = frozenset(
    {"aiohttp", "fastapi", "h11", "http", "httpx", "requests", "starlette", "urllib3", "uvicorn"}
)


@dataclass(frozen=True)
class Import:
    """One module importing another."""

    where: str  # "parlay.llama.model:12"
    part: str
    module: str  # "parlay.llama.library" or "numpy.typing"

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def imported_part(self) -> str | None:
        names = self.module.split(".")
        return names[1] if names[0] == "parlay" and len(names) > 1 else None


def imports_of(source: str, module: str, part: str, is_package: bool = False) -> Iterator[Import]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        where = f"{module}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, part, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield Import(where, part, base)
            for alias in node.names:  # `from parlay import store` names a module
                if base.split(".")[0] == "parlay":
                    yield Import(where, part, f"{base}.{alias.name}")


def part_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def all_imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted(SRC.rglob("*.py")):
        names = list(path.relative_to(SRC.parent).with_suffix("").parts)
        is_package = names[-1] == "__init__"
        module = ".".join(names[:-1] if is_package else names)
        found += imports_of(path.read_text("utf-8"), module, part_of(path), is_package)
    return found


IMPORTS = all_imports()
PARTS = {part_of(path) for path in SRC.rglob("*.py")} - {"__init__"}


def level(part: str) -> int:
    return LEVEL[PLACED.get(part, part)]


def test_every_part_has_its_place() -> None:
    known = LEVEL.keys() | PLACED.keys()
    assert known >= PARTS, "a new part: say here and in docs/explanation/architecture.md where"


def test_the_page_on_architecture_lists_every_part_and_this_order() -> None:
    page = (SRC.parents[1] / "docs/explanation/architecture.md").read_text("utf-8")
    order = [", ".join(map(_shown, parts)) for parts in LEVELS]
    assert "\n".join(order) in page
    for part in PARTS - {*LEVELS[-1], "deployment", "routing", "upstreams"}:
        assert f"\n  {part}/ " in page or f"\n  {part}.py " in page, part


def _shown(part: str) -> str:
    return part if (SRC / part).is_dir() else f"{part}.py"


def test_no_import_points_upwards() -> None:
    wrong = [
        f"{found.where} imports {found.module}"
        for found in IMPORTS
        if found.part != "__init__"
        and found.imported_part in PARTS
        and level(found.imported_part) < level(found.part)
    ]
    assert wrong == []


def test_no_two_parts_import_each_other() -> None:
    edges: dict[str, set[str]] = {part: set() for part in PARTS}
    for found in IMPORTS:
        if found.part in PARTS and found.imported_part in PARTS:
            edges[found.part].add(found.imported_part)
    cycles = {
        (one, other) for one in PARTS for other in edges[one] if one < other and one in edges[other]
    }
    assert cycles == set()


@pytest.mark.parametrize("part", ["decoding", "control"])
def test_the_pure_parts_reach_neither_llama_cpp_nor_http_even_through_others(part: str) -> None:
    by_module: dict[str, list[Import]] = {}
    for found in IMPORTS:
        by_module.setdefault(found.where.partition(":")[0], []).append(found)
    todo = {module for module in by_module if module.startswith(f"parlay.{part}.")}
    assert todo
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        seen.add(module)
        for found in by_module.get(module, ()):
            assert found.top not in LLAMA_CPP | HTTP, f"{found.where} imports {found.module}"
            assert found.imported_part != "llama", f"{found.where} imports {found.module}"
            if found.top == "parlay" and found.module not in seen:
                todo.add(found.module)


def test_nobody_imports_a_binding_of_llama_cpp_and_only_one_part_opens_its_library() -> None:
    assert [found.where for found in IMPORTS if found.top in LLAMA_CPP] == []
    opening = {found.part for found in IMPORTS if found.module == "parlay.llama.binding"}
    assert opening <= {"llama"}


def test_decoding_needs_nothing_but_numpy() -> None:
    others = {
        found.top
        for found in IMPORTS
        if found.part == "decoding" and found.top not in sys.stdlib_module_names
    }
    assert others <= {"numpy", "parlay"}


def test_nothing_in_the_package_leans_on_the_scripted_models() -> None:
    assert [found.where for found in IMPORTS if found.module == "tests.scripted"] == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import parlay.engine.engine", "parlay.engine.engine"),
        ("from parlay.engine import engine", "parlay.engine.engine"),
        ("from parlay import store", "parlay.store"),
        ("from ..engine.engine import Engine", "parlay.engine.engine"),
        ("from . import library", "parlay.llama.library"),
        ("def f():\n    import httpx", "httpx"),
        ("if TYPE_CHECKING:\n    from parlay.cli import main", "parlay.cli"),
    ],
)
def test_the_walk_sees_every_form_of_import(source: str, module: str) -> None:
    assert module in {found.module for found in imports_of(source, "parlay.llama.model", "llama")}

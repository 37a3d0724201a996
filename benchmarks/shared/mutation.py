"""One small fault made in a source file: every place where one can be, and the source with it.

Knows Python's syntax and no product: what a fault breaks is for others to see.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.Mod: ast.FloorDiv,
}  # fmt: skip
# Calls whose only effect is told to people.
_MIXING = 1 << 32  # numbers from here on only mix bits: any other would do as well
_TOLD = frozenset({"debug", "info", "warning", "error", "exception", "tell"})


@dataclass(frozen=True)
class Mutant:
    """One fault: the how-manieth place of a file, and what becomes of it."""

    path: Path
    place: int
    line: int
    what: str

    def source(self) -> str:
        """The whole file with it."""
        tree = ast.parse(self.path.read_text("utf-8"))
        _, _, change = list(_changes(tree))[self.place]
        change()
        return ast.unparse(ast.fix_missing_locations(tree))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def mutants_of(path: Path, *, numbers: bool = True) -> list[Mutant]:
    """All that can be made of a file; without `numbers`, no constant is changed."""
    tree = ast.parse(path.read_text("utf-8"))
    every = list(_changes(tree))
    return [
        Mutant(path, place, line, what)
        for place, (line, what, _) in enumerate(every)
        if numbers or not what.startswith("number")
    ]


Change = tuple[int, str, Callable[[], None]]


def _changes(tree: ast.AST) -> Iterator[Change]:
    for node in _code(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                other = _COMPARED[type(op)]
                yield (
                    line,
                    f"{type(op).__name__} becomes {other.__name__}",
                    _put(node.ops, i, other()),
                )
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _COMPUTED:
            operator = _COMPUTED[type(node.op)]
            what = f"{type(node.op).__name__} becomes {operator.__name__}"
            yield line, what, _set(node, "op", operator())
        elif isinstance(node, ast.BoolOp):
            joined = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield line, f"becomes {joined.__name__}", _set(node, "op", joined())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield line, "not is left out", _set(node, "op", ast.UAdd())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield (
                line,
                f"{node.value} becomes {not node.value}",
                _set(node, "value", not node.value),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            if abs(node.value) >= _MIXING:
                continue
            value = node.value + 1
            yield line, f"number {node.value} becomes {value}", _set(node, "value", value)
        elif isinstance(node, ast.IfExp):
            yield line, "the other of two is taken", _swapped(node)
        elif isinstance(node, ast.Continue):
            yield line, "continue becomes break", _as_break(node)
        for body in _bodies(node):
            for i, statement in enumerate(body):
                if _acts(statement):
                    yield statement.lineno, "a call is left out", _put(body, i, ast.Pass())


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is run: neither annotations nor messages of errors nor what is told."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "keywords_of_class"):
                continue
            children = value if isinstance(value, list) else [value]
            todo += [c for c in children if isinstance(c, ast.AST) and not _is_aside(c)]


def _is_aside(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        return isinstance(function, ast.Attribute) and function.attr in _TOLD
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            yield body


def _acts(statement: ast.stmt) -> bool:
    """Whether it is a call for its effect."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and not _is_aside(statement)
    )


def _set(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _put(items: list[ast.stmt] | list[ast.cmpop], i: int, value: ast.AST) -> Callable[[], None]:
    def change() -> None:
        items[i] = value  # type: ignore[call-overload]

    return change


def _swapped(node: ast.IfExp) -> Callable[[], None]:
    def change() -> None:
        node.body, node.orelse = node.orelse, node.body

    return change


def _as_break(node: ast.Continue) -> Callable[[], None]:
    def change() -> None:
        node.__class__ = ast.Break  # type: ignore[assignment]

    return change

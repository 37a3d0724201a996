"""Writes the pages of docs/reference that follow from the code: `python scripts/reference.py`.

keys.md: the keys of a deployment with their defaults and the comments beside them. fields.md: what
request bodies may hold. With --check nothing is written, and stale pages are an error. Knows no
page that a person writes.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from parlay import deployment
from parlay.front import schema

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
NOTE = "This page is written by `python scripts/reference.py`; change the code, not the page.\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# -- keys of a deployment -------------------------------------------------------------------------


def comments(kind: type) -> dict[str, str]:
    """What is said of each field: the comment behind it, or on the lines above."""
    source = inspect.cleandoc("\n" + inspect.getsource(kind))
    spoken = {
        token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    body = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)).body
    for node in body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines: list[str] = []
        above = node.lineno - 1
        while above in spoken and spoken[above][1]:
            lines.insert(0, spoken[above][0])
            above -= 1
        behind = [
            spoken[n][0] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in spoken
        ]
        found[node.target.id] = " ".join([*lines, *behind])
    return found


def keys(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every key below a section: its name, its default, what it means."""
    said = comments(kind)
    for name, field in kind.model_fields.items():
        shown = field.alias or name
        if prefix.endswith("llama."):
            shown = deployment.flag_of(name)
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from keys(type(default), f"{prefix}{shown}.")
        else:
            yield f"`{prefix}{shown}`", _default(default), said.get(name, "")


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined or value == ():
        return "" if value is PydanticUndefined else "absent"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "see there" if isinstance(value[0], BaseModel) else ", ".join(map(str, value))
    return f"`{value}`"


def keys_page() -> str:
    rows = list(keys(deployment.Deployment))
    return "\n".join(
        [
            "# Keys of a deployment file",
            "",
            "Each may stand in the file, in a variable (`PARLAY_RUNTIME_SLOTS=8`) or behind",
            "`--set` (`--set runtime.slots=8`); the last of these wins. Relative paths are meant",
            "from the file's folder. Rules under `routes`:",
            "[the server](server.md#routes-who-speculates). What has no word under `runtime.llama`",
            "means what llama.cpp's flag means.",
            "",
            NOTE,
            table(["key", "default", "meaning"], rows),
            "",
        ]
    )


# -- request fields -------------------------------------------------------------------------------

BODIES = (
    schema.ChatRequest,
    schema.CompletionRequest,
    schema.InfillRequest,
)


def fields_page() -> str:
    parts = [
        "# Fields of requests",
        "",
        "What bodies of chat completions, completions and infill may hold. Messages and responses",
        "have the fields of their own APIs. " + NOTE,
    ]
    bodies = [(body, body.model_json_schema()) for body in BODIES]
    shared = set.intersection(*(set(told["properties"]) for _, told in bodies))
    groups = [("All of them", bodies[0][1], shared)]
    groups += [
        ((body.__doc__ or "").strip(), told, set(told["properties"]) - shared)
        for body, told in bodies
    ]
    for title, told, names in groups:
        rows = [
            [f"`{name}`", _type(field), field.get("description", "")]
            for name, field in told["properties"].items()
            if name in names
        ]
        parts += [f"## {title}", "", table(["field", "takes", "meaning"], rows), ""]
    return "\n".join(parts)


def _type(told: dict[str, Any]) -> str:
    """A field's JSON Schema in a word or two."""
    if "anyOf" in told:
        return " or ".join(dict.fromkeys(_type(t) for t in told["anyOf"] if t != {"type": "null"}))
    if "$ref" in told:
        return str(told["$ref"]).rpartition("/")[2]
    values = told.get("enum", [told["const"]] if "const" in told else [])
    if values:
        return ", ".join(f"`{value}`" for value in values)
    if told.get("type") == "array":
        return f"list of {_type(told.get('items', {}))}"
    return str(told.get("type", "anything"))


# -------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if pages are stale")
    options = parser.parse_args()
    pages = {"keys.md": keys_page(), "fields.md": fields_page()}
    stale = [
        name
        for name, text in pages.items()
        if not (REFERENCE / name).exists() or (REFERENCE / name).read_text("utf-8") != text
    ]
    for name in stale:
        if options.check:
            print(f"docs/reference/{name} is stale: run python scripts/reference.py")
        else:
            (REFERENCE / name).write_text(pages[name], "utf-8")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

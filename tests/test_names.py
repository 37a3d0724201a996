"""One name, one thing: no class and no file of the package is called as another one is.

Where two are, the lists say why. A verb's file in `cli` may be called as the part it calls.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import parlay

ROOT = Path(parlay.__file__).parent

CLASSES = {
    "Acceptance": "of a result's record (its schema has the name), and what a controller learns",
    "Ask": "for a subject of the benchmark, and for a proposer: the one question of each",
    "Choice": "the controller's, and OpenAI's word for one of several answers",
    "Exchange": "one request being answered: by the server, and by the gateway in front of others",
    "Failure": "a result's record (its schema has the name), and an error as HTTP tells it",
    "Plan": "of memory, `parlay plan`; of a request, before it is answered",
    "Prompt": "of a suite, with its settings; of a request, in tokens",
    "Reply": "what a subject of the benchmark answered, and the server's answer in the making",
    "Thinking": "Anthropic's word in a body, and what a guide does while a model thinks",
}
FILES = {
    "app.py": "the application of any server, and the server's own",
    "both.py": "two models that compute at once: their prices, and how those are measured",
    "exchange.py": "as the class",
    "live_routes.py": "the same routes of server and gateway",
    "metrics.py": "the same page of server and gateway",
    "process.py": "server and gateway as processes",
    "schema.py": "of results, and of HTTP bodies",
    "service.py": "behind the routes of server and gateway",
}


def doubled(places: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Names that stand at several places, by name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in places:
        found[name].append(str(path.relative_to(ROOT)))
    return {name: where for name, where in found.items() if len(where) > 1}


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.name != "__init__.py"]


def test_no_class_is_called_as_another_without_a_reason() -> None:
    classes = [
        (node.name, path)
        for path in modules()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert doubled(classes).keys() == CLASSES.keys(), doubled(classes)


def test_no_file_is_called_as_another_without_a_reason() -> None:
    files = [(path.name, path) for path in modules() if path.parent.name != "cli"]
    assert doubled(files).keys() == FILES.keys(), doubled(files)

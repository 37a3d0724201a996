"""What README and docs name is there: commands and their options, files, links, variables, keys.

Reads the pages as text; runs nothing that needs a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from parlay.cli.main import app
from parlay.deployment import Deployment
from parlay.engine.settings import LoadSettings
from parlay_train.cli import app as trainer

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "benchmarks", "community", "src/parlay/drafters")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
PAGES.remove(ROOT / "CHANGELOG.md")  # it names what was
SOURCES = "\n".join(
    path.read_text("utf-8")
    for folder in (
        "src",
        "scripts",
        "tests/conftest.py",
        "benchmarks",
        "Dockerfile",
        "compose.yaml",
    )
    for path in ([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".yaml", "")
)
COMMANDS: Any = typer.main.get_command(app)
COMMANDS.commands["train"] = typer.main.get_command(trainer)  # another distribution's verb
CODE = re.compile(r"^```[a-z]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def code_of(page: Path) -> Iterator[str]:
    """Every line of code of a page, continued lines joined."""
    for block, inline in CODE.findall(page.read_text("utf-8")):
        yield from (block or inline).replace("\\\n", " ").splitlines()


def pages_with(pattern: str) -> list[tuple[Path, str]]:
    found = re.compile(pattern)
    return [(p, hit) for p in PAGES for line in code_of(p) for hit in found.findall(line)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- commands -------------------------------------------------------------------------------------

INVOCATION = re.compile(r"(?:^|[ /`(=])parlay (?!import)((?:[a-z]+)(?: .*)?)$")


def invocations() -> list[tuple[str, str]]:
    found = {
        (_name(page), hit.group(1).split("#")[0].split("|")[0].strip())
        for page in PAGES
        for line in code_of(page)
        if (hit := INVOCATION.search(line))
    }
    return sorted(found)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The verb's command, and what follows it; KeyError where there is none."""
    command: Any = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command = command.commands[words[0].strip(",.;:")]
        words = words[1:]
    return command, words


@pytest.mark.parametrize(("page", "line"), invocations())
def test_every_command_and_option_that_is_named_exists(page: str, line: str) -> None:
    command, rest = command_of(line.split())
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    named = [re.split(r"[=\].,;:)]", word)[0] for word in rest if re.match(r"\[?--?[a-z]", word)]
    unknown = [name for name in (n.lstrip("[") for n in named) if name not in known]
    assert not unknown, f"{page}: parlay {line}"


# -- files and links ------------------------------------------------------------------------------

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links() -> list[tuple[str, str]]:
    return sorted(
        {(_name(page), hit) for page in PAGES for hit in LINK.findall(page.read_text("utf-8"))}
    )


@pytest.mark.parametrize(("page", "link"), [x for x in links() if "://" not in x[1]])
def test_every_link_leads_to_a_file(page: str, link: str) -> None:
    assert (ROOT / page).parent.joinpath(link).exists()


ANCHOR = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """The anchors that its headings get where Markdown is shown."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_into_a_page_leads_to_a_heading() -> None:
    for page in PAGES:
        for link, anchor in ANCHOR.findall(page.read_text("utf-8")):
            other = page.parent.joinpath(link) if link else page
            assert anchor in headings(other), f"{_name(page)}: {link}#{anchor}"


def test_the_index_names_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    linked = [index.parent / link for link in LINK.findall(index.read_text("utf-8"))]
    rest = [p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "decisions"]
    missing = {_name(page) for page in rest if page not in linked} - {"docs/README.md"}
    assert not missing


FILE = r"(?:^|[\s(])((?:src|tests|benchmarks|scripts|docs|examples|community)/[\w./-]*\w)"


@pytest.mark.parametrize(
    ("page", "file"), sorted({(_name(page), file) for page, file in pages_with(FILE)})
)
def test_every_file_of_the_project_that_is_named_is_there(page: str, file: str) -> None:
    assert (ROOT / file).exists() or list(ROOT.glob(f"{file}*")), file


MODULE = r"python3? -m ((?:benchmarks|parlay)[a-z_.]+)\b"


@pytest.mark.parametrize(
    ("page", "module"), sorted({(_name(page), module) for page, module in pages_with(MODULE)})
)
def test_every_module_that_is_run_is_there(page: str, module: str) -> None:
    path = module.replace(".", "/")
    places = [ROOT / f"{path}.py", ROOT / "src" / f"{path}.py", ROOT / "src" / path / "__main__.py"]
    assert any(place.exists() for place in places), module


def test_every_page_that_the_code_names_is_there() -> None:
    named = set(re.findall(r"\bdocs/[\w./-]+\.md", SOURCES))
    assert named and not [page for page in named if not (ROOT / page).exists()]


# -- names ----------------------------------------------------------------------------------------


def test_every_variable_that_is_named_is_read_and_every_one_read_is_named() -> None:
    named = {hit for page, hit in pages_with(r"\b(PARLAY_[A-Z_]+)\b") if not hit.endswith("_")}
    sections = tuple(f"PARLAY_{name.upper()}_" for name in Deployment.model_fields)
    read = set(re.findall(r"""["'](PARLAY_[A-Z_]+)["']|\$\{(PARLAY_[A-Z_]+)""", SOURCES))
    known = {one or two for one, two in read}
    unknown = {n for n in named - known if not n.startswith(sections) and n not in SOURCES}
    assert not unknown
    for variable in ("PARLAY_CACHE", "PARLAY_CONFIG", "PARLAY_API_KEYS"):
        assert variable in named


def test_every_extra_that_is_named_exists() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = re.findall(r"^([a-z]+) = \[", section, re.MULTILINE)
    named = {e for _, hit in pages_with(r"parlay\[([a-z,]+)\]") for e in hit.split(",")}
    assert named <= set(extras)


SECTIONS = "model|runtime|monitoring|server|gateway|scale"
KEYS = rf"(?:^|[\s(])((?:{SECTIONS})\.(?!yaml|gguf)[a-z_]+)(?![\w./(])"


def keys_of(model: object) -> dict[str, set[str]]:
    fields = getattr(model, "model_fields", {})
    return {
        name: set(getattr(field.annotation, "model_fields", {})) for name, field in fields.items()
    }


@pytest.mark.parametrize(
    ("page", "key"), sorted({(_name(page), key) for page, key in pages_with(KEYS)})
)
def test_every_deployment_key_that_is_named_exists(page: str, key: str) -> None:
    section, _, name = key.partition(".")
    assert name in keys_of(Deployment)[section], f"{page}: {key}"


# -- the Python interface -------------------------------------------------------------------------


def test_every_setting_of_the_python_interface_is_named_with_its_default() -> None:
    page = (ROOT / "docs/reference/interface.md").read_text("utf-8")
    for field in (each for each in fields(LoadSettings) if each.name != "target"):
        default = "..." if callable(field.default) else repr(field.default).replace("'", '"')
        assert f"`{field.name}={default}`" in page, field.name

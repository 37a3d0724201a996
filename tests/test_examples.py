"""The deployments of `examples/` can be read, and say only what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parlay.deployment import load_deployment
from parlay.engine.start import FREE_PROPOSERS
from parlay.front.gate import checked_keys
from parlay.hub.name import HubName, parse_name
from parlay.routing import parse_draft

FOLDER = Path(__file__).parents[1] / "examples"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_a_deployment_that_could_start(path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "team-keys.txt"
    keys.write_text("a-key-of-somebody\n")
    asks = "api_keys_file" in path.read_text("utf-8")
    overrides = {"server.api_keys_file": str(keys)} if asks else {}
    found = load_deployment(path, environ={}, overrides=overrides)
    checked_keys(found)
    if found.engine == "local":
        assert isinstance(parse_name(found.model.target), HubName)
        files = [n for n in parse_draft(found.model.drafter) if n not in FREE_PROPOSERS]
        assert all(isinstance(parse_name(name), HubName) for name in files)


def test_the_list_of_examples_is_whole() -> None:
    told = set(re.findall(r"\]\((\S+\.yaml)\)", (FOLDER / "README.md").read_text("utf-8")))
    assert told == {path.name for path in FILES} and len(told) == 4

"""Dockerfile and compose file: they start a command that exists and copy what is there.

Builds nothing: that needs a Docker daemon. Reads both as text.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from parlay.cli.main import app
from parlay.deployment import Deployment

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
CUDA = (ROOT / "Dockerfile.cuda").read_text("utf-8")
COMPOSE_TEXT = (ROOT / "compose.yaml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICE: dict[str, Any] = COMPOSE["services"]["parlay"]


def default_of(value: str) -> str:
    """What `${NAME:-default}` stands for where the variable is not set."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)


def instructions(name: str, file: str = DOCKERFILE) -> list[str]:
    joined = file.replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", joined, re.MULTILINE)


def starts() -> list[list[str]]:
    [cmd] = instructions("CMD")
    shown = re.findall(r'PARLAY_ARGS="([^"]+)"', COMPOSE_TEXT)
    commands = [default_of(SERVICE["command"]), *shown]
    return [json.loads(cmd), *map(shlex.split, commands)]


@pytest.mark.parametrize("words", starts(), ids=" ".join)
def test_what_a_container_starts_is_a_command_with_options_that_exist(words: list[str]) -> None:
    verbs: Any = typer.main.get_command(app)
    verb, *rest = words
    known = {name for p in verbs.commands[verb].params for name in (*p.opts, *p.secondary_opts)}
    assert {word for word in rest if word.startswith("--")} <= known
    assert "0.0.0.0" in rest  # loopback inside a container reaches nobody
    assert "--allow-public-without-key" in rest


def test_the_entry_point_is_the_installed_command() -> None:
    [entry] = instructions("ENTRYPOINT")
    assert json.loads(entry) == ["parlay"]
    assert 'parlay = "parlay.cli.entry:main"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_everything_that_is_copied_from_here_is_here_and_is_all_that_a_build_needs() -> None:
    copied = [line.split()[:-1] for line in instructions("COPY") if "--from" not in line]
    names = [name for line in copied for name in line]
    assert all((ROOT / name).exists() for name in names)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    readme = re.search(r'^readme = "(.*)"', project, re.MULTILINE)
    assert readme is not None and {readme[1], "LICENSE", "src", "pyproject.toml"} <= set(names)


def test_the_port_is_the_servers_and_published_on_this_machine_only() -> None:
    port = Deployment().server.port
    assert instructions("EXPOSE") == [str(port)]
    assert SERVICE["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_build_arguments_and_variables_are_known() -> None:
    arguments = {line.partition("=")[0] for line in instructions("ARG")}
    assert set(SERVICE["build"]["args"]) <= arguments
    assert default_of(SERVICE["build"]["args"]["BASE"]) == "debian:bookworm-slim"
    assert instructions("ARG")[:1] == ["BASE=debian:bookworm-slim"]
    [environment] = [line for line in instructions("ENV") if "PARLAY_" in line]
    assert "PARLAY_CACHE=/data/cache" in environment
    assert any(volume.endswith(":/data") for volume in SERVICE["volumes"])


def test_a_build_for_a_gpu_is_the_same_service_with_other_arguments_and_the_gpus() -> None:
    cuda = yaml.safe_load((ROOT / "compose.cuda.yaml").read_text("utf-8"))["services"]
    assert cuda.keys() == COMPOSE["services"].keys()
    build = cuda["parlay"]["build"]
    assert build["dockerfile"] == "Dockerfile.cuda"
    for name, value in build["args"].items():
        assert f"{name}={default_of(value)}" in instructions("ARG", CUDA)
    for name in ("ENTRYPOINT", "CMD", "EXPOSE", "VOLUME", "USER"):
        assert instructions(name, CUDA) == instructions(name)
    [device] = cuda["parlay"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_nothing_is_built_for_the_machine_that_builds() -> None:
    """A build without a GPU cannot compile for the one it finds."""
    [build] = [line for line in instructions("RUN", CUDA) if "parlay engine build" in line]
    assert "-DGGML_NATIVE=OFF ${CMAKE_ARGS}" in build


def test_the_image_for_a_cpu_needs_no_compiler() -> None:
    assert not re.search(r"build-essential|cmake|gcc|g\+\+|git\b", DOCKERFILE)


def test_it_does_not_run_as_root_and_has_time_to_drain() -> None:
    assert instructions("USER") == ["parlay"]
    assert float(SERVICE["stop_grace_period"].removesuffix("s")) > Deployment().server.drain_s

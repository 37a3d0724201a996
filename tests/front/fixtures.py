"""Servers that several tests share; each is started once.

Knows tiny models: eight-bit ones, on which passes are exact in every shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny_models
from tests.front.running import Running, running
from tests.serving import wait_for


@pytest.fixture(scope="session")
def target(tiny_folder: Path) -> Path:
    return tiny_models.write_llama(tiny_folder / "served.gguf", ftype="q8_0")


@pytest.fixture(scope="session")
def drafter(tiny_folder: Path, target: Path) -> Path:
    return tiny_models.perturb(target, tiny_folder / "served-drafter.gguf")


@pytest.fixture(scope="session")
def server(target: Path, drafter: Path) -> Iterator[Running]:
    """Eight slots and a draft model."""
    names = f"suffix,{drafter}"
    options = {"runtime__slots": 8, "runtime__context_size": 1024}
    with running(target, model__drafter=names, **options) as found:
        wait_for(lambda: found.drafter == "ready")
        yield found


@pytest.fixture(autouse=True)
def nobody_is_answered_any_more(request: pytest.FixtureRequest) -> None:
    """What the test before left in the middle is noticed some turns later: not in this one."""
    if "server" not in request.fixturenames:
        return
    found = request.getfixturevalue("server")
    if isinstance(found, Running):
        wait_for(lambda: found.idle)

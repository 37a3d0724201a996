"""What the contract's tests share: models, and servers that are started once.

Knows the doors, no room behind them. All tests of this folder are part of the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import doors, tiny_models


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.contract)


@pytest.fixture(scope="session")
def model(target: Path) -> Path:
    """Eight bits a weight: its passes are exact in every shape."""
    return target


@pytest.fixture(scope="session")
def guesser(drafter: Path) -> Path:
    """A draft model that is right often enough, wrong often enough."""
    return drafter


@pytest.fixture(scope="session")
def one_server(model: Path, guesser: Path) -> Iterator[doors.Server]:
    """Four slots, suffix drafts and a draft model. Tests leave it as they found it."""
    options = {"runtime__slots": 4, "runtime__context_size": 1024}
    with doors.server(model, model__drafter=f"suffix,{guesser}", **options) as found:
        yield found


@pytest.fixture(scope="session")
def server(one_server: doors.Server) -> doors.Server:
    """The shared one, unless a file has its own."""
    return one_server


@pytest.fixture(autouse=True)
def nobody_is_left_from_before(request: pytest.FixtureRequest) -> None:
    """What the test before left in the middle is noticed some rounds later: not in this one."""
    if "one_server" in request.fixturenames:
        doors.until(request.getfixturevalue("one_server").is_idle)


@pytest.fixture(scope="session")
def marked_model(tiny_folder: Path) -> Path:
    """With marks for a gap, so that every door can be asked."""
    path = tiny_folder / "contract-marked.gguf"
    return tiny_models.write_llama(path, vocab=tiny_models.GAP_VOCABULARY, ftype="q8_0")

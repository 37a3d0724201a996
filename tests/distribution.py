"""Which worker runs which tests, and in what order: real weights first, so that none is left alone.

Knows names of files, not what they test.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

# Each parameter has an engine of its own, of a model file of another type.
APART = ("tests/test_exact_bits.py", "tests/test_lossless.py")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def share_of(nodeid: str) -> str:
    """The tests that stay with one worker: a file's, whose servers and engines are started once."""
    file, _, test = nodeid.partition("::")
    return f"{file} {test.partition('[')[2]}" if file in APART else file


def heaviest_first(items: list[pytest.Item]) -> None:
    """Files on real weights, then all others as they come. The same in every worker."""
    heavy = {file_of(item.nodeid) for item in items if item.get_closest_marker("weights")}
    items.sort(key=lambda item: file_of(item.nodeid) not in heavy)


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands the shares out in the order of their tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

"""Which worker runs which tests, and in what order: the longest first, so that none is left alone.

Knows names of files, not what they test.
"""

from __future__ import annotations

from collections import Counter

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


def longest_first(items: list[pytest.Item]) -> None:
    """Files on real weights, then those with the most tests. The same in every worker."""
    n_tests = Counter(file_of(item.nodeid) for item in items)
    heavy = {file_of(item.nodeid) for item in items if item.get_closest_marker("weights")}

    def place(item: pytest.Item) -> tuple[bool, int, str]:
        file = file_of(item.nodeid)
        return file not in heavy, -n_tests[file], file

    items.sort(key=place)


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands the shares out in the order of their tests."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

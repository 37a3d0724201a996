"""The machine's description: enough to compare, nothing that names anybody."""

from __future__ import annotations

import getpass
import platform
import re

from parlay.bench.machine import Sensors, cache_bytes, describe, read_bandwidth
from parlay.bench.result import leaks


def test_description_names_neither_host_nor_user() -> None:
    found = describe()
    told = found.model_dump(mode="json")
    for name in filter(None, (platform.node(), getpass.getuser())):  # whole words: "vm" is a name
        assert not re.search(rf"\b{re.escape(name)}\b", str(list(told.values())))
    assert list(leaks(told)) == []
    assert found.memory_bytes > 1 << 28
    assert found.n_threads >= 1


def test_bandwidth_is_that_of_a_memory() -> None:
    assert 1e8 < read_bandwidth(1, 64 << 20) < 1e13


def test_cache_is_a_size_or_unknown() -> None:
    found = cache_bytes()
    assert found is None or 1 << 10 < found < 1 << 34


def test_readings_are_never_an_error() -> None:
    found = Sensors().read()
    assert found.load_1min is None or found.load_1min >= 0

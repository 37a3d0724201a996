"""Workers share the tests by file, and by model where each has an engine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution import APART, heaviest_first, share_of


def test_a_file_stays_with_one_worker() -> None:
    assert share_of("tests/web/test_keys.py::test_a[x]") == share_of("tests/web/test_keys.py::b")


@pytest.mark.parametrize("file", APART)
def test_a_model_of_its_own_may_be_another_workers(file: str) -> None:
    assert Path(file).is_file()
    assert (
        share_of(f"{file}::a[q4_0]") == share_of(f"{file}::b[q4_0]") != share_of(f"{file}::a[f16]")
    )


def test_real_weights_come_first(request: pytest.FixtureRequest) -> None:
    items = sorted(request.session.items, key=lambda item: item.name)
    heaviest_first(items)
    files = [item.nodeid.partition("::")[0] for item in items]
    heavy = {f for f, i in zip(files, items, strict=True) if i.get_closest_marker("weights")}
    assert set(files[: sum(f in heavy for f in files)]) == heavy

"""The README's table of public shapes is the one that is computed now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parlay.planning.public import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planning.md"


@pytest.fixture(scope="module")
def table() -> str:
    return markdown_table(4096)


def test_the_readme_shows_what_is_computed(table: str) -> None:
    """Stale? Put the output of `parlay plan --table` between the marks."""
    page = PAGE.read_text("utf-8")
    found = re.search(r"<!-- plans -->\n(.*?)\n<!-- end of plans -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == table.strip()


def test_the_promised_rows(table: str) -> None:
    """27B at Q5_K_S with its drafter: fits 24 GB with 4096 of context, and not 12 GB."""
    (row,) = [line for line in table.splitlines() if line.startswith("| 27B")]
    _, name, _, _, at_12, _, at_24, *_ = [cell.strip() for cell in row.split("|")]
    assert "Q5_K_S" in name
    assert at_12.startswith("does not fit") and at_24.startswith("fits")

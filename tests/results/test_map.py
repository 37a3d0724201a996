"""The map: filters, sorts, links, escapes; in a real browser, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.bench.community import Submission, build
from parlay.bench.map import SIZES, Reported, community_map
from tests.results import made
from tests.results.browser import DESK, PHONE, opened

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def submissions() -> list[Submission]:
    return [
        made.submission(),
        build("rtx4090-ryzen7950x", "undervolted", [made.record(ratio=0.8, gpu=True, seed=9)]),
    ]


@pytest.fixture(scope="module")
def path(submissions: list[Submission], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("map") / "map.html"
    file.write_text(community_map(submissions, Reported.shipped()))
    return file


def test_reported_layer_has_the_published_figures_and_sources() -> None:
    studies = Reported.shipped().studies
    figures = {(r.params_b, r.task, r.speedup) for s in studies for r in s.rows}
    assert {
        (14, "overall", 1.40), (14, "math", 1.85), (7, "overall", 0.27), (7, "overall", 0.95),
        (7, "math", 1.16), (3, "overall", 1.72), (3, "math", 2.03),
    } <= figures  # fmt: skip
    speeds = {(r.params_b, r.baseline, r.candidate) for s in studies for r in s.rows}
    assert {(27, 37.2, 163.9), (31, 36.1, 177.8)} <= speeds
    assert all(s.source.startswith("https://") for s in studies)
    for row in (r for s in studies for r in s.rows):
        if row.candidate and row.baseline:
            assert row.speedup == pytest.approx(row.candidate / row.baseline, abs=0.01)


def test_sizes_cover_everything() -> None:
    assert [next(n for limit, n in SIZES if x < limit) for x in (0.1, 3, 7, 14, 27, 400)] == [
        "under 1B", "1B to 4B", "4B to 10B", "10B to 20B", "20B to 40B", "40B and more",
    ]  # fmt: skip


def test_page_shows_both_layers_apart_and_is_quiet(path: Path) -> None:
    with opened(path, DESK) as tab:
        assert tab.page.locator("tr.measured").count() == 12
        assert tab.page.locator("tr.reported").count() == 12
        assert tab.page.locator("tr.reported .badge").count() == 12
        assert "24 of 24 figures" in tab.page.inner_text("#count")
        tab.page.screenshot(path=path.with_name("map.png"), full_page=True)
        assert tab.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in tab.requests)


def test_filters_search_sort_and_reset(path: Path) -> None:
    with opened(path) as tab:
        page = tab.page
        page.select_option("#layer", "measured")
        page.select_option("#device", "gpu")
        assert page.locator("#rows tr").count() == 6
        page.select_option("#task", "math")
        assert page.locator("#rows tr").count() == 1
        page.fill("#search", "nothing like this")
        assert page.is_visible("#empty")
        page.click("button[type=reset]")
        page.wait_for_selector("#rows tr:nth-child(24)")
        page.fill("#search", "undervolted")
        assert page.locator("#rows tr").count() == 6
        page.click("button[type=reset]")
        page.wait_for_selector("#rows tr:nth-child(24)")
        page.click("th[data-key=hardware] button")
        names = page.locator("#rows tr td:first-child").all_inner_texts()
        assert names == sorted(names, key=str.lower)
        assert page.get_attribute("th[data-key=hardware]", "aria-sort") == "ascending"
        assert tab.complaints == []


def test_a_link_leads_to_a_result(path: Path, submissions: list[Submission]) -> None:
    wanted = f"{submissions[1].results[0].id}-0-math"
    with opened(path, anchor=f"#{wanted}") as tab:
        assert tab.page.locator("tr.chosen").get_attribute("id") == wanted
        assert tab.page.locator("tr.chosen").is_visible()


def test_map_works_on_a_phone(path: Path) -> None:
    with opened(path, PHONE) as tab:
        assert tab.overflow <= 0
        assert tab.page.locator("tr.measured").first.is_visible()
        tab.page.screenshot(path=path.with_name("phone.png"))
        assert tab.complaints == []


def test_everything_is_escaped(tmp_path: Path) -> None:
    """Even texts that the validator would never let through."""
    record = made.record()
    evil = record.model_copy(
        update={
            "machine": made.MACHINE.model_copy(update={"cpu": EVIL}),
            "target": made.TARGET.model_copy(update={"name": EVIL}),
        }
    )
    made_up = Submission.model_construct(name=EVIL, notes=EVIL, results=[evil])
    file = tmp_path / "map.html"
    file.write_text(community_map([made_up], Reported.shipped()))
    assert EVIL not in file.read_text()
    with opened(file) as tab:
        assert EVIL in tab.page.locator("tr.measured td").first.inner_text()
        assert tab.complaints == []


def test_an_empty_folder_still_makes_a_map(tmp_path: Path) -> None:
    file = tmp_path / "map.html"
    file.write_text(community_map([], Reported.shipped()))
    with opened(file) as tab:
        assert tab.page.locator("tr.reported").count() == 12

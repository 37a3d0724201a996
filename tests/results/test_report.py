"""The report: a page with plots and a Markdown table, for friendly and for hostile results."""

from __future__ import annotations

import json
from pathlib import Path

from parlay.bench.page import embed, escape, page
from parlay.bench.record import Caution
from parlay.bench.report import PLOTS, markdown, plain, report
from tests.results import made
from tests.results.browser import PHONE, opened

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_every_plot_is_drawn_as_plain_json_without_tags() -> None:
    made_of = {name: draw(made.record()) for name, (_, _, draw) in PLOTS.items()}
    assert all(chart["data"] for chart in made_of.values())
    assert "<" not in json.dumps(made_of, allow_nan=False)


def test_speed_up_plot_carries_the_intervals() -> None:
    trace = PLOTS["speedup"][2](made.record())["data"][0]
    speedup = made.record().comparisons[0].speedup
    assert speedup is not None
    assert trace["y"] == ["all", "chat", "code", "math", "reasoning", "summary"]
    assert trace["x"][0] - trace["error_x"]["arrayminus"][0] == speedup.low


def test_page_is_whole_offline_and_quiet(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(made.record()))
    with opened(path) as tab:
        for name in PLOTS:
            assert tab.page.locator(f"#{name} .main-svg").count() > 0
        assert "suffix: faster" in tab.page.inner_text("main")
        tab.page.screenshot(path=tmp_path / "report.png", full_page=True)
        assert tab.complaints == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in tab.requests)
    assert (tmp_path / "report.png").stat().st_size > 50_000


def test_page_fits_a_phone(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(made.record(gpu=True, ratio=0.7)))
    with opened(path, PHONE) as tab:
        assert tab.overflow <= 0
        assert "suffix: slower" in tab.page.inner_text("main")
        assert tab.complaints == []


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    record = made.record()
    machine = made.MACHINE.model_copy(update={"cpu": EVIL})
    arms = [a.model_copy(update={"model": EVIL}) for a in record.arms]
    warning = Caution.model_construct(kind="stall", arm=EVIL, text=EVIL)
    evil = record.model_copy(
        update={"machine": machine, "arms": arms, "target": None, "warnings": [warning]}
    )
    text = report(evil)
    assert EVIL not in text
    path = tmp_path / "report.html"
    path.write_text(text)
    with opened(path) as tab:
        assert tab.complaints == []
        assert EVIL in tab.page.inner_text("main")
    assert "<script>" not in markdown(evil)


def test_markdown_has_a_row_for_each_task_and_the_verdict() -> None:
    text = markdown(made.record())
    assert text.count("| suffix |") >= 6 and "| suffix | all | 1." in text
    assert "suffix against plain: faster" in text
    assert "11 of 12 texts identical" in text


def test_markdown_signs_are_escaped() -> None:
    assert plain("a|b <i> `x` *y*\n# z") == r"a\|b \<i\> \`x\` \*y\* \# z"


def test_embedded_data_cannot_leave_its_element() -> None:
    assert "</" not in embed({"x": EVIL})
    assert json.loads(embed({"x": EVIL})) == {"x": EVIL}
    assert escape(EVIL).count("<") == 0


def test_scripts_run_by_their_hash_only() -> None:
    text = page("t", "<p>x</p>", ["let a = 1"])
    assert "script-src 'sha256-" in text
    assert "unsafe-inline'; img-src" in text
    assert "script-src 'unsafe" not in text

"""A server's page in a real Chromium: every complaint of the console is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.results.browser import CHROMIUM, FLAGS, PHONE, Tab

__all__ = ["PHONE", "Tab", "browser", "check_access", "picture", "tab"]
DESK = {"width": 1280, "height": 860}
# `PARLAY_PICTURES=1 pytest tests/front/test_page_browser.py` writes docs/images.
PICTURES = Path(__file__).parents[2] / "docs" / "images"
WANTED = bool(os.environ.get("PARLAY_PICTURES"))


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium; skips where there is none (docs/reference/page.md says how to get it)."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield found
        found.close()


@contextmanager
def tab(
    browser: Any, url: str, size: dict[str, int] = DESK, scheme: str = "light"
) -> Iterator[Tab]:
    """A page that has been opened and is ready."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    found = Tab(context.new_page())
    page = found.page
    page.set_default_timeout(300_000)
    page.on("console", lambda m: found.complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda e: found.complaints.append(str(e)))
    page.on("dialog", found.on_dialog)
    page.on("request", lambda r: found.requests.append(r.url))
    page.goto(url)
    page.wait_for_selector("body[data-ready=yes]")
    yield found
    context.close()


def check_access(page: Any) -> None:
    """axe finds nothing to object to."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    told = [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in found]
    assert told == []


def picture(page: Any, name: str, height: int | None = None) -> None:
    """For the documentation, where it is wanted; of a taller window if need be."""
    if not WANTED:
        return
    if height is not None:
        page.set_viewport_size({"width": DESK["width"], "height": height})
        page.wait_for_timeout(500)
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"page-{name}.png")

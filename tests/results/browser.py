"""Pages in a real Chromium, without a network, with every complaint of the console kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 180_000  # a busy machine's browser is slow; only one that hangs is not waited for
DESK = {"width": 1200, "height": 900}


@dataclass
class Tab:
    """A page that has been opened, and what went wrong in it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on_dialog(self, dialog: Any) -> None:
        """Only a hostile text would open one."""
        self.complaints.append("dialog")
        dialog.dismiss()

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return int(wide)


@contextmanager
def opened(path: Path, size: dict[str, int] = DESK, anchor: str = "") -> Iterator[Tab]:
    """Open a file; skips where no Chromium is installed (docs/how-to/benchmark.md says how)."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    # A process of it may write into its profile a moment longer than it is waited for.
    profiles = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with api.sync_playwright() as play, profiles as profile:
        context = play.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=FLAGS,
            headless=True,
            viewport=size,
            timeout=PATIENCE_MS,
        )
        context.set_default_timeout(PATIENCE_MS)
        tab = Tab(context.new_page())
        tab.page.on("console", lambda m: tab.complaints.append(m.text) if m.type != "log" else None)
        tab.page.on("pageerror", lambda e: tab.complaints.append(str(e)))
        tab.page.on("dialog", tab.on_dialog)
        tab.page.on("request", lambda r: tab.requests.append(r.url))
        tab.page.goto(path.as_uri() + anchor)
        tab.page.wait_for_selector("body[data-ready=yes]", timeout=PATIENCE_MS)
        yield tab
        context.close()

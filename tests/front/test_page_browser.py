"""The page as people use it, in a real browser: on the default model, the rest on tiny ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlay.cli.demo import PROMPT
from tests.front.browsing import DESK, PHONE, WANTED, browser, check_access, picture, tab
from tests.front.running import Running, running, server_on
from tests.serving import kept_port, wait_for

LIST = (
    "Repeat this list and add a line: 1. Boil the water. 2. Add the salt. 3. Add the rice."
    " 4. Stir the rice. 5. Serve the rice."
)
CODE = PROMPT.partition("    def withdraw")[0]
REPEATING = "Write ten times: The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as found:
        yield found


smol = server_on("smollm2", runtime__threads=2, runtime__context_size=4096)
benched = server_on("target", runtime__context_size=4096)


def send(page: Any, prompt: str, mode: str = "with") -> None:
    page.check(f"input[name=mode][value={mode}]", force=True)
    page.fill("#prompt", prompt)
    page.click("#send")


# -- on real weights -----------------------------------------------------------------------------


@pytest.mark.weights
def test_a_newcomer_sees_what_speculation_did(smol: Running, chromium: Any) -> None:
    with tab(chromium, smol.url) as found:
        page = found.page
        page.wait_for_selector(".connection[data-state=open]")
        check_access(page)
        # A chat: tokens by origin, and figures in words.
        send(page, REPEATING)
        page.wait_for_selector(".exchange:nth-child(1) .figures")
        for kind in ("accepted", "recovered", "bonus", "plain"):
            assert page.locator(f".text .tok.{kind}").count() > 0
        title = page.locator(".tok.accepted >> nth=0").get_attribute("title")
        assert re.search(r"accepted: guessed by (suffix|model)", title)
        assert re.search(r"\d+ of \d+ tokens were guessed right", page.inner_text(".figures"))
        told = r"class 1-\d+, (which )?costs \d+\.\d % of the speed"  # how wide is measured
        assert re.search(told, page.inner_text(".figures"))
        assert re.search(told, page.inner_text("#model"))
        assert not page.locator(".text .rejected >> nth=0").is_visible()
        page.check("#show-rejected")
        page.wait_for_selector(".text .rejected >> nth=0")
        check_access(page)
        # The switch: the same without a guess.
        send(page, "Say it once more.", "without")
        page.wait_for_selector(".exchange:nth-child(2) .figures")
        second = page.locator(".exchange:nth-child(2)")
        assert second.locator(".text .tok.plain").count() > 0
        assert second.locator(".text .tok.accepted").count() == 0
        # Side by side: both ways, the same text, one clock.
        send(page, LIST, "both")
        page.wait_for_selector(".race")
        texts = page.locator(".sides .text").all_inner_texts()
        assert "identical" in page.inner_text(".race .mark")
        assert len(texts) == 2 and page.locator(".sides .tok.accepted").count() > 0
        beneath, composer = (page.locator(part).bounding_box() for part in (".sides", ".composer"))
        assert composer["x"] <= beneath["x"]  # nothing shows beside what it scrolls beneath
        assert composer["width"] >= beneath["width"]
        page.click("text=Replay both")
        check_access(page)
        assert found.complaints == []
        assert all(url.startswith(smol.url) for url in found.requests)


@pytest.mark.weights
@pytest.mark.skipif(not WANTED, reason="the pictures of the docs are not wanted")
def test_the_docs_show_a_server_that_nobody_has_set_up(smollm2: Path, chromium: Any) -> None:
    """As `parlay serve` comes: whether and how far it bets is chosen by measured time."""
    usual = {"runtime__controller": "auto", "runtime__speculative_window": None}
    with running(smollm2, runtime__context_size=4096, **usual) as server:
        wait_for(lambda: bool(server.figures()["baseline_ms"]))
        with tab(chromium, server.url) as found:
            page = found.page
            page.check("#show-rejected")
            send(page, CODE)
            page.wait_for_selector(".figures")
            send(page, "Give the whole code back once more.", "both")
            page.wait_for_selector(".race")
            assert "identical" in page.inner_text(".race .mark")
            assert page.locator(".sides .tok.accepted").count() > 0  # else: once more
            picture(page, "sides-light", 1270)
        with tab(chromium, server.url) as found:
            found.page.check("#show-rejected")
            send(found.page, CODE)
            found.page.wait_for_selector(".figures")
            picture(found.page, "chat-light")
        with tab(chromium, f"{server.url}/#live", scheme="dark") as found:
            found.page.wait_for_selector("#pane-live .js-plotly-plot .bars")
            found.page.wait_for_timeout(1200)
            picture(found.page, "live-dark")
        with tab(chromium, f"{server.url}/#live", PHONE, "dark") as found:
            found.page.wait_for_selector("#pane-live .js-plotly-plot .bars")
            found.page.wait_for_timeout(1200)
            picture(found.page, "live-phone")
        with tab(chromium, f"{server.url}/#bench") as found:
            page = found.page
            page.select_option("#bench-pairs", "1")
            page.select_option("#bench-tokens", "64")
            page.click("#bench-start")
            page.wait_for_selector(".result .headline", timeout=180_000)
            page.wait_for_timeout(500)
            picture(page, "bench-light", 520)


# -- on tiny models ------------------------------------------------------------------------------


def test_the_live_pane_shows_figures_charts_and_one_request_s_rounds(
    server: Running, chromium: Any
) -> None:
    with tab(chromium, server.url, scheme="dark") as found:
        page = found.page
        send(page, REPEATING)
        page.wait_for_selector(".figures")
        page.click("text=All figures")
        page.click("text=Round by round")
        page.wait_for_selector("#trace tbody tr")
        assert page.locator("#trace .strip .accepted").count() > 0
        page.wait_for_selector("#pane-live .js-plotly-plot .bars")
        page.wait_for_function("document.querySelector('.tile:nth-child(4) strong').innerText > 1")
        page.wait_for_selector(".charts .chart:nth-child(5) .plot[aria-label*=verify]")
        page.select_option("#filter-route", "request")
        page.wait_for_selector("#pane-live tbody tr")
        check_access(page)
        page.click("#trace button")
        page.click("#theme-button")
        assert page.get_attribute("html", "data-theme") == "light"
        page.wait_for_timeout(1200)
        check_access(page)
        assert found.complaints == []


def test_a_quick_bench_runs_from_the_page_at_the_ordinary_door(
    benched: Running, chromium: Any
) -> None:
    with tab(chromium, f"{benched.url}/#bench") as found:
        page = found.page
        page.select_option("#bench-pairs", "1")
        page.select_option("#bench-tokens", "16")
        page.click("#bench-start")
        page.wait_for_selector(".result .headline", timeout=180_000)
        assert "identical" in page.inner_text(".result")
        check_access(page)
        assert found.complaints == []


def test_a_phone_shows_all_of_it_without_scrolling_sideways(server: Running, chromium: Any) -> None:
    with tab(chromium, server.url, PHONE, "dark") as found:
        page = found.page
        page.wait_for_selector(".connection[data-state=open]")
        send(page, REPEATING, "both")
        page.wait_for_selector(".race")
        assert found.overflow <= 0
        form = "#bench-start"
        for name, part in (("live", "#pane-live .js-plotly-plot .bars"), ("bench", form)):
            page.click(f"#tab-{name}")
            page.wait_for_selector(part)
            assert found.overflow <= 0
            check_access(page)
        assert found.complaints == []


def test_a_lost_connection_is_said_and_comes_back(target: Path, chromium: Any) -> None:
    with running(target) as server, tab(chromium, server.url) as found:
        page = found.page
        page.wait_for_selector(".connection[data-state=open]")
        server.service.draining = True  # ends the streams; the process follows
        page.wait_for_selector("#banner:has-text('Trying again')")
        check_access(page)
        server.service.draining = False
        page.wait_for_selector(".connection[data-state=open]")
        page.wait_for_selector("#banner", state="hidden")
        send(page, "on on on")
        page.wait_for_selector(".figures")


def test_a_server_that_is_gone_is_waited_for(target: Path, chromium: Any, port: int) -> None:
    with running(target, server__port=port) as server:
        url = server.url
        context = tab(chromium, url)
        found = context.__enter__()
        found.page.wait_for_selector(".connection[data-state=open]")
        server.service.draining = True  # as the signal to end does
    found.page.wait_for_selector("#banner:not([hidden])")
    send(found.page, "on on on")
    found.page.wait_for_selector(".state:has-text('No answer: the server cannot be reached')")
    with running(target, server__port=port):
        found.page.wait_for_selector(".connection[data-state=open]")
        found.page.wait_for_selector("#banner", state="hidden")
        context.__exit__(None, None, None)
    refused = [text for text in found.complaints if "ERR_" not in text]
    assert refused == []  # what the browser itself says about a refused connection


def test_the_key_is_asked_for_kept_in_the_tab_and_never_in_an_address(
    target: Path, chromium: Any
) -> None:
    options = {"server__admin_keys": "secret-key"}
    with running(target, **options) as server, tab(chromium, server.url) as found:
        page = found.page
        page.wait_for_selector("#key-dialog[open]")
        check_access(page)
        page.fill("#key-input", "wrong-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-dialog[open]")
        page.wait_for_function("document.getElementById('key-problem').textContent !== ''")
        page.fill("#key-input", "secret-key")
        page.keyboard.press("Enter")
        page.wait_for_selector(".connection[data-state=open]")
        send(page, "on on on")
        page.wait_for_selector(".figures")
        kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
        assert "secret-key" in kept[0] and "secret-key" not in kept[1]
        assert not any("secret-key" in url for url in found.requests)
        assert [text for text in found.complaints if "401" not in text] == []


def test_hostile_texts_stay_texts(target: Path, chromium: Any) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    alias = "<b onmouseover=alert(3)>model</b>"
    with running(target, model__alias=[alias]) as server, tab(chromium, server.url) as found:
        page = found.page
        send(page, hostile)
        page.wait_for_selector(".figures, .state.problem")
        assert page.inner_text(".asked") == hostile
        page.click("#tab-live")
        page.wait_for_selector("#pane-live tbody tr")
        page.wait_for_selector(f"#model:has-text('{alias}')")
        assert page.locator("img[src=x]").count() == 0 and page.locator("main b").count() == 0
        assert found.complaints == []


def test_a_rejected_line_break_breaks_no_line_of_the_answer(server: Running, chromium: Any) -> None:
    push = """async () => {
        const { Text } = await import("/page/answer.js");
        const text = new Text("answer");
        text.push([{ origin: "recovered", proposer: "suffix", text: "on", rejected: "\\n\\n" }]);
        return [text.text, text.element.textContent];
    }"""
    with tab(chromium, server.url) as found:
        assert found.page.evaluate(push) == ["on", "↵↵on"]


def test_the_panes_can_be_reached_by_keyboard_and_by_address(
    server: Running, chromium: Any
) -> None:
    with tab(chromium, f"{server.url}/#live", DESK) as found:
        page = found.page
        page.wait_for_selector("#tab-live[aria-selected=true]")
        page.focus("#tab-live")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#pane-bench")
        page.wait_for_selector("#tab-bench:focus")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#prompt")
        page.focus("#prompt")
        page.keyboard.type("on on")
        page.keyboard.press("Enter")
        page.wait_for_selector(".figures")
        assert found.complaints == []

"""The page's files: what they may load, who may read them, and that nothing else is a file."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from parlay.front import dashboard
from tests.front.running import Running, server_on

FOLDER = Path(dashboard.__file__).with_name("page")


locked = server_on("target", server__api_keys="some-key", server__admin_keys="secret-key")


def test_the_page_comes_without_a_key_and_its_figures_do_not(locked: Running) -> None:
    assert httpx.get(locked.url + "/").status_code == 200
    assert httpx.get(locked.url + "/page/main.js").status_code == 200
    for path in ("/live", "/live/stream", "/live/requests"):
        assert httpx.get(locked.url + path).status_code == 401
        if path != "/live/stream":
            headers = {"Authorization": "Bearer secret-key"}
            assert httpx.get(locked.url + path, headers=headers).status_code == 200
            other = httpx.get(locked.url + path, headers={"Authorization": "Bearer some-key"})
            assert other.status_code == 403 and "admin" in other.text


def test_the_policy_allows_files_of_this_server_only(locked: Running) -> None:
    policy = httpx.get(locked.url + "/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == "'self'"
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    # The one hash is that of an empty text.
    assert rules["style-src"] == "'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"


@pytest.mark.parametrize("path", ["..%2fapp.py", "%2e%2e/app.py", "none.js", "", "index.html%00"])
def test_no_other_file_can_be_had(locked: Running, path: str) -> None:
    assert httpx.get(f"{locked.url}/page/{path}").status_code in (401, 404)


def test_plotly_comes_from_the_installed_package(locked: Running) -> None:
    url = f"{locked.url}/page/plotly.min.js"
    zipped = httpx.get(url)
    plain = httpx.get(url, headers={"Accept-Encoding": "identity"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.content == plain.content and b"plotly.js" in plain.content[:100]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*")), ids=lambda file: file.name)
def test_files_load_nothing_from_elsewhere_and_build_no_markup_from_text(file: Path) -> None:
    text = file.read_text("utf-8")
    addresses = re.findall(r"https?://[^\s\"')]+", text)
    assert [a for a in addresses if not a.startswith("http://www.w3.org/")] == []
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text
    if file.suffix == ".html":
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", text)

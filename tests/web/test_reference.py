"""The page at /docs: every route and field, without scripts and without the network."""

from __future__ import annotations

import re

import httpx

from parlay.web.reference import reference
from tests.server.running import Running


def test_every_route_and_field_is_on_the_page(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs")
    assert page.status_code == 200
    document = httpx.get(f"{server.url}/openapi.json").json()
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    for field in document["components"]["schemas"]["ChatRequest"]["properties"]:
        assert f"<td>{field}</td>" in page.text
    assert "Speculation" in page.text and "window" in page.text


def test_the_page_runs_nothing_and_loads_nothing(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs").text
    assert "<script" not in page
    assert "default-src 'none'; script-src 'none'" in page
    assert not re.search(r"(src|href)=\"?(https?:)?//", page)


def test_what_a_document_says_is_escaped() -> None:
    field = {"type": "string", "description": "<script>alert(1)</script>"}
    document = {
        "info": {"title": "<b>", "version": "1"},
        "paths": {"/<x>": {"post": {"summary": "<i>", "requestBody": {"content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}}}},
        "components": {"schemas": {"A": {"properties": {"f": field}}}},
    }  # fmt: skip
    page = reference(document)
    for text in ("<script>", "<b>", "<i>", "/<x>"):
        assert text not in page
    assert "&lt;script&gt;" in page

"""HEAD is answered like GET without a body; a wrong method is told the right one."""

from __future__ import annotations

import httpx
import pytest

from tests.front.running import Running, server_on

server = server_on("target")


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/metrics/speculative", "/openapi.json"]
)
def test_head_is_get_without_a_body(server: Running, path: str) -> None:
    with httpx.Client() as client:
        for _ in range(2):  # the connection is fit for the next request
            found, whole = client.head(f"{server.url}{path}"), client.get(f"{server.url}{path}")
            assert (found.status_code, found.content) == (200, b"")
            assert found.headers["content-type"] == whole.headers["content-type"]


def test_a_stream_ends_with_its_head(server: Running) -> None:
    with httpx.Client() as client:
        found = client.head(f"{server.url}/live/stream")
        assert (found.status_code, found.content) == (200, b"")
        assert found.headers["content-type"].startswith("text/event-stream")
        assert client.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(("method", "allowed"), [("HEAD", "POST"), ("GET", "POST")])
def test_a_wrong_method_is_told_the_right_one(server: Running, method: str, allowed: str) -> None:
    found = httpx.request(method, f"{server.url}/v1/completions")
    assert (found.status_code, found.headers["allow"]) == (405, allowed)

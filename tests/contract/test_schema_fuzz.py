"""Requests made up from the OpenAPI document: nothing they say brings the server down."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests import doors

schemathesis = pytest.importorskip("schemathesis")

MAX_EXAMPLES = 30  # of each operation
FEWER = {
    "POST /v1/messages/count_tokens": 5,
    "POST /apply-template": 5,
}  # another route has the same body
OPERATIONS = {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/embeddings",
    "POST /infill",
    "POST /apply-template",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /memory",
    "DELETE /memory",
    "GET /metrics",
    "GET /metrics/speculative",
    "GET /slots",
    "POST /slots/{slot}",
    "GET /live",
    "GET /live/requests",
    "GET /live/requests/{request_id}",
}


fuzzed = doors.server_on("model", server__request_timeout_s=1.0, server__max_answer_tokens=8)


@pytest.fixture(scope="module")
def operations(fuzzed: doors.Server) -> dict[str, Any]:
    document = httpx.get(f"{fuzzed.url}/openapi.json").json()
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    return {operation.ok().label: operation.ok() for operation in found}


def test_the_document_names_every_route(operations: dict[str, Any]) -> None:
    assert set(operations) == OPERATIONS


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_no_request_brings_an_internal_error(
    operations: dict[str, Any], fuzzed: doors.Server, label: str
) -> None:
    @settings(
        max_examples=FEWER.get(label, MAX_EXAMPLES),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operations[label].as_strategy())
    def send(case: Any) -> None:
        response = case.call(base_url=fuzzed.url, timeout=300)
        assert response.status_code < 500 or response.status_code in (501, 503, 504), response.text
        if response.status_code >= 400:
            assert json.loads(response.text)["error"]["message"]

    send()

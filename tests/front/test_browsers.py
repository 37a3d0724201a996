"""Pages of other sites, and names that were made to point here, get nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from parlay.front.browsers import Browsers
from tests.front.remote.fakes import Engine, engines
from tests.front.remote.running import gateway
from tests.front.running import running

BODY = {"prompt": "hello", "max_tokens": 1}
LOCAL = Browsers("127.0.0.1", ("models.example",), ("https://page.example",))


def refused(
    host: str = "127.0.0.1:8080", origin: str = "", rules: Browsers = LOCAL, *, named: bool = True
) -> str | None:
    headers = {b"host": host.encode(), **({b"origin": origin.encode()} if origin else {})}
    failure = rules.refusal(headers, named=named)
    return None if failure is None else failure.code


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.9.9.9", ""]
)
def test_loopback_has_many_names(host: str) -> None:
    assert refused(host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "10.0.0.1", "localhost.evil.example", "[::2]:80"]
)
def test_other_names_are_refused_unless_they_are_allowed(host: str) -> None:
    assert refused(host) == "host_not_allowed"
    assert refused(host, rules=Browsers("127.0.0.1", ("*",), ())) is None
    assert refused(host, named=False) is None  # keys are asked for: no page has one
    assert refused("Models.Example:8080") is None


def test_a_server_for_everybody_answers_to_addresses_and_to_its_machines_name() -> None:
    rules = Browsers("0.0.0.0", (), ())
    assert refused("192.168.1.7:8080", rules=rules) is None
    assert refused(socket.gethostname(), rules=rules) is None
    assert refused("evil.example", rules=rules) == "host_not_allowed"
    assert refused("192.168.1.7", rules=Browsers("192.168.1.7", (), ())) is None


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "file://", "http://127.0.0.1:9", "http://[", "http://x:y"],
)
def test_pages_of_other_sites_may_not_ask(origin: str) -> None:
    assert refused(origin=origin) == "origin_not_allowed"
    assert refused(origin=origin, named=False) == "origin_not_allowed"
    assert refused(origin=origin, rules=Browsers("127.0.0.1", (), ("*",))) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("127.0.0.1:8080", "https://page.example"),
        ("models.example", "https://models.example"),  # a proxy speaks TLS in front
        ("localhost", "http://localhost"),
    ],
)
def test_its_own_pages_and_those_named_may(host: str, origin: str) -> None:
    assert refused(host, origin) is None


@pytest.fixture(scope="module", params=["server", "gateway"])
def url(request: pytest.FixtureRequest, target: Path) -> Iterator[str]:
    if request.param == "server":
        with running(target, runtime__slots=1) as server:
            yield server.url
    else:
        with (
            engines(Engine("m")) as (engine,),
            gateway({"name": "all", "urls": [engine.url]}) as found,
        ):
            yield found.url


def test_server_and_gateway_refuse_foreign_pages_names_and_kinds_of_bodies(url: str) -> None:
    path = f"{url}/v1/completions"
    assert httpx.post(path, json=BODY).status_code == 200
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        for answer in (
            httpx.post(path, json=BODY, headers=headers),
            httpx.get(f"{url}/health", headers=headers),
            httpx.options(path, headers=headers),
        ):
            assert answer.status_code == 403
            assert "server." in answer.json()["error"]["message"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        content = b'{"prompt": "hello", "max_tokens": 1}'
        answer = httpx.post(path, content=content, headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "Content-Type" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt": "x", "temperature": NaN}',
        '{"prompt": "x", "temperature": -Infinity}',
        '{"prompt": "x", "temperature": 1e999}',
        '{"prompt": "x", "temperature": 1' + "0" * 400 + ".0}",
        '{"prompt": "x", "metadata": {"a": [1e400]}}',
        '{"prompt": "x", "model": "\\ud800"}',
        '{"prompt": "\\udfff x"}',
        '{"prompt": "x", "seed": ' + "1" * 5000 + "}",
    ],
)
def test_what_is_no_json_is_refused_before_it_is_read(url: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


def test_bytes_that_are_no_text_are_refused(url: str) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}'):
        answer = httpx.post(f"{url}/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400


def test_whole_characters_and_words_for_numbers_in_texts_are_welcome(url: str) -> None:
    body = '{"prompt": "NaN, Infinity, 1e999 and \\ud83d\\ude00", "max_tokens": 1}'
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = httpx.post(f"{url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == 200

"""Keys, bind addresses, limits, and what never leaves the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AuthenticationError

from parlay.deployment import DeploymentError, load_deployment
from parlay.web.browsers import is_loopback
from parlay.web.security import Keys, check_bind
from tests.server.running import Running, running


@pytest.fixture(scope="module")
def locked(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# ours\nfirst-key\n\n  # indented\nsecond-key\n")
    with running(
        target,
        server__api_keys_file=str(keys),
        server__api_keys="third-key",
        server__max_body_mb=0.01,
        server__max_prompt_tokens=50,
        server__cors_origins=["https://page.example"],
    ) as found:
        yield found


@pytest.mark.parametrize("key", ["first-key", "second-key", "third-key"])
def test_every_key_opens(locked: Running, key: str) -> None:
    assert locked.client(key).models.list().data


@pytest.mark.parametrize("key", ["wrong", "first-ke", "first-key2", "# ours", "# indented"])
def test_other_keys_do_not(locked: Running, key: str) -> None:
    with pytest.raises(AuthenticationError):
        locked.client(key).models.list()


def test_only_health_is_open(locked: Running) -> None:
    assert httpx.get(f"{locked.url}/health").status_code == 200
    for path in ("/metrics", "/slots", "/docs", "/openapi.json", "/metrics/speculative"):
        assert httpx.get(locked.url + path).status_code == 401


def test_large_bodies_are_refused_however_they_come(locked: Running) -> None:
    url = f"{locked.url}/v1/completions"
    headers = {"Authorization": "Bearer first-key", "Content-Type": "application/json"}
    large = b'{"prompt": "' + b"x" * 20_000 + b'"}'

    def in_parts() -> Iterator[bytes]:
        for i in range(0, len(large), 1000):
            yield large[i : i + 1000]

    for content in (large, in_parts()):
        answer = httpx.post(url, content=content, headers=headers)
        assert answer.status_code == 413
        assert "larger than" in answer.json()["error"]["message"]


def test_long_prompts_are_refused(locked: Running) -> None:
    headers = {"Authorization": "Bearer first-key"}
    body = {"prompt": "z" * 51, "max_tokens": 1}
    answer = httpx.post(f"{locked.url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_cors_is_only_for_the_named_origins(locked: Running, server: Running) -> None:
    ask = {"Access-Control-Request-Method": "POST", "Origin": "https://page.example"}
    allowed = httpx.options(f"{locked.url}/v1/completions", headers=ask)
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    asked = {"Origin": "https://page.example", "Authorization": "Bearer first-key"}
    shown = httpx.get(f"{locked.url}/v1/models", headers=asked).headers
    assert "X-Parlay-Warnings" in shown["access-control-expose-headers"]
    other = httpx.options(
        f"{locked.url}/v1/completions", headers={**ask, "Origin": "https://evil.example"}
    )
    assert "access-control-allow-origin" not in other.headers
    off = httpx.get(f"{server.url}/health", headers={"Origin": "https://page.example"})
    assert off.status_code == 403 and "access-control-allow-origin" not in off.headers


def test_a_name_that_is_allowed_is_answered_to(target: Path) -> None:
    with running(target, runtime__slots=1, server__allowed_hosts=["models.example"]) as found:
        for host, status in (("models.example", 200), ("evil.example", 403)):
            answer = httpx.get(f"{found.url}/v1/models", headers={"Host": host})
            assert answer.status_code == status


def test_a_form_post_from_another_site_is_no_request(server: Running) -> None:
    """A page elsewhere can send a plain form to loopback; only JSON is taken."""
    answer = httpx.post(f"{server.url}/v1/completions", content=b'{"prompt": "x"}')
    assert answer.status_code == 400
    assert "Content-Type" in answer.json()["error"]["message"]


def test_errors_show_neither_paths_nor_traces(server: Running, target: Path) -> None:
    broken = [
        httpx.post(f"{server.url}/v1/chat/completions", content=b"{", headers=JSON),
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": []}),
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [{"role": "x"}]}),
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "x"}],
                "chat_template_kwargs": {"messages": []},
            },
        ),
        httpx.get(f"{server.url}/nowhere"),
        httpx.put(f"{server.url}/v1/models"),
        httpx.post(f"{server.url}/detokenize", json={"tokens": [99999]}),
    ]
    for answer in broken:
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]
        for secret in (str(target.parent), "Traceback", ".py", "/site-packages"):
            assert secret not in answer.text


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    deployment = load_deployment(environ={}, overrides={"server.host": host})
    assert is_loopback(host)
    check_bind(deployment, Keys(()))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_a_public_bind_needs_a_key_or_the_word(host: str) -> None:
    deployment = load_deployment(environ={}, overrides={"server.host": host})
    with pytest.raises(DeploymentError, match="no API key is set"):
        check_bind(deployment, Keys(()))
    check_bind(deployment, Keys(("k",)))
    overrides = {"server.host": host, "server.allow_public_without_key": True}
    check_bind(load_deployment(environ={}, overrides=overrides), Keys(()))


def test_a_key_file_without_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nothing\n")
    deployment = load_deployment(environ={}, overrides={"server.api_keys_file": str(path)})
    with pytest.raises(DeploymentError, match="holds no key"):
        Keys.of(deployment)


def test_a_taken_port_is_said_before_anything_is_loaded(target: Path) -> None:
    from parlay.errors import ParlayError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ParlayError, match="cannot listen"), running(target, server__port=port):
            pass

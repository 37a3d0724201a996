"""Who may ask: keys, addresses, pages of other sites, and what never leaves the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import AuthenticationError

from tests import doors

SMALL: dict[str, Any] = {"prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def locked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[doors.Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# ours\nfirst-key\n\n  # indented\nsecond-key\n")
    with doors.server(
        model,
        server__api_keys_file=str(keys),
        server__api_keys=("third-key",),
        server__max_body_mb=0.01,
        server__max_prompt_tokens=50,
        server__cors_origins=["https://page.example"],
    ) as found:
        yield found


@pytest.mark.parametrize("key", ["first-key", "second-key", "third-key"])
def test_every_key_opens_in_both_ways_to_send_it(locked: doors.Server, key: str) -> None:
    with locked.as_key(key).openai() as client:
        assert client.models.list().data
    with Anthropic(base_url=locked.url, api_key=key, max_retries=0) as anthropic:
        turn: Any = {"role": "user", "content": "x"}
        counted = anthropic.messages.count_tokens(model="m", messages=[turn])
        assert counted.input_tokens > 0


@pytest.mark.parametrize("key", ["wrong", "first-ke", "first-key2", "# ours", "# indented"])
def test_other_keys_do_not(locked: doors.Server, key: str) -> None:
    with locked.as_key(key).openai() as client, pytest.raises(AuthenticationError):
        client.models.list()
    assert locked.as_key(key).post("/v1/completions", SMALL).status_code == 401


def test_only_health_is_open(locked: doors.Server) -> None:
    assert locked.get("/health").status_code == 200
    for path in ("/metrics", "/slots", "/openapi.json", "/metrics/speculative", "/memory", "/live"):
        assert locked.get(path).status_code == 401, path


def test_large_bodies_are_refused_however_they_come(locked: doors.Server) -> None:
    headers = {"Authorization": "Bearer first-key", "Content-Type": "application/json"}
    large = b'{"prompt": "' + b"x" * 20_000 + b'"}'
    parts = (large[i : i + 1000] for i in range(0, len(large), 1000))
    for content in (large, parts):
        answer = httpx.post(f"{locked.url}/v1/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert "larger than" in answer.json()["error"]["message"]


def test_long_prompts_are_refused(locked: doors.Server) -> None:
    answer = locked.as_key("first-key").refused("z" * 51, "completions")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_pages_of_named_origins_only_are_answered_and_see_warnings(
    locked: doors.Server, server: doors.Server
) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Origin": "https://page.example"}
    url = f"{locked.url}/v1/completions"
    allowed = httpx.options(url, headers=asked).headers
    assert allowed["access-control-allow-origin"] == "https://page.example"
    real = {"Origin": "https://page.example", "Authorization": "Bearer first-key"}
    shown = httpx.get(f"{locked.url}/v1/models", headers=real).headers
    assert "X-Parlay-Warnings" in shown["access-control-expose-headers"]
    other = httpx.options(url, headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    off = httpx.get(f"{server.url}/health", headers={"Origin": "https://page.example"})
    assert off.status_code == 403 and "access-control-allow-origin" not in off.headers


def test_only_names_that_are_allowed_are_answered_to(model: Path) -> None:
    """A page may have its own name point at this machine."""
    with doors.server(model, server__allowed_hosts=["models.example"]) as found:
        for host, status in (("models.example", 200), ("evil.example", 403)):
            answer = httpx.get(f"{found.url}/v1/models", headers={"Host": host})
            assert answer.status_code == status


def test_a_form_of_another_site_is_no_request(server: doors.Server) -> None:
    """A page elsewhere can send a plain form to loopback; only JSON is taken."""
    answer = httpx.post(f"{server.url}/v1/completions", content=b'{"prompt": "x"}')
    assert answer.status_code == 400
    assert "Content-Type" in answer.json()["error"]["message"]


def test_errors_show_neither_paths_nor_traces(server: doors.Server, model: Path) -> None:
    chat = "/v1/chat/completions"
    turns = [{"role": "user", "content": "x"}]
    json_headers = {"Content-Type": "application/json"}
    broken = [
        httpx.post(server.url + chat, content=b"{", headers=json_headers),
        server.post(chat, {"messages": []}),
        server.post(chat, {"messages": [{"role": "x"}]}),
        server.post(chat, {"messages": turns, "chat_template_kwargs": {"messages": []}}),
        server.get("/nowhere"),
        httpx.put(f"{server.url}/v1/models"),
        server.post("/detokenize", {"tokens": [99999]}),
    ]
    for answer in broken:
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]
        for secret in (str(model.parent), "Traceback", ".py", "/site-packages"):
            assert secret not in answer.text


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::"])
def test_a_public_address_needs_a_key_or_the_word(model: Path, tmp_path: Path, host: str) -> None:
    def told(**given: Any) -> tuple[int, str]:
        file = doors.deployment(tmp_path / "parlay.yaml", model, server__host=host, **given)
        done = doors.verb("serve", file, "--check")
        return done.exit_code, done.output + str(done.exception)

    code, said = told()
    assert code == 1 and "no API key is set" in said
    assert told(server__api_keys=["secret"])[0] == 0
    assert told(server__allow_public_without_key=True)[0] == 0


def test_a_key_file_without_keys_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nothing\n")
    keys = {"server__api_keys_file": str(tmp_path / "keys")}
    done = doors.verb("serve", doors.deployment(tmp_path / "p.yaml", model, **keys), "--check")
    assert done.exit_code and "holds no key" in done.output + str(done.exception)


def test_a_taken_port_is_said_before_anything_is_loaded(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = {"server__port": taken.getsockname()[1]}
        done = doors.command("serve", doors.deployment(tmp_path / "p.yaml", model, **port))
    assert done.returncode != 0
    *_, line = done.stderr.splitlines()
    assert "cannot listen" in line

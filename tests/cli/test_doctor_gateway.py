"""`parlay doctor` on a gateway: every item over servers that are well, broken and mislabelled."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from parlay.bench.peer import LlamaServer, PeerSettings
from parlay.cli import doctor, doctor_checks, doctor_gateway
from parlay.cli.doctor_checks import Finding
from parlay.cli.doctor_gateway import MAX_LINES, examine
from parlay.deployment import DeploymentError, load_deployment
from tests import tiny_models
from tests.gateway.fakes import Engine, engines

NOBODY = "http://127.0.0.1:9"
app = typer.Typer()
doctor.register(app)
app.command("other")(lambda: None)


class Listing(Engine):
    """Lists models as it is told to, or refuses to."""

    rows: tuple[dict[str, Any], ...] = ()
    status = 200
    page: bytes | None = None

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"data": self.rows}).encode()
        if path == "/metrics" and self.page is not None:
            body = self.page
        elif path != "/v1/models":
            await super()._get(path, writer)
            return
        head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()


@pytest.fixture
def pair() -> Iterator[tuple[Engine, Engine]]:
    betting, plain = Engine(speculates=True), Engine()
    with engines(betting, plain):
        yield betting, plain


@pytest.fixture
def content(tmp_path: Path, pair: tuple[Engine, Engine]) -> dict[str, Any]:
    """A gateway without a fault."""
    record = {"request_id": "r", "endpoint": "chat", "policy": "chat", "prompt_tokens": 10}
    record |= {"generated": 50, "drafted": 20, "accepted": 12, "queue_ms": 0}
    record |= {"ttft_ms": 10, "e2e_ms": 500, "speedup": 2.0}
    log = tmp_path / "requests.jsonl"
    log.write_text("\n".join([json.dumps(record)] * 6))
    return {
        "engine": "endpoints",
        "upstreams": [
            {"name": "betting", "urls": [pair[0].url], "speculative": True},
            {"name": "plain", "urls": [pair[1].url]},
        ],
        "gateway": {"health_timeout_s": 60},
        "monitoring": {"request_log": str(log), "alert_webhook": NOBODY},
    }


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def findings(folder: Path, content: dict[str, Any], item: str) -> list[Finding]:
    found = examine(load_deployment(written(folder, content), environ={}))
    return [finding for finding in found if finding.item == item]


def over(*given: Engine, **pool: Any) -> dict[str, Any]:
    pools = [{"name": f"p{i}", "urls": [one.url], **pool} for i, one in enumerate(given)]
    return {"engine": "endpoints", "upstreams": pools, "gateway": {"health_timeout_s": 60}}


def test_a_gateway_without_a_fault(tmp_path: Path, content: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["doctor", str(written(tmp_path, content))])
    assert result.exit_code == 0, result.output
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"ok"}


def test_what_only_an_engine_can_answer_is_said_and_not_dropped(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    found = {f.item: f for f in examine(load_deployment(written(tmp_path, content)))}
    renamed = {"fallback alert"}  # here: alerts
    assert set(doctor_checks.CHECKS) - renamed <= set(found)
    assert all("upstreams' business" in found[item].found for item in doctor_gateway.ELSEWHERE)


def test_servers_that_are_not_there_or_not_well(
    tmp_path: Path, content: dict[str, Any], pair: tuple[Engine, Engine]
) -> None:
    content["upstreams"][0]["urls"] += [NOBODY, f"{pair[0].url}/nowhere"]
    pair[1].health = 503
    gone, wrong, sick = findings(tmp_path, content, "upstreams")
    assert {gone.status, wrong.status, sick.status} == {"fail"}
    assert "unreachable (All connection" in gone.found and "correct upstreams" in gone.todo
    assert "/nowhere/health answers 404" in wrong.found and "upstreams[].health" in wrong.todo
    assert "answers 503" in sick.found and "log" in sick.todo


def test_a_server_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, content: dict[str, Any], pair: tuple[Engine, Engine]
) -> None:
    pair[0].mode = "hang_health"
    content["gateway"]["health_timeout_s"] = 0.2
    found = findings(tmp_path, content, "upstreams")[0]
    assert (found.status, "no answer in 0.2 s" in found.found) == ("fail", True)


def test_a_fleet_that_is_down_is_a_bounded_list(tmp_path: Path) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in range(1, MAX_LINES + 6)]
    content = {"engine": "endpoints", "upstreams": [{"name": "a", "urls": urls}]}
    found = findings(tmp_path, content, "upstreams")
    assert len(found) == MAX_LINES + 1
    assert "5 more" in found[-1].found
    for item in ("models", "same model", "speculative mark"):
        (one,) = findings(tmp_path, content, item)
        assert (one.status, one.todo) == ("warn", "repair upstreams first")


def test_a_key_that_is_missing_refused_or_unreadable(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    closed = Listing()
    closed.status = 401
    with engines(closed):
        (found,) = findings(tmp_path, over(closed), "models")
        assert found.status == "fail" and "it wants a key: set api_key_file" in found.todo
        (found,) = findings(tmp_path, over(closed, api_key="x"), "models")
        assert found.status == "fail" and "refused" in found.todo
        closed.health = 403
        (found,) = findings(tmp_path, over(closed), "upstreams")
        assert "it wants a key" in found.todo
    content["upstreams"][0]["api_key_file"] = "gone.key"
    (found,) = findings(tmp_path, content, "upstream keys")
    assert found.status == "fail" and "cannot be read" in found.found


def test_models_that_are_not_listed(tmp_path: Path, content: dict[str, Any]) -> None:
    content["upstreams"][1]["model"] = "other"
    bad, good = findings(tmp_path, content, "models")
    assert bad.status == "fail" and bad.todo == "set plain's model to one of: m"
    assert good.found == "betting: m (vllm)"
    empty = Listing()
    with engines(empty):
        (found,) = findings(tmp_path, over(empty), "models")
        assert found.status == "fail" and "lists none" in found.found
        (found,) = findings(tmp_path, over(empty, model="m"), "models")
        assert found.status == "warn"


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        ({"id": "a"}, {"id": "a"}, "ok"),
        ({"id": "a"}, {"id": "b"}, "warn"),
        ({"id": "a", "root": "/x/big"}, {"id": "b", "root": "/y/big/"}, "ok"),
        ({"id": "a", "root": "/x/big"}, {"id": "a", "root": "/x/small"}, "warn"),
        ({"id": "a", "max_model_len": 10}, {"id": "a", "max_model_len": 20}, "warn"),
        ({"id": "a", "meta": {"n_vocab": 5}}, {"id": "a", "meta": {"n_vocab": 6}}, "warn"),
    ],
)
def test_pools_must_serve_one_model(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], status: str
) -> None:
    servers = Listing(), Listing()
    for server, row in zip(servers, (one, other), strict=True):
        server.rows = (row,)
    with engines(*servers):
        (found,) = findings(tmp_path, over(*servers), "same model")
    assert found.status == status
    assert bool(found.todo) == (status == "warn")


def test_a_mark_must_agree_with_the_counters(
    tmp_path: Path, content: dict[str, Any], pair: tuple[Engine, Engine]
) -> None:
    pair[0].drafted, pair[0].accepted = 40, 10
    fine, plain = findings(tmp_path, content, "speculative mark")
    assert fine.found == "betting: 40 tokens drafted so far, 25% accepted"
    assert plain.found == "plain: plain, and no drafts are counted"
    content["upstreams"][0]["speculative"] = False
    content["upstreams"][1]["speculative"] = True
    betting, plain = findings(tmp_path, content, "speculative mark")
    assert betting.status == "fail" and "speculative: true" in betting.todo
    assert plain.status == "warn" and "--speculative-config" in plain.todo


def test_llama_cpp_counts_to_nothing_without_speculation(tmp_path: Path) -> None:
    server = Listing()
    server.rows = ({"id": "m", "owned_by": "llamacpp"},)
    server.page = b"llamacpp:spec_decode_num_draft_tokens_total 0\n"
    with engines(server):
        for mark in (True, False):
            (found,) = findings(tmp_path, over(server, speculative=mark), "speculative mark")
            assert found.status == "ok"
        server.page = b"llamacpp:spec_decode_num_draft_tokens_total 3\n"
        (found,) = findings(tmp_path, over(server), "speculative mark")
        assert found.status == "fail"


def test_sglang_s_gauge_at_nothing_is_no_speculation(tmp_path: Path) -> None:
    server = Listing()
    server.rows = ({"id": "m", "owned_by": "sglang"},)
    server.page = b"sglang:spec_accept_length 0.0\n"
    with engines(server):
        (found,) = findings(tmp_path, over(server, speculative=True), "speculative mark")
        assert found.status == "warn" and "--speculative-algorithm" in found.todo
        (found,) = findings(tmp_path, over(server), "speculative mark")
        assert found.status == "ok"
        server.page = b"sglang:spec_accept_length 2.5\n"
        (found,) = findings(tmp_path, over(server, speculative=True), "speculative mark")
        assert found.status == "ok" and "2.50 tokens a step" in found.found


CHANGES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "public": ("keys and address", {"server": {"host": "0.0.0.0"}}, "fail", "would not start"),
    "public, knowingly": (
        "keys and address",
        {"server": {"host": "0.0.0.0", "allow_public_without_key": True}},
        "warn",
        "api_keys_file",
    ),
    "with keys": ("keys and address", {"server": {"host": "::", "api_keys": ["k"]}}, "ok", ""),
    "never explored": ("thresholds", {"gateway": {"explore_share": 0}}, "warn", "such as 0.05"),
    "unused": ("unused keys", {"runtime": {"min_token_acceptance": 0.5}}, "warn", "render"),
    "no rule": ("reasoning policy", {"routes": [{"name": "all"}]}, "warn", "routes:"),
    "no log": ("workload", {"monitoring": {}}, "warn", "request_log"),
    "no disk needed": ("disk", {"monitoring": {}}, "ok", ""),
    "nobody is told": ("alerts", {"monitoring": {}}, "warn", "alert_webhook"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_faults_of_the_gateway_itself(tmp_path: Path, content: dict[str, Any], name: str) -> None:
    item, change, status, todo = CHANGES[name]
    (found,) = findings(tmp_path, content | change, item)
    assert found.status == status
    assert todo in found.todo


def test_a_rule_for_plain_decoding_needs_a_plain_pool(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    rule = {"name": "think", "when": {"reasoning": True}, "policy": "plain"}
    content["routes"] = [rule]
    assert findings(tmp_path, content, "reasoning policy")[0].status == "ok"
    del content["upstreams"][1]
    found = findings(tmp_path, content, "reasoning policy")[0]
    assert found.status == "warn" and "plain pool" in found.todo
    assert "every pool is speculative" in findings(tmp_path, content, "thresholds")[0].found


def test_too_little_room_for_the_log(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "MIN_DISK", 1 << 70)
    assert findings(tmp_path, content, "disk")[0].status == "fail"


def test_json_and_junit_and_exit_code(tmp_path: Path, content: dict[str, Any]) -> None:
    content["upstreams"][1]["urls"] = [NOBODY]
    junit = tmp_path / "out.xml"
    words = ["doctor", str(written(tmp_path, content)), "--json", "--junit", str(junit)]
    result = CliRunner().invoke(app, words)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (1, False)
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("tests")) == ("1", str(len(report["findings"])))


def test_a_misspelt_key_is_one_line(tmp_path: Path, content: dict[str, Any]) -> None:
    content["upstreams"][0]["speculativ"] = True
    with pytest.raises(DeploymentError, match="did you mean speculative"):
        findings(tmp_path, content, "upstreams")


def test_two_real_servers(tmp_path: Path, tiny_folder: Path) -> None:
    pytest.importorskip("xllamacpp")
    target = tiny_models.write_llama(tiny_folder / "examined.gguf", ftype="q8_0")
    drafter = tiny_models.perturb(target, tiny_folder / "examined-drafter.gguf")
    common: dict[str, Any] = {"threads": 1, "n_context": 512}
    bet: dict[str, Any] = {"spec_type": "draft-simple", "drafter": str(drafter), "n_max": 4}
    one = LlamaServer(PeerSettings(str(target), **bet, **common))
    other = LlamaServer(PeerSettings(str(target), **common))
    try:
        pools = [
            {"name": "betting", "urls": [one.url], "speculative": True},
            {"name": "plain", "urls": [other.url]},
        ]
        gateway = {"health_timeout_s": 60}
        content = {"engine": "endpoints", "upstreams": pools, "gateway": gateway}
        found = examine(load_deployment(written(tmp_path, content), environ={}))
    finally:
        one.close()
        other.close()
    asked = ("upstreams", "models", "same model", "speculative mark")
    assert [(f.item, f.found) for f in found if f.item in asked and f.status != "ok"] == []
    (same,) = (f for f in found if f.item == "same model")
    assert "n_params" in same.found

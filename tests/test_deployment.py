"""The deployment file: the issue's own example, unknown keys, variables and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parlay.cli.common import settings
from parlay.decoding.round import Fallback
from parlay.deployment import Deployment, DeploymentError, load_deployment

EXAMPLE = """
model:
  target: "qwen3.6-27b-q5_k_s.gguf"
  drafter: "dflash-q4_k_m.gguf"
  tokenizer: "shared_vocab.json"
runtime:
  gpu_layers: 99
  context_size: 4096
  vram_budget_gb: 24
  speculative_window: 5
  min_token_acceptance: 0.50
  min_sequence_acceptance: 0.60
  fallback_threshold_pct: 15
monitoring:
  metrics_endpoint: "/metrics/speculative"
  alert_on_acceptance_drop: true
  cache_compaction_interval: 8192
"""


def load(tmp_path: Path, text: str, **more: Any) -> Deployment:
    path = tmp_path / "speculative-deploy.yaml"
    path.write_text(text)
    return load_deployment(path, environ=more.pop("environ", {}), **more)


def test_the_published_example_loads_with_every_key(tmp_path: Path) -> None:
    found = load(tmp_path, EXAMPLE)
    assert found.model.target == str(tmp_path / "qwen3.6-27b-q5_k_s.gguf")
    assert found.model.drafter == str(tmp_path / "dflash-q4_k_m.gguf")
    assert found.model.tokenizer == str(tmp_path / "shared_vocab.json")
    runtime = found.runtime
    assert (runtime.gpu_layers, runtime.context_size, runtime.vram_budget_gb) == (99, 4096, 24)
    assert runtime.speculative_window == 5
    assert (runtime.min_token_acceptance, runtime.min_sequence_acceptance) == (0.5, 0.6)
    assert runtime.fallback_threshold_pct == 15
    monitoring = found.monitoring
    assert monitoring.metrics_endpoint == "/metrics/speculative"
    assert monitoring.alert_on_acceptance_drop
    assert monitoring.cache_compaction_interval == 8192


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == load_deployment(environ={}) == Deployment()
    assert Deployment().server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runtime: {contxt_size: 1}", "runtime.contxt_size is not a key; did you mean context_"),
        ("runtim: {}", "runtim is not a key; did you mean runtime?"),
        ("runtime: {host: x}", "runtime.host is not a key; did you mean server.host?"),
        (
            "runtime: {llama: {flash-atn: on}}",
            "llama.flash-atn is not a key; did you mean flash-attn",
        ),
        ("routes: [{name: a, when: {tols: true}}]", "did you mean tools?"),
        ("routes: [{nam: a}]", "nam"),
        ("runtime: {context_size: many}", "runtime.context_size: .*given 'many'"),
        ("runtime: {min_token_acceptance: 1.5}", "runtime.min_token_acceptance"),
        ("monitoring: {metrics_endpoint: metrics}", "must begin with /"),
        ("monitoring: {metrics_endpoint: /v1/models}", "hide another route"),
        ("model: 5", "model: "),
        ("engine: endpoints", "engine: endpoints needs upstreams"),
        ("upstreams: [{name: a, urls: ['http://a']}]", "only asked with engine: endpoints"),
        (
            "engine: endpoints\nupstreams: [{name: a, urls: [a]}]",
            "upstreams.0.urls: must be an addr",
        ),
        ("engine: endpoints\nupstreams: [{name: a, url: [a]}]", "did you mean urls?"),
        ("engine: endpoints\nupstreams: [{name: a, urls: []}]", "upstreams.0.urls"),
        ("- a", "must be a mapping"),
        ("model: {", "cannot be read as YAML"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeploymentError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="no deployment file"):
        load_deployment(tmp_path / "nowhere.yaml")


def test_flags_beat_variables_and_variables_beat_the_file(tmp_path: Path) -> None:
    environ = {
        "PARLAY_RUNTIME_CONTEXT_SIZE": "1000",
        "PARLAY_RUNTIME_SLOTS": "3",
        "PARLAY_SERVER_CORS_ORIGINS": "[http://a]",
        "PARLAY_API_KEYS": "secret-1,2",
        "PARLAY_CACHE": "/elsewhere",
        "HOME": "x",
    }
    overrides = {"runtime.slots": 7, "model.target": "default"}
    found = load(tmp_path, EXAMPLE, environ=environ, overrides=overrides)
    assert found.runtime.context_size == 1000
    assert found.runtime.slots == 7
    assert found.model.target == "default"
    assert found.server.cors_origins == ("http://a",)
    assert [key.get_secret_value() for key in found.server.api_keys] == ["secret-1", "2"]
    assert "secret-1" not in repr(found)


def test_unknown_variables_and_flags_name_the_nearest_key() -> None:
    with pytest.raises(DeploymentError, match=r"PARLAY_RUNTIME_SLOT.*did you mean slots"):
        load_deployment(environ={"PARLAY_RUNTIME_SLOT": "3"})
    with pytest.raises(DeploymentError, match="did you mean speculative_window"):
        load_deployment(environ={}, overrides={"runtime.window": 3})
    with pytest.raises(DeploymentError, match="did you mean runtime"):
        load_deployment(environ={}, overrides={"runtme.slots": 3})


@pytest.mark.parametrize("key", ["engine", "routes", "upstreams", "routes.chat"])
def test_what_only_a_file_can_say_is_said_to_be_so(key: str) -> None:
    with pytest.raises(DeploymentError, match="can be set in a deployment file only"):
        load_deployment(environ={}, overrides={key: "endpoints"})
    with pytest.raises(DeploymentError, match="names no section; did you mean server"):
        load_deployment(environ={}, overrides={"serve.port": 1})


@pytest.mark.parametrize("name", ["4", "1-65"])
def test_exact_classes_are_written_as_they_are_named(name: str) -> None:
    found = load_deployment(environ={}, overrides={"runtime.exact_class": name})
    assert found.runtime.exact_class == name
    with pytest.raises(DeploymentError, match=r"runtime\.exact_class: must be a number of rows"):
        load_deployment(environ={}, overrides={"runtime.exact_class": f"{name},8"})


@pytest.mark.parametrize("address", ["foo", "hooks.example/hush", "ftp://a.example", "https://"])
def test_a_webhook_is_an_address_and_is_not_shown(address: str) -> None:
    with pytest.raises(DeploymentError, match="begins with http") as caught:
        load_deployment(environ={}, overrides={"monitoring.alert_webhook": address})
    assert "hush" not in caught.value.message
    fine = {"monitoring.alert_webhook": "https://hooks.example/a?b=c"}
    assert load_deployment(environ={}, overrides=fine).monitoring.alert_webhook


def test_names_are_no_paths(tmp_path: Path) -> None:
    found = load(tmp_path, "model: {target: default, drafter: 'suffix, d.gguf'}")
    assert found.model.target == "default"
    assert found.model.drafter == f"suffix,{tmp_path / 'd.gguf'}"
    for name in ("default", "default-block", "smollm2"):
        assert load(tmp_path, f"model: {{drafter: {name}}}").model.drafter == name


def test_routes_are_read_with_their_reasons(tmp_path: Path) -> None:
    text = """
routes:
  - name: short
    when: {endpoint: chat, max_answer_tokens: 8, header: {X-Team: red*}}
    policy: plain
    reason: prompt_heavy
  - name: rest
    draft: suffix
    window: 3
"""
    short, rest = load(tmp_path, text).routes
    assert short.reason is Fallback.PROMPT_HEAVY and short.when.header == {"X-Team": "red*"}
    assert (rest.policy, rest.draft, rest.window) == ("speculate", "suffix", 3)


POOLS = """
engine: endpoints
upstreams:
  - name: betting
    urls: [http://10.0.0.1:8000/v1, "http://10.0.0.2:8000/"]
    speculative: true
    api_key_file: upstream.key
  - name: plain
    urls: [https://10.0.0.3/models]
    max_concurrent: 8
gateway: {health_interval_s: 5}
"""


def test_upstreams_are_pools_of_addresses(tmp_path: Path) -> None:
    found = load(tmp_path, POOLS, environ={"PARLAY_GATEWAY_STALL_TIMEOUT_S": "4"})
    betting, plain = found.upstreams
    assert found.engine == "endpoints" and Deployment().engine == "local"
    assert betting.urls == ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
    assert (betting.speculative, plain.speculative) == (True, False)
    assert betting.api_key_file == str(tmp_path / "upstream.key")
    assert plain.max_concurrent == 8
    assert (found.gateway.health_interval_s, found.gateway.stall_timeout_s) == (5, 4)


def test_an_address_or_a_pool_cannot_stand_there_twice(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"http://10\.0\.0\.1:8000 stands there twice"):
        load(tmp_path, POOLS.replace("https://10.0.0.3/models", "http://10.0.0.1:8000"))
    with pytest.raises(DeploymentError, match="betting stands there twice"):
        load(tmp_path, POOLS.replace("name: plain", "name: betting"))


def test_a_password_in_an_address_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="api_key_file") as caught:
        load(tmp_path, POOLS.replace("10.0.0.2", "me:hush@10.0.0.2"))
    assert "hush" not in caught.value.message


def test_several_drafters_come_as_a_list_or_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("model:\n  drafter: [suffix, a.gguf, ./b.gguf]\n")
    found = load_deployment(tmp_path / "d.yaml").model.drafter.split(",")
    assert found == ["suffix", str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf")]
    given = Deployment.model_validate({"model": {"drafter": ["suffix", "a.gguf"]}})
    assert given.model.drafter == "suffix,a.gguf"


@pytest.mark.parametrize("word", ["on", "off"])
def test_on_and_off_are_words_in_files_variables_and_flags(tmp_path: Path, word: str) -> None:
    """YAML once took them for true and false, and keys that want the words refused them."""
    text = f"runtime: {{llama: {{flash-attn: {word}, mlock: {word}, mmap: true}}}}"
    environ = {"PARLAY_RUNTIME_LLAMA": f"{{flash-attn: {word}}}"}
    flags = settings([f"runtime.llama.flash_attn={word}"])
    for found in (
        load(tmp_path, text),
        load_deployment(environ=environ),
        load_deployment(environ={}, overrides=flags),
    ):
        assert found.runtime.llama.flash_attention == word
        assert found.runtime.llama.mmap is True
    first = load(tmp_path, text).runtime.llama
    assert first.mlock is (word == "on")


def test_lists_of_names_may_stand_in_one_line_and_names_may_be_numbers() -> None:
    flags = settings(
        [
            "server.allowed_hosts=a.example, b.example",
            "server.cors_origins=https://a.example",
            "model.alias=7",
            "runtime.llama.device=CUDA0,CUDA1",
            "runtime.exact_class=2",
        ]
    )
    found = load_deployment(environ={}, overrides=flags)
    assert found.server.allowed_hosts == ("a.example", "b.example")
    assert found.server.cors_origins == ("https://a.example",)
    assert (found.model.alias, found.runtime.llama.devices) == (("7",), ("CUDA0", "CUDA1"))
    assert found.runtime.exact_class == "2"


def test_a_variable_that_is_no_yaml_is_one_line() -> None:
    with pytest.raises(DeploymentError, match=r"variable PARLAY_RUNTIME_SLOTS: .* quote it"):
        load_deployment(environ={"PARLAY_RUNTIME_SLOTS": "[4"})

"""Every key of the deployment file acts: a new one must be added here, with where it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay.deployment import Deployment, load_deployment
from parlay.engine.settings import EngineSettings
from parlay.server.lifecycle.engine_start import engine_settings, guarded
from tests.server.running import Running, running

TESTS = Path(__file__).parents[1]
SECTIONS = ("model", "runtime", "monitoring", "server")

# A value that is not the default, and where the engine is opened with it.
ENGINE: dict[str, tuple[Any, Callable[[EngineSettings], Any]]] = {
    "runtime.gpu_layers": (7, lambda s: s.model.gpu_layers),
    "runtime.drafter_gpu_layers": (3, lambda s: s.drafter_model.gpu_layers),
    "runtime.context_size": (777, lambda s: s.context.context_size),
    "runtime.vram_budget_gb": (5.5, lambda s: s.vram_budget_gb),
    "runtime.main_gpu": (1, lambda s: s.model.main_gpu),
    "runtime.n_cpu_moe": (2, lambda s: s.model.n_cpu_moe),
    "runtime.split_mode": ("row", lambda s: s.model.split_mode),
    "runtime.tensor_split": ((3.0, 1.0), lambda s: s.model.tensor_split),
    "runtime.tensor_overrides": (
        ("exps=CPU",),
        lambda s: tuple(f"{o.pattern}={o.device}" for o in s.model.overrides),
    ),
    "runtime.ubatch": (128, lambda s: s.context.n_ubatch),
    "runtime.prompt_cache_mb": (7, lambda s: s.context.prompt_cache_bytes >> 20),
    "runtime.snapshots": (3, lambda s: s.snapshots),
    "runtime.draft_ahead": ("off", lambda s: s.draft_ahead),
    "runtime.rope_scaling": ("yarn", lambda s: s.context.rope.scaling),
    "runtime.rope_scale": (2.0, lambda s: s.context.rope.scale),
    "runtime.rope_freq_base": (5e5, lambda s: s.context.rope.freq_base),
    "runtime.yarn_orig_context": (2048, lambda s: s.context.rope.yarn_orig_context),
    "runtime.yarn_ext_factor": (0.5, lambda s: s.context.rope.yarn_ext_factor),
    "runtime.yarn_attn_factor": (0.5, lambda s: s.context.rope.yarn_attn_factor),
    "runtime.yarn_beta_fast": (16.0, lambda s: s.context.rope.yarn_beta_fast),
    "runtime.yarn_beta_slow": (2.0, lambda s: s.context.rope.yarn_beta_slow),
    "runtime.mode": ("faithful", lambda s: s.mode),
    "runtime.exact_class": ("3-4", lambda s: s.exact_class),
    "runtime.exact_cost_pct": (7.5, lambda s: s.exact_cost_pct),
    "runtime.slots": (3, lambda s: s.context.n_sequences),
    "runtime.threads": (1, lambda s: s.context.threads),
    "runtime.follow_load": (False, lambda s: s.follow_load),
    "runtime.batch": (256, lambda s: s.context.n_batch),
    "runtime.devices": (("CPU",), lambda s: s.model.devices),
    "runtime.flash_attention": ("off", lambda s: s.context.flash_attention),
    "runtime.cache_type_k": ("q8_0", lambda s: s.context.cache_type_k),
    "runtime.cache_type_v": ("q8_0", lambda s: s.context.cache_type_v),
    "runtime.drafter_cache_type_k": ("q4_0", lambda s: s.drafter_cache_type_k),
    "runtime.drafter_cache_type_v": ("q4_0", lambda s: s.drafter_cache_type_v),
    "runtime.mmap": (False, lambda s: s.model.mmap),
    "runtime.mlock": (True, lambda s: s.model.mlock),
    "runtime.large_pages": (False, lambda s: s.drafter_model.large_pages),
    "runtime.translate": (True, lambda s: s.translate),
    "runtime.prompt_chunk": (64, lambda s: s.prompt_chunk),
    "runtime.unified_cache": (True, lambda s: s.context.unified),
    "runtime.remember_tokens": (4096, lambda s: s.remember_tokens),
}
# Keys whose effect another test shows.
ELSEWHERE = {
    "model.target": "test_drafter_care.py:test_the_target_answers_while_the_drafter_loads",
    "model.drafter": "test_drafter_care.py:test_the_target_answers_while_the_drafter_loads",
    "model.tokenizer": "test_drafter_care.py:test_a_tokenizer_file_must_match",
    "model.alias": "test_process.py:test_sighup_changes_what_it_can_without_dropping_a_request",
    "runtime.min_token_acceptance": "test_guard.py:test_low_acceptance_switches_speculation_off",
    "runtime.min_sequence_acceptance": "test_guard.py:test_low_acceptance_switches_speculation_off",
    "runtime.fallback_threshold_pct": (
        "test_observability.py:test_a_high_share_of_plain_rounds_raises_an_alert"
    ),
    "runtime.speculative_window": (
        "test_pricing.py:test_a_set_window_is_the_widest_unless_a_fixed_one_is_asked_for"
    ),
    "runtime.remember_file": (
        "test_answer_memory.py:test_a_file_keeps_it_across_a_restart_and_a_damaged_one_is_set_aside"
    ),
    "runtime.controller": (
        "test_pricing.py:test_a_set_window_is_the_widest_unless_a_fixed_one_is_asked_for"
    ),
    "runtime.context_full": "test_keys.py:test_limits_and_defaults_act_on_answers",
    "monitoring.metrics_endpoint": (
        "test_observability.py:test_the_json_metrics_are_where_the_deployment_puts_them"
    ),
    "monitoring.alert_on_acceptance_drop": (
        "test_observability.py:test_a_drop_of_acceptance_raises_an_alert"
    ),
    "monitoring.acceptance_drop": (
        "test_observability.py:test_a_drop_of_acceptance_raises_an_alert"
    ),
    "monitoring.cache_compaction_interval": (
        "test_cache_care.py:test_a_long_sliding_answer_is_compacted_and_goes_on"
    ),
    "monitoring.request_log": (
        "test_observability.py:test_the_request_log_has_a_line_per_request_and_no_prompt"
    ),
    "monitoring.request_log_max_mb": "test_keys.py:test_the_request_log_is_opened_as_told",
    "monitoring.request_log_keep": "test_keys.py:test_the_request_log_is_opened_as_told",
    "monitoring.log_prompts": "test_observability.py:test_prompts_are_logged_when_asked_for",
    "monitoring.alert_webhook": "test_keys.py:test_alerts_go_to_the_webhook_that_is_set",
    "monitoring.memory_pressure_pct": (
        "test_drafter_care.py:test_under_pressure_the_drafter_goes_and_comes_back"
    ),
    "server.host": "test_security.py:test_a_public_bind_needs_a_key_or_the_word",
    "server.port": "test_security.py:test_a_taken_port_is_said_before_anything_is_loaded",
    "server.api_keys": "test_security.py:test_every_key_opens",
    "server.api_keys_file": "test_security.py:test_every_key_opens",
    "server.allow_public_without_key": (
        "test_security.py:test_a_public_bind_needs_a_key_or_the_word"
    ),
    "server.cors_origins": "test_security.py:test_cors_is_only_for_the_named_origins",
    "server.allowed_hosts": "test_security.py:test_a_name_that_is_allowed_is_answered_to",
    "server.queue_size": "test_scheduling.py:test_a_full_queue_says_when_to_come_back",
    "server.request_timeout_s": "test_scheduling.py:test_a_time_limit_keeps_what_was_made",
    "server.drain_s": "test_process.py:test_sigterm_lets_the_answer_finish_and_a_second_one_ends",
    "server.max_connections": "test_bounds.py:test_connections_are_counted",
    "server.max_restarts": "test_supervisor.py:test_an_engine_that_dies_too_often_stays_dead",
    "server.stall_s": "test_bounds.py:test_a_client_that_never_reads_is_let_go",
    "server.share_prompt_cache": (
        "test_scheduling.py:test_a_cached_prompt_is_reused_among_holders_of_one_key_only"
    ),
    "server.max_body_mb": "test_security.py:test_large_bodies_are_refused_however_they_come",
    "server.max_prompt_tokens": "test_security.py:test_long_prompts_are_refused",
    "server.max_answer_tokens": "test_keys.py:test_limits_and_defaults_act_on_answers",
    "server.max_n": "test_keys.py:test_limits_and_defaults_act_on_answers",
    "server.parse_special_in_messages": (
        "test_control_words.py:test_a_server_can_be_told_to_read_them_as_marks"
    ),
    "model.lora": "test_engine_start.py:test_adapters_are_meant_from_the_files_folder",
    "server.slot_save_path": (
        "test_slot_files.py:test_a_saved_conversation_goes_on_after_the_slot_was_erased"
    ),
    "server.slot_save_mb": "test_slot_files.py:test_saved_slots_are_bounded",
    "server.stored_responses": (
        "test_formats.py:test_a_response_cannot_go_on_from_one_that_was_not_kept"
    ),
    "server.unknown_fields": "test_formats.py:test_unknown_fields_can_be_refused_in_every_format",
    "server.default_temperature": "test_keys.py:test_limits_and_defaults_act_on_answers",
}


def given(**overrides: Any) -> Deployment:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_deployment(environ={}, overrides=dotted)


def test_no_key_is_without_effect() -> None:
    keys = {
        f"{section}.{key}"
        for section in SECTIONS
        for key in type(getattr(given(), section)).model_fields
    }
    assert keys == ENGINE.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("key", ELSEWHERE)
def test_the_test_that_shows_a_keys_effect_is_there(key: str) -> None:
    file, _, name = ELSEWHERE[key].partition(":")
    folders = (TESTS / "server", TESTS / "web")
    texts = [path.read_text("utf-8") for folder in folders for path in folder.rglob(file)]
    assert any(re.search(rf"^def {name}\(", text, re.MULTILINE) for text in texts)


@pytest.mark.parametrize("key", ENGINE)
def test_the_engine_is_opened_with_it(target: Path, key: str) -> None:
    value, found = ENGINE[key]
    overrides = {"model.target": str(target), "model.drafter": "suffix"}
    before = load_deployment(environ={}, overrides=overrides)
    after = load_deployment(environ={}, overrides={**overrides, key: value})
    assert found(engine_settings(after)) == value != found(engine_settings(before))


def test_guard_rails_are_those_of_the_file() -> None:
    rails = {"min_token_acceptance": 0.5, "min_sequence_acceptance": 0.6}
    keys = {f"runtime__{key}": value for key, value in rails.items()}
    made = guarded(
        given(**keys, runtime__fallback_threshold_pct=15, runtime__speculative_window=5),
        None,
        lambda _alert: None,
    )
    limits = made.limits
    assert (limits.min_token_acceptance, limits.min_sequence_acceptance) == (0.5, 0.6)
    assert (limits.fallback_threshold_pct, limits.max_window) == (15, 5)


@pytest.fixture(scope="module")
def limited(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options: dict[str, Any] = {
        "server__max_answer_tokens": 700,
        "server__max_n": 2,
        "server__default_temperature": 0,
        "runtime__context_full": "slide",
        "runtime__context_size": 256,
        "monitoring__alert_webhook": "http://127.0.0.1:9/hook",
        "monitoring__request_log": str(tmp_path_factory.mktemp("log") / "requests.jsonl"),
        "monitoring__request_log_max_mb": 3,
        "monitoring__request_log_keep": 2,
    }
    with running(target, **options) as server:
        yield server


def test_limits_and_defaults_act_on_answers(limited: Running) -> None:
    def ask(**body: Any) -> httpx.Response:
        body = {"prompt": "hello", **body}
        return httpx.post(f"{limited.url}/v1/completions", json=body, timeout=60)

    whole = ask(max_tokens=10_000).json()
    assert whole["usage"]["completion_tokens"] == 700  # past the context of 256: it slid
    texts = {ask(max_tokens=30).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1  # greedy, though no temperature was named
    refused = ask(n=3)
    assert refused.status_code == 400 and "at most 2" in refused.text


def test_the_request_log_is_opened_as_told(limited: Running) -> None:
    log = limited.service._log
    assert log is not None
    assert (log._max_bytes, log._keep) == (3_000_000, 2)


def test_alerts_go_to_the_webhook_that_is_set(limited: Running) -> None:
    assert limited.service.alerts.webhook == "http://127.0.0.1:9/hook"

"""Keys of the deployment file reach the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from parlay.backend.opening import engine_settings, guarded
from parlay.deployment import Deployment, load_deployment
from parlay.engine.settings import EngineSettings
from tests.front.running import Running, running

# A value that is not the default, and where the engine is opened with it.
ENGINE: dict[str, tuple[Any, Callable[[EngineSettings], Any]]] = {
    "runtime.gpu_layers": (7, lambda s: s.model.gpu_layers),
    "runtime.llama.spec-draft-ngl": (3, lambda s: s.drafter_model.gpu_layers),
    "runtime.context_size": (777, lambda s: s.context.context_size),
    "runtime.vram_budget_gb": (5.5, lambda s: s.vram_budget_gb),
    "runtime.llama.main-gpu": (1, lambda s: s.model.main_gpu),
    "runtime.llama.n-cpu-moe": (2, lambda s: s.model.n_cpu_moe),
    "runtime.llama.split-mode": ("row", lambda s: s.model.split_mode),
    "runtime.llama.tensor-split": ((3.0, 1.0), lambda s: s.model.tensor_split),
    "runtime.llama.override-tensor": (
        ("exps=CPU",),
        lambda s: tuple(f"{o.pattern}={o.device}" for o in s.model.overrides),
    ),
    "runtime.llama.ubatch-size": (128, lambda s: s.context.n_ubatch),
    "runtime.prompt_cache_mb": (7, lambda s: s.context.prompt_cache_bytes >> 20),
    "runtime.llama.rope-scaling": ("yarn", lambda s: s.context.rope.scaling),
    "runtime.llama.rope-scale": (2.0, lambda s: s.context.rope.scale),
    "runtime.llama.rope-freq-base": (5e5, lambda s: s.context.rope.freq_base),
    "runtime.llama.yarn-orig-ctx": (2048, lambda s: s.context.rope.yarn_orig_context),
    "runtime.llama.yarn-ext-factor": (0.5, lambda s: s.context.rope.yarn_ext_factor),
    "runtime.llama.yarn-attn-factor": (0.5, lambda s: s.context.rope.yarn_attn_factor),
    "runtime.llama.yarn-beta-fast": (16.0, lambda s: s.context.rope.yarn_beta_fast),
    "runtime.llama.yarn-beta-slow": (2.0, lambda s: s.context.rope.yarn_beta_slow),
    "runtime.mode": ("faithful", lambda s: s.mode),
    "runtime.exact_class": ("3-4", lambda s: s.exact_class),
    "runtime.slots": (3, lambda s: s.context.n_sequences),
    "runtime.threads": (1, lambda s: s.context.threads),
    "runtime.follow_load": (False, lambda s: s.follow_load),
    "runtime.llama.batch-size": (256, lambda s: s.context.n_batch),
    "runtime.llama.device": (("CPU",), lambda s: s.model.devices),
    "runtime.llama.flash-attn": ("off", lambda s: s.context.flash_attention),
    "runtime.llama.cache-type-k": ("q8_0", lambda s: s.context.cache_type_k),
    "runtime.llama.cache-type-v": ("q8_0", lambda s: s.context.cache_type_v),
    "runtime.llama.spec-draft-type-k": ("q4_0", lambda s: s.drafter_cache_type_k),
    "runtime.llama.spec-draft-type-v": ("q4_0", lambda s: s.drafter_cache_type_v),
    "runtime.llama.mmap": (False, lambda s: s.model.mmap),
    "runtime.llama.mlock": (True, lambda s: s.model.mlock),
    "runtime.promise": ("each", lambda s: s.promise),
    "runtime.translate": (True, lambda s: s.translate),
    "runtime.llama.kv-unified": (True, lambda s: s.context.unified),
    "runtime.remember_tokens": (4096, lambda s: s.remember_tokens),
}


def given(**overrides: Any) -> Deployment:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_deployment(environ={}, overrides=dotted)


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
        "server__default_temperature": 0,
        "runtime__context_full": "slide",
        "runtime__context_size": 256,
        "monitoring__alert_webhook": "http://127.0.0.1:9/hook",
        "monitoring__request_log": str(tmp_path_factory.mktemp("log") / "requests.jsonl"),
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
    refused = ask(n=9)
    assert refused.status_code == 400 and "at most 8" in refused.text

"""llama.cpp's own server: `llama-server` and its flags, as in llama-cpp-python 0.3.36's source.

Knows those options and what one llama.cpp process cannot do; knows no file format.
"""

from __future__ import annotations

import math

from parlay.llama.settings import ALL, Adapter
from parlay.rendering.bet import EngineBet, Method, bet_of, has_markov_head
from parlay.rendering.builder import Builder
from parlay.rendering.common import alias_of, gguf_file, needs_key
from parlay.rendering.launch import Command, RenderError, Secret

VERSION = "the llama.cpp in llama-cpp-python 0.3.36"
KEY = "LLAMA_API_KEY"
_TYPES: dict[Method, str] = {
    "ngram": "ngram-simple",
    "suffix": "ngram-map-k",
    "draft_model": "draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
}
_MAX_NGRAM = 1024


class LlamaServerCommand(Builder):
    """`llama-server`."""

    engine, title, version = "llama-server", "llama-server", VERSION
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda"

    def refuse(self) -> None:
        scale = self.deployment.scale
        if scale.nodes > 1:
            raise RenderError(
                "llama-server runs on one machine; start one on each and put them behind the"
                " gateway (engine: endpoints), or render for vllm"
            )
        if scale.data_parallel > 1:
            raise RenderError(
                "llama-server has no replicas; start several and put them behind the gateway"
                " (engine: endpoints)"
            )
        if scale.tensor_parallel > 1 and scale.pipeline_parallel > 1:
            raise RenderError(
                "llama-server splits a model by layers or by tensors, not both; set one of"
                " scale.tensor_parallel and scale.pipeline_parallel to 1"
            )

    def target(self) -> str:
        model = self.deployment.model
        target = gguf_file(self.deployment.scale.target or model.target)
        if not target.endswith(".gguf"):
            raise RenderError(f"llama-server reads GGUF files, not {target}; set scale.target")
        self.account.carry("model.target", "--model")
        self.mount(target)
        return target

    def secrets(self) -> tuple[Secret, ...]:
        if not needs_key(self.deployment) or self.deployment.server.api_keys_file:
            return ()
        return (Secret(KEY, holds="the API keys, with commas between"),)

    def commands(self, target: str) -> tuple[Command, ...]:
        self._model(target)
        self._speculation(bet_of(self.deployment))
        self._runtime()
        self._caches()
        self._server()
        self._split()
        self._experts()
        self._rope()
        self._adapters()
        program = "/app/llama-server" if self.site.in_container else "llama-server"
        return (Command("server", (program, "--model", target, *self.argv)),)

    # -- model and bet --------------------------------------------------------

    def _model(self, target: str) -> None:
        self.flag("model.alias", "--alias", ",".join(alias_of(self.deployment, target)))
        none, own = self.deployment.model.tokenizer is None, "the target's own"
        self.either("model.tokenizer", none, own, f"llama-server uses {own}, unchecked")

    def _speculation(self, bet: EngineBet) -> None:
        account = self.account
        account.carry("model.drafter", "--spec-type" if bet.window else "no speculation")
        account.carry("scale.drafter", "--spec-draft-model" if bet.model else "not needed")
        account.carry("scale.method", "--spec-type" if bet.window else "no speculation")
        if not bet.window:
            account.carry("runtime.speculative_window", "no speculation")
            return
        # A proposer without a model may stand beside one with a model.
        dspark = bet.method == "dflash" and bet.model and has_markov_head(bet.model)
        types = ["draft-dspark" if dspark else _TYPES[bet.method]]
        types += [_TYPES["suffix"] for _ in bet.others]
        self.argv += ["--spec-type", ",".join(dict.fromkeys(types))]
        self._lengths(bet, types)
        if "ngram-map-k" in types:
            self.notes.append("suffix: llama-server's nearest is ngram-map-k, over one answer only")
        if bet.model is not None:
            drafter = gguf_file(bet.model)
            self.argv += ["--spec-draft-model", drafter]
            self.mount(drafter)
        self.window("--spec-draft-n-max", f"up to {bet.window} tokens")

    def _lengths(self, bet: EngineBet, types: list[str]) -> None:
        self.argv += ["--spec-draft-n-max", str(bet.window)]
        for name in ("ngram-simple", "ngram-map-k"):
            if name in types:
                self.argv += [f"--spec-{name}-size-m", str(min(_MAX_NGRAM, bet.window))]

    # -- runtime --------------------------------------------------------------

    def _runtime(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        # Without it each slot has its own share of the context.
        kind = "--kv-unified" if runtime.unified_cache else "--no-kv-unified"
        self.flag("runtime.unified_cache", kind)
        # 0: the model's own, which llama-server shortens until it fits.
        size = 0 if runtime.context_size == "auto" else runtime.context_size * runtime.slots
        self.flag("runtime.context_size", "--ctx-size", size)
        self.flag("runtime.slots", "--parallel", runtime.slots)
        every = self.all_on_gpu and runtime.gpu_layers != "auto"
        layers = "all" if every else runtime.gpu_layers
        self.flag("runtime.gpu_layers", "--n-gpu-layers", layers)
        if runtime.threads:
            self.flag("runtime.threads", "--threads", runtime.threads)
        else:
            account.carry("runtime.threads", "llama-server's default")
        for key, flag, rows in (
            ("runtime.batch", "--batch-size", runtime.batch),
            ("runtime.ubatch", "--ubatch-size", runtime.ubatch or runtime.batch),
        ):
            if rows:
                self.flag(key, flag, rows)
            else:
                account.carry(key, "llama-server's default")
        if runtime.devices:
            self.flag("runtime.devices", "--device", ",".join(runtime.devices))
        else:
            account.carry("runtime.devices", "all")
        self.flag("runtime.flash_attention", "--flash-attn", runtime.flash_attention)
        self.flag("runtime.prompt_cache_mb", "--cache-ram", runtime.prompt_cache_mb)
        shift = "--context-shift" if runtime.context_full == "slide" else "--no-context-shift"
        self.flag("runtime.context_full", shift)
        self._loading()
        self.leave("llama-server reads prompts by the batch", "runtime.prompt_chunk")
        self.leave("llama-server keeps to its threads", "runtime.follow_load")
        self.leave("llama-server keeps no account of what drafts cost", "runtime.promise")
        self.leave(
            "llama-server has no gate on acceptance; the gateway moves traffic by measured time",
            "runtime.min_token_acceptance",
            "runtime.min_sequence_acceptance",
            "runtime.fallback_threshold_pct",
            "runtime.controller",
        )
        self.leave(
            "llama-server does not look for exact passes",
            "runtime.mode",
            "runtime.exact_class",
            "runtime.exact_cost_pct",
        )

    def _loading(self) -> None:
        runtime = self.deployment.runtime
        modes = [name for name in ("mmap", "mlock") if getattr(runtime, name)]
        self.argv += ["--load-mode", "+".join(modes) or "none"]
        self.account.carry("runtime.mmap", "--load-mode")
        self.account.carry("runtime.mlock", "--load-mode")
        why = "llama-server leaves a margin free (--fit-target) instead"
        self.either("runtime.vram_budget_gb", runtime.vram_budget_gb is None, "no limit", why)
        self.account.carry("scale.gpu_memory_gb", "not needed")

    def _caches(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        drafts = bet_of(self.deployment).model is not None
        for key, flag in (
            ("cache_type_k", "--cache-type-k"),
            ("cache_type_v", "--cache-type-v"),
            ("drafter_cache_type_k", "--spec-draft-type-k"),
            ("drafter_cache_type_v", "--spec-draft-type-v"),
        ):
            value = getattr(runtime, key)
            if value == "auto" or (key.startswith("drafter") and not drafts):
                account.carry(f"runtime.{key}", "llama-server's default, f16")
            else:
                self.flag(f"runtime.{key}", flag, value)
        if drafts:
            layers = runtime.drafter_gpu_layers
            value = "all" if layers == -1 else layers
            self.flag("runtime.drafter_gpu_layers", "--spec-draft-ngl", value)
        else:
            account.carry("runtime.drafter_gpu_layers", "not needed")

    # -- server ---------------------------------------------------------------

    def _server(self) -> None:
        server, account = self.deployment.server, self.account
        self.address()
        self.argv += ["--metrics"]
        account.leave(
            "monitoring.metrics_endpoint", "llama-server has Prometheus at /metrics (--metrics)"
        )
        account.carry("server.api_keys", KEY)
        if server.api_keys_file:
            self.flag("server.api_keys_file", "--api-key-file", server.api_keys_file)
            self.mount(server.api_keys_file)
        else:
            account.carry("server.api_keys_file", "not needed")
        if server.cors_origins:
            self.flag("server.cors_origins", "--cors-origins", ",".join(server.cors_origins))
        else:
            account.leave("server.cors_origins", "llama-server's own default, see --cors-origins")
        self.flag("server.request_timeout_s", "--timeout", math.ceil(server.request_timeout_s))
        self.flag("server.default_temperature", "--temp", server.default_temperature)
        if server.max_answer_tokens is None:
            account.carry("server.max_answer_tokens", "no limit")
        else:
            self.flag("server.max_answer_tokens", "--predict", server.max_answer_tokens)
        self.leave(
            "llama-server has no such limit; the gateway keeps it",
            "server.queue_size",
            "server.drain_s",
            "server.max_body_mb",
            "server.max_prompt_tokens",
            "server.max_n",
        )
        account.leave(
            "server.allow_public_without_key", "llama-server never asks; only rendering checks it"
        )

    # -- large machines -------------------------------------------------------

    def _split(self) -> None:
        scale, runtime = self.deployment.scale, self.deployment.runtime
        mode: str = runtime.split_mode
        if scale.tensor_parallel > 1:
            mode = "tensor"
        elif scale.pipeline_parallel > 1:
            mode = "layer"
        if mode == "tensor":
            self.notes.append("--split-mode tensor is marked experimental by llama.cpp")
        if mode != "layer" or scale.pipeline_parallel > 1:
            self.argv += ["--split-mode", mode]
        self.account.carry("runtime.split_mode", "--split-mode")
        shares = ",".join(f"{share:g}" for share in runtime.tensor_split)
        self._given("runtime.tensor_split", "--tensor-split", shares, "by what is free")
        self._given("runtime.main_gpu", "--main-gpu", runtime.main_gpu, "the first")

    def _experts(self) -> None:
        runtime = self.deployment.runtime
        if runtime.n_cpu_moe == ALL:
            self.flag("runtime.n_cpu_moe", "--cpu-moe")
        else:
            self._given("runtime.n_cpu_moe", "--n-cpu-moe", runtime.n_cpu_moe, "none in RAM")
        with_comma = [text for text in runtime.tensor_overrides if "," in text]
        if with_comma:
            raise RenderError(
                f"runtime.tensor_overrides: llama-server takes {with_comma[0]!r} for two, at the"
                " comma; write two patterns"
            )
        overrides = ",".join(runtime.tensor_overrides)
        self._given("runtime.tensor_overrides", "--override-tensor", overrides, "none")

    def _rope(self) -> None:
        runtime = self.deployment.runtime
        scaling = "" if runtime.rope_scaling == "auto" else runtime.rope_scaling
        self._given("runtime.rope_scaling", "--rope-scaling", scaling, "the model's own")
        for key, flag in (
            ("rope_scale", "--rope-scale"),
            ("rope_freq_base", "--rope-freq-base"),
            ("yarn_orig_context", "--yarn-orig-ctx"),
            ("yarn_ext_factor", "--yarn-ext-factor"),
            ("yarn_attn_factor", "--yarn-attn-factor"),
            ("yarn_beta_fast", "--yarn-beta-fast"),
            ("yarn_beta_slow", "--yarn-beta-slow"),
        ):
            value = getattr(runtime, key)
            given = "" if value is None else f"{value:.9g}"
            self._given(f"runtime.{key}", flag, given, "the model's own")

    def _adapters(self) -> None:
        adapters = [Adapter.parse(text) for text in self.deployment.model.lora]
        for adapter in adapters:
            if set(str(adapter.path)) & set(",:"):
                raise RenderError(
                    f"model.lora: llama-server cannot take the name {adapter.path.name}; rename it"
                )
            self.mount(str(adapter.path))
        named = ",".join(f"{a.path}:{a.scale:g}" for a in adapters)
        self._given("model.lora", "--lora-scaled", named, "none")

    def _given(self, key: str, flag: str, value: object, otherwise: str) -> None:
        """By a flag where something was given, else as llama-server does it by itself."""
        if value:
            self.flag(key, flag, value)
        else:
            self.account.carry(key, otherwise)

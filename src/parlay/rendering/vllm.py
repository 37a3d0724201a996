"""vLLM: `vllm serve` and its flags, as of 0.32.

Knows vLLM's options and what is known to fail there; knows no file format.
"""

from __future__ import annotations

import json
import math
from typing import Any

from parlay.rendering.bet import EngineBet, bet_of
from parlay.rendering.builder import Builder
from parlay.rendering.common import (
    alias_of,
    device_ids,
    needs_key,
    repository,
)
from parlay.rendering.launch import Command, RenderError, Secret

VERSION = "0.32.0"
IMAGE = f"vllm/vllm-openai:v{VERSION}"
KEY = "VLLM_API_KEY"
_CACHE_TYPES = {"f16": "float16", "bf16": "bfloat16"}
_MAX_SHARE = 0.98
_RAY_PORT = 6379


class VllmCommand(Builder):
    """`vllm serve`."""

    engine, title, version, image = "vllm", "vLLM", VERSION, IMAGE

    def commands(self, target: str) -> tuple[Command, ...]:
        self._speculation()
        self._runtime()
        self._server()
        self._monitoring()
        self.leave_large_machine(rope="--hf-overrides", lora="--lora-modules")
        return self._machines(["vllm", "serve", target, *self.argv, *self._layout()])

    def secrets(self) -> tuple[Secret, ...]:
        return (Secret(KEY),) if needs_key(self.deployment) else ()

    # -- model and bet --------------------------------------------------------

    def target(self) -> str:
        model, scale = self.deployment.model, self.deployment.scale
        target = repository(scale.target or model.target, "scale.target", self.title)
        self.account.carry("model.target", "the model's name")
        self.mount(target)
        self.flag("model.alias", "--served-model-name", *alias_of(self.deployment, target))
        none, beside = model.tokenizer is None, "the one beside the weights"
        self.either("model.tokenizer", none, beside, f"vLLM reads {beside}; it is not checked")
        return target

    def _speculation(self) -> None:
        bet = bet_of(self.deployment)
        account = self.account
        account.carry("model.drafter", "--speculative-config" if bet.window else "no speculation")
        account.carry("scale.drafter", "--speculative-config")
        account.carry("scale.method", "--speculative-config" if bet.window else "no speculation")
        if not bet.window:
            account.carry("runtime.speculative_window", "no speculation")
            return
        self.argv += ["--speculative-config", json.dumps(self._config(bet), sort_keys=True)]
        self.argv += ["--per-request-spec-decode-metrics", "summary"]
        self.window("num_speculative_tokens", f"{bet.window} tokens in every round")
        if bet.others:
            self.notes.append(
                f"model.drafter: {', '.join(bet.others)} left out; vLLM bets with one proposer"
            )

    def refuse(self) -> None:
        bet = bet_of(self.deployment)
        if not bet.window:
            return
        if self.deployment.scale.pipeline_parallel > 1 and bet.method != "eagle3":
            raise RenderError(
                f"vLLM cannot speculate ({bet.method}) over pipeline stages: only EAGLE-3 passes"
                " what it needs between them (vllm-project/vllm issues 49355 and 57755); set"
                " scale.pipeline_parallel: 1 with more tensor_parallel, or scale.method: none"
            )

    def _config(self, bet: EngineBet) -> dict[str, Any]:
        config: dict[str, Any] = {"method": bet.method, "num_speculative_tokens": bet.window}
        if bet.method == "ngram":
            config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # our proposer's matches
        if bet.method == "suffix":
            self.notes.append("suffix decoding needs the package arctic-inference beside vLLM")
        if bet.method == "eagle3" and self.deployment.scale.pipeline_parallel > 1:
            self.notes.append(
                "EAGLE-3 over pipeline stages works for some targets; vLLM says which"
            )
        if bet.model is not None:
            config["model"] = repository(bet.model, "scale.drafter", self.title)
            self.mount(config["model"])
        return config

    # -- runtime --------------------------------------------------------------

    def _runtime(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        self.context("--max-model-len")
        per_engine = math.ceil(runtime.slots / self.deployment.scale.data_parallel)
        self.flag("runtime.slots", "--max-num-seqs", per_engine)
        self._layers()
        self._memory()
        self._caches()
        if runtime.batch:
            self.flag("runtime.batch", "--max-num-batched-tokens", max(runtime.batch, per_engine))
        else:
            account.leave("runtime.batch", "vLLM's own default suits its scheduler better")
        self._devices()
        self.context_full()
        self.leave_bets()

    def _layers(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        if runtime.gpu_layers == 0:
            account.carry("runtime.gpu_layers", "a CPU build of vLLM")
            self.notes.append("gpu_layers 0: use vLLM's CPU build (its image differs)")
            threads = runtime.threads
            if threads:
                self.env["OMP_NUM_THREADS"] = str(threads)
                self.env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            account.carry("runtime.threads", "OMP_NUM_THREADS")
            return
        account.leave("runtime.threads", "on a GPU vLLM chooses")
        why = "vLLM counts GB kept in RAM (--cpu-offload-gb), not layers"
        self.either("runtime.gpu_layers", self.all_on_gpu, "all layers are on the GPU", why)

    def _memory(self) -> None:
        said = self.card_share("--gpu-memory-utilization", _MAX_SHARE)
        how = "--gpu-memory-utilization" if said else "not needed"
        self.account.carry("scale.gpu_memory_gb", how)

    def _caches(self) -> None:
        runtime = self.deployment.runtime
        k, v = runtime.cache_type_k, runtime.cache_type_v
        if k == v and k in _CACHE_TYPES:
            self.flag("runtime.cache_type_k", "--kv-cache-dtype", _CACHE_TYPES[k])
            self.account.carry("runtime.cache_type_v", "--kv-cache-dtype")
            return
        for key, value in (("cache_type_k", k), ("cache_type_v", v)):
            why = f"vLLM has one type for both and no {value}; see fp8"
            self.either(f"runtime.{key}", value == "auto", "the model's own type", why)

    def _devices(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        ids = device_ids(runtime.devices)
        if not runtime.devices:
            account.carry("runtime.devices", "all")
        elif ids is None or self.site.launcher == "ray":
            account.leave("runtime.devices", "vLLM counts cards (--device-ids), and not under Ray")
        else:
            self.flag("runtime.devices", "--device-ids", ids)
        if runtime.flash_attention == "on":
            self.flag("runtime.flash_attention", "--attention-backend", "FLASH_ATTN")
        else:
            auto, why = (
                runtime.flash_attention == "auto",
                "vLLM has no attention without it on a GPU",
            )
            self.either("runtime.flash_attention", auto, "vLLM's choice", why)

    # -- server ---------------------------------------------------------------

    def _server(self) -> None:
        server, account = self.deployment.server, self.account
        self.address()
        self._keys()
        if server.cors_origins:
            self.flag("server.cors_origins", "--allowed-origins", json.dumps(server.cors_origins))
        else:
            account.carry("server.cors_origins", "none, vLLM's default")
        in_flight = server.queue_size + self.deployment.runtime.slots
        self.flag("server.queue_size", "--max-num-queued-reqs", in_flight)
        self.flag("server.drain_s", "--shutdown-timeout", math.ceil(server.drain_s))
        defaults: dict[str, Any] = {"temperature": server.default_temperature}
        account.carry("server.default_temperature", "--override-generation-config")
        if server.max_answer_tokens is not None:
            defaults["max_new_tokens"] = server.max_answer_tokens
        account.carry("server.max_answer_tokens", "--override-generation-config")
        self.argv += ["--override-generation-config", json.dumps(defaults, sort_keys=True)]
        for key in ("request_timeout_s", "max_body_mb", "max_prompt_tokens", "max_n"):
            account.leave(f"server.{key}", "vLLM has no such limit; the gateway keeps it")

    def _keys(self) -> None:
        server, account = self.deployment.server, self.account
        if len(server.api_keys) > 1 or server.api_keys_file:
            self.notes.append(f"vLLM reads one key from {KEY}; several are the gateway's to check")
        account.carry("server.api_keys", f"{KEY}, the first")
        no_file, why = not server.api_keys_file, f"vLLM reads one key, from {KEY}"
        self.either("server.api_keys_file", no_file, "not needed", why)
        account.leave(
            "server.allow_public_without_key", "vLLM never asks; only rendering checks it"
        )

    def _monitoring(self) -> None:
        self.account.leave(
            "monitoring.metrics_endpoint", "vLLM has Prometheus at /metrics; the gateway reads it"
        )
        self.account.leave("monitoring.cache_compaction_interval", "a paged cache has no holes")

    # -- machines -------------------------------------------------------------

    def _layout(self) -> list[str]:
        scale, ray = self.deployment.scale, self.site.launcher == "ray"
        argv: list[str] = []
        if scale.tensor_parallel > 1:
            argv += ["--tensor-parallel-size", str(scale.tensor_parallel)]
        if scale.pipeline_parallel > 1:
            argv += ["--pipeline-parallel-size", str(scale.pipeline_parallel)]
        if scale.data_parallel > 1:
            argv += ["--data-parallel-size", str(scale.data_parallel)]
        if ray:
            argv += ["--distributed-executor-backend", "ray"]
            if scale.data_parallel > 1:
                argv += ["--data-parallel-backend", "ray"]
        return argv

    def _machines(self, argv: list[str]) -> tuple[Command, ...]:
        scale = self.deployment.scale
        if self.site.launcher == "ray":
            return self._ray(argv)
        if scale.nodes == 1:
            return (Command("server", tuple(argv)),)
        make = self._replicas if scale.data_parallel > 1 else self._stages
        return tuple(make(argv, rank) for rank in range(scale.nodes))

    def _stages(self, argv: list[str], rank: int) -> Command:
        """One engine over all nodes: each holds a part of the model."""
        scale = self.deployment.scale
        spread = ["--nnodes", scale.nodes, "--node-rank", rank, "--master-addr", self.site.head]
        return _node(argv + [str(part) for part in spread], rank)

    def _replicas(self, argv: list[str], rank: int) -> Command:
        """Whole engines on every node, counted through; the head shares requests out."""
        local = self.deployment.scale.data_parallel // self.deployment.scale.nodes
        spread = ["--data-parallel-size-local", local, "--data-parallel-address", self.site.head]
        if rank:
            spread += ["--data-parallel-start-rank", rank * local]
        return _node(argv + [str(part) for part in spread], rank)

    def _ray(self, argv: list[str]) -> tuple[Command, ...]:
        start = ("ray", "start", "--head", f"--port={_RAY_PORT}")
        head = Command("head", tuple(argv), before=(start,))
        join = ("ray", "start", f"--address={self.site.head}:{_RAY_PORT}", "--block")
        n_workers = self.deployment.scale.nodes - 1
        return head, *(Command(f"worker-{i + 1}", join, serves=False) for i in range(n_workers))


def _node(argv: list[str], rank: int) -> Command:
    if rank == 0:
        return Command("head", tuple(argv))
    return Command(f"worker-{rank}", (*argv, "--headless"), serves=False)

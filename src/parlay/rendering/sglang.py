"""SGLang: `sglang.launch_server` and its flags, as of 0.5.23.

Knows SGLang's options and what it refuses itself; knows no file format.
"""

from __future__ import annotations

import math

from parlay.rendering.bet import EngineBet, Method, bet_of
from parlay.rendering.builder import Builder
from parlay.rendering.common import alias_of, needs_key, repository
from parlay.rendering.launch import Command, RenderError, Secret

VERSION = "0.5.23"
# It reads no key from the environment, but settings from a file.
KEY_FILE = "/run/secrets/sglang.yaml"
_DIST_PORT = 5000
_ALGORITHMS: dict[Method, str] = {
    "ngram": "NGRAM",
    "suffix": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",
    "dflash": "DFLASH",
}
_MAX_SHARE = 0.95


class SglangCommand(Builder):
    """`python -m sglang.launch_server`."""

    engine, title, version = "sglang", "SGLang", VERSION
    image = f"lmsysorg/sglang:v{VERSION}"

    def refuse(self) -> None:
        scale, bet = self.deployment.scale, bet_of(self.deployment)
        if scale.data_parallel > 1 and scale.nodes > 1:
            raise RenderError(
                "SGLang has no replicas over several nodes; render one node and put several behind"
                " the gateway (engine: endpoints)"
            )
        if scale.pipeline_parallel > 1 and bet.window and bet.method != "mtp":
            raise RenderError(
                f"SGLang speculates over pipeline stages with EAGLE and MTP only, not {bet.method};"
                " set scale.pipeline_parallel: 1 or scale.method: none"
            )
        if bet.method in ("ngram", "suffix") and self.deployment.runtime.gpu_layers == 0:
            raise RenderError("SGLang's n-gram proposer needs a GPU; set scale.method: none")

    def target(self) -> str:
        model, scale = self.deployment.model, self.deployment.scale
        target = repository(scale.target or model.target, "scale.target", self.title)
        self.account.carry("model.target", "--model-path")
        self.mount(target)
        return target

    def secrets(self) -> tuple[Secret, ...]:
        if not needs_key(self.deployment):
            return ()
        return (Secret(KEY_FILE, is_file=True, holds="one line, `api-key: KEY`"),)

    def commands(self, target: str) -> tuple[Command, ...]:
        self._model(target)
        self._speculation(bet_of(self.deployment))
        self._runtime()
        self._server()
        self.leave_large_machine(rope="--json-model-override-args", lora="--lora-paths")
        argv = ["python3", "-m", "sglang.launch_server", "--model-path", target, *self.argv]
        return self._machines([*argv, *self._layout()])

    # -- model and bet --------------------------------------------------------

    def _model(self, target: str) -> None:
        names = alias_of(self.deployment, target)
        self.flag("model.alias", "--served-model-name", names[0])
        if len(names) > 1:
            self.notes.append("SGLang shows one name; further aliases are left out")
        none, beside = self.deployment.model.tokenizer is None, "the one beside the weights"
        self.either("model.tokenizer", none, beside, f"SGLang reads {beside}")

    def _speculation(self, bet: EngineBet) -> None:
        account = self.account
        how = "--speculative-algorithm" if bet.window else "no speculation"
        account.carry("model.drafter", how)
        account.carry("scale.method", how)
        account.carry("scale.drafter", "--speculative-draft-model-path")
        if not bet.window:
            account.carry("runtime.speculative_window", "no speculation")
            return
        self.argv += ["--speculative-algorithm", _ALGORITHMS[bet.method], *self._lengths(bet)]
        if bet.model is not None:
            drafter = repository(bet.model, "scale.drafter", self.title)
            self.argv += ["--speculative-draft-model-path", drafter]
            self.mount(drafter)
        if bet.method == "suffix":
            self.notes.append("suffix: SGLang's nearest is NGRAM")
        if bet.others:
            self.notes.append(
                f"model.drafter: {', '.join(bet.others)} left out; SGLang bets with one proposer"
            )
        self.window("--speculative-num-draft-tokens", f"{bet.window} tokens a round")

    def _lengths(self, bet: EngineBet) -> list[str]:
        """Chains, not trees: what verifies a window of k is k + 1 tokens."""
        n_verified = str(bet.window + 1)
        if bet.method in ("ngram", "suffix", "dflash"):
            return ["--speculative-num-draft-tokens", n_verified]
        steps = ["--speculative-num-steps", str(bet.window), "--speculative-eagle-topk", "1"]
        return [*steps, "--speculative-num-draft-tokens", n_verified]

    # -- runtime --------------------------------------------------------------

    def _runtime(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        self.context("--context-length")
        per_engine = math.ceil(runtime.slots / self.deployment.scale.data_parallel)
        self.flag("runtime.slots", "--max-running-requests", per_engine)
        if runtime.batch:
            self.flag("runtime.batch", "--chunked-prefill-size", runtime.batch)
        else:
            account.leave("runtime.batch", "SGLang's own default suits its scheduler better")
        self._memory()
        self._devices()
        self.context_full()
        self.leave_bets()

    def _memory(self) -> None:
        self.card_share("--mem-fraction-static", _MAX_SHARE)
        self.account.carry("scale.gpu_memory_gb", "--mem-fraction-static")
        for name in ("cache_type_k", "cache_type_v"):
            value = getattr(self.deployment.runtime, name)
            own, why = value in ("auto", "f16"), f"SGLang has no {value}; see --kv-cache-dtype"
            self.either(f"runtime.{name}", own, "the model's own type", why)

    def _devices(self) -> None:
        runtime, account = self.deployment.runtime, self.account
        if runtime.gpu_layers == 0:
            self.flag("runtime.gpu_layers", "--device", "cpu")
        else:
            why = "SGLang counts GB kept in RAM, not layers"
            self.either("runtime.gpu_layers", self.all_on_gpu, "all layers are on the GPU", why)
        account.leave("runtime.threads", "SGLang chooses")
        why = "set CUDA_VISIBLE_DEVICES where SGLang starts"
        self.either("runtime.devices", not runtime.devices, "all", why)
        auto, why = runtime.flash_attention == "auto", "SGLang chooses; see --attention-backend"
        self.either("runtime.flash_attention", auto, "SGLang's choice", why)

    # -- server ---------------------------------------------------------------

    def _server(self) -> None:
        server, account = self.deployment.server, self.account
        self.address()
        if needs_key(self.deployment):
            self.argv += ["--config", KEY_FILE]
        account.carry("server.api_keys", f"{KEY_FILE}, the first")
        no_file, why = not server.api_keys_file, f"SGLang reads one key, from {KEY_FILE}"
        self.either("server.api_keys_file", no_file, "not needed", why)
        if len(server.api_keys) > 1:
            self.notes.append("SGLang takes one key; several are the gateway's to check")
        self.flag("server.queue_size", "--max-queued-requests", server.queue_size)
        self.argv += ["--enable-metrics"]
        account.leave(
            "monitoring.metrics_endpoint", "SGLang has Prometheus at /metrics; the gateway reads it"
        )
        self.leave(
            "SGLang has no such setting; the gateway keeps it",
            "server.cors_origins",
            "server.request_timeout_s",
            "server.drain_s",
            "server.max_body_mb",
            "server.max_prompt_tokens",
            "server.max_answer_tokens",
            "server.max_n",
            "server.default_temperature",
        )
        account.leave(
            "server.allow_public_without_key", "SGLang never asks; only rendering checks it"
        )

    # -- machines -------------------------------------------------------------

    def _layout(self) -> list[str]:
        scale = self.deployment.scale
        sizes = (
            ("--tp-size", scale.tensor_parallel),
            ("--pp-size", scale.pipeline_parallel),
            ("--dp-size", scale.data_parallel),
        )
        argv = [part for flag, size in sizes if size > 1 for part in (flag, str(size))]
        if scale.pipeline_parallel > 1:
            argv += ["--disable-overlap-schedule"]  # SGLang asks for that itself
        return argv

    def _machines(self, argv: list[str]) -> tuple[Command, ...]:
        nodes = self.deployment.scale.nodes
        if nodes == 1:
            return (Command("server", tuple(argv)),)
        join = ["--dist-init-addr", f"{self.site.head}:{_DIST_PORT}", "--nnodes", str(nodes)]
        return tuple(
            Command(
                "head" if rank == 0 else f"worker-{rank}",
                (*argv, *join, "--node-rank", str(rank)),
                serves=rank == 0,
            )
            for rank in range(nodes)
        )

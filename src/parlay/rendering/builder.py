"""What every engine's builder shares: flags gathered while each key is accounted for.

Knows the deployment file and the launch plan; the flags are the engines' own affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from parlay.deployment import Deployment
from parlay.rendering.common import (
    Site,
    alias_of,
    check_layout,
    folder_of,
    gpus_per_node,
    needs_key,
    port_of,
)
from parlay.rendering.key_account import KeyAccount
from parlay.rendering.launch import Command, LaunchPlan, Secret, service_name

_ALL_LAYERS = 99  # what people write for all of them


class Builder(ABC):
    """One engine's command in the making."""

    engine: str  # as the command line names it
    title: str  # as people do
    version: str
    image: str

    def __init__(self, deployment: Deployment, site: Site) -> None:
        self.deployment = deployment
        self.site = site
        self.account = KeyAccount(deployment, self.title)
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.notes: list[str] = []
        self.folders: list[str] = []

    def plan(self) -> LaunchPlan:
        """How this engine would run the deployment."""
        d = self.deployment
        check_layout(d, self.site.head)
        self.refuse()
        target = self.target()
        commands = self.commands(target)
        self._carry_layout()
        return LaunchPlan(
            engine=self.engine,
            version=self.version,
            name=service_name(alias_of(d, target)[0]),
            commands=commands,
            env=self.env,
            secrets=self.secrets(),
            host=d.server.host,
            port=port_of(d),
            image=d.scale.image or self.image,
            gpus=gpus_per_node(d),
            gpu_resource=d.scale.gpu_resource,
            folders=tuple(self.folders),
            drain_s=d.server.drain_s,
            asks_for_key=needs_key(d),
            public_without_key=d.server.allow_public_without_key,
            entries=self.account.entries(),
            notes=tuple(self.notes),
        )

    # -- an engine's own ------------------------------------------------------

    @abstractmethod
    def refuse(self) -> None:
        """Raise RenderError for what is known to fail."""

    @abstractmethod
    def target(self) -> str:
        """The model's name for this engine."""

    @abstractmethod
    def commands(self, target: str) -> tuple[Command, ...]:
        """What every machine runs; accounts for all that it carries."""

    @abstractmethod
    def secrets(self) -> tuple[Secret, ...]:
        """What must reach the engine beside its arguments."""

    # -- for all --------------------------------------------------------------

    def flag(self, key: str, flag: str, *values: object) -> None:
        """Carry a key by a flag."""
        self.argv += [flag, *(str(value) for value in values)]
        self.account.carry(key, flag)

    def either(self, key: str, carried: bool, how: str, why: str) -> None:
        """Carry a key as it is done anyway, or leave it behind for a reason."""
        if carried:
            self.account.carry(key, how)
        else:
            self.account.leave(key, why)

    def window(self, how: str, drafts: str) -> None:
        """A fixed window is carried; in place of the controller the engine drafts so much."""
        why = f"the controller chooses it here; {self.title} drafts {drafts}"
        self.either("runtime.speculative_window", not self.deployment.runtime.adaptive, how, why)

    def leave(self, why: str, *keys: str) -> None:
        """Leave several keys behind for one reason."""
        for key in keys:
            self.account.leave(key, why)

    def context(self, flag: str) -> None:
        """Tokens of each request; where they are to be found, the engine takes what it can."""
        size = self.deployment.runtime.context_size
        if size == "auto":
            self.account.leave(
                "runtime.context_size", f"{self.title} takes the model's own; see {flag}"
            )
        else:
            self.flag("runtime.context_size", flag, size)

    def address(self) -> None:
        """All of them name these two flags alike."""
        self.flag("server.host", "--host", self.site.host)
        self.flag("server.port", "--port", port_of(self.deployment))

    def card_share(self, flag: str, most: float) -> bool:
        """A limit in GB as a share of the card; whether that could be said."""
        budget, card = self.deployment.runtime.vram_budget_gb, self.deployment.scale.gpu_memory_gb
        key = "runtime.vram_budget_gb"
        if budget is None:
            self.account.carry(key, "no limit")
        elif card is None:
            self.leave(f"{self.title} takes a share of the card; give scale.gpu_memory_gb", key)
        else:
            self.flag(key, flag, f"{min(most, budget / card):.3g}")
        return budget is not None and card is not None

    def context_full(self) -> None:
        """An engine that always stops there."""
        stops = self.deployment.runtime.context_full == "stop"
        why = f"{self.title} stops at the end of the context"
        self.either("runtime.context_full", stops, f"{self.title} always stops", why)

    def leave_bets(self) -> None:
        """How Parlay bets and what it promises; this engine has its own way."""
        self.leave(
            f"{self.title} has no gate on acceptance; the gateway moves traffic by measured time",
            "runtime.min_token_acceptance",
            "runtime.min_sequence_acceptance",
            "runtime.fallback_threshold_pct",
            "runtime.controller",
        )
        self.leave(
            f"{self.title} promises the target's distribution, not the bytes of plain decoding",
            "runtime.mode",
            "runtime.exact_class",
            "runtime.exact_cost_pct",
        )
        self.leave(f"{self.title} keeps to its threads", "runtime.follow_load")
        self.leave(f"{self.title} keeps no account of what drafts cost", "runtime.promise")
        self.leave(f"{self.title} loads weights its own way", "runtime.mmap", "runtime.mlock")
        self.leave(
            "the drafter shares the target's devices and cache type",
            "runtime.drafter_gpu_layers",
            "runtime.drafter_cache_type_k",
            "runtime.drafter_cache_type_v",
        )

    def leave_large_machine(self, *, rope: str, lora: str) -> None:
        """What only llama.cpp does so, and the flags with which this engine does it instead."""
        self.leave(
            f"{self.title} splits a model evenly; see scale.tensor_parallel",
            "runtime.split_mode",
            "runtime.tensor_split",
            "runtime.main_gpu",
        )
        self.leave(
            f"{self.title} names GGUF's tensors by no pattern and keeps GB in RAM, not layers",
            "runtime.n_cpu_moe",
            "runtime.tensor_overrides",
        )
        self.leave(
            f"{self.title} cuts its batches by itself", "runtime.ubatch", "runtime.prompt_chunk"
        )
        self.leave(f"{self.title} pages its cache", "runtime.unified_cache")
        self.leave(f"{self.title} reads PEFT folders, not GGUF adapters; see {lora}", "model.lora")
        self.leave(
            f"{self.title} reads it from the model's config.json; see {rope}",
            "runtime.rope_scaling",
            "runtime.rope_scale",
            "runtime.rope_freq_base",
            "runtime.yarn_orig_context",
            "runtime.yarn_ext_factor",
            "runtime.yarn_attn_factor",
            "runtime.yarn_beta_fast",
            "runtime.yarn_beta_slow",
        )

    def mount(self, name: str) -> None:
        """A container must see the folder of this model, if it is one."""
        folder = folder_of(name)
        if folder is not None and folder not in self.folders:
            self.folders.append(folder)

    @property
    def all_on_gpu(self) -> bool:
        layers = self.deployment.runtime.layers
        return layers == -1 or layers >= _ALL_LAYERS

    def _carry_layout(self) -> None:
        for key in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
            self.account.carry(f"scale.{key}", "the engine's own flags")
        self.account.carry("scale.nodes", "one command for each")
        self.account.carry("scale.head", "the address that the others join")
        self.account.carry("scale.target", "the model's name")
        for key in ("port", "image", "gpu_resource"):
            self.account.carry(f"scale.{key}", "where the format needs it")

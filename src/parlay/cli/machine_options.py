"""The options of large machines, which several verbs share: splits, experts in RAM, RoPE, adapters.

Knows their names and what they become; a verb that takes them gets them as one value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from parlay.llama.settings import (
    Adapter,
    ModelSettings,
    Override,
    RopeScaling,
    RopeSettings,
    parse_split,
)


class SplitName(str, Enum):
    layer = "layer"
    row = "row"
    tensor = "tensor"
    none = "none"


class RopeName(str, Enum):
    auto = "auto"
    none = "none"
    linear = "linear"
    yarn = "yarn"


_ROPE = ("rope_scale", "rope_freq_base")
_YARN = (
    "yarn_orig_context",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
)


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What was given; None and empty: nothing was."""

    split_mode: Annotated[
        SplitName | None, typer.Option(help="How GPUs share the target; default: layer.")
    ] = None
    tensor_split: Annotated[
        str | None, typer.Option(help="Each GPU's share, such as 3,1; default: by what is free.")
    ] = None
    main_gpu: Annotated[
        int | None, typer.Option(min=0, help="The GPU to use with --split-mode none.")
    ] = None
    ubatch: Annotated[
        int | None, typer.Option(min=0, help="Rows llama.cpp computes at once; 0: the batch.")
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(min=-1, help="Keep the experts of the first N layers in RAM; -1: of all."),
    ] = None
    override_tensor: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=DEVICE, such as 'ffn_.*_exps=CPU'; may be repeated."),
    ] = None
    lora: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter: FILE or FILE:SCALE; may be repeated.")
    ] = None
    rope_scaling: Annotated[
        RopeName | None, typer.Option(help="How positions are stretched; default: the model's.")
    ] = None
    rope_scale: Annotated[float | None, typer.Option(help="So many times the trained context.")] = (
        None
    )
    rope_freq_base: Annotated[float | None, typer.Option(help="RoPE's base frequency.")] = None
    yarn_orig_context: Annotated[
        int | None, typer.Option(help="YaRN: the context the model was trained with.")
    ] = None
    yarn_ext_factor: Annotated[float | None, typer.Option(help="YaRN: extrapolation mix.")] = None
    yarn_attn_factor: Annotated[float | None, typer.Option(help="YaRN: magnitude.")] = None
    yarn_beta_fast: Annotated[float | None, typer.Option(help="YaRN: low correction.")] = None
    yarn_beta_slow: Annotated[float | None, typer.Option(help="YaRN: high correction.")] = None

    @property
    def shares(self) -> tuple[float, ...]:
        return parse_split(self.tensor_split) if self.tensor_split else ()

    @property
    def rope(self) -> RopeSettings:
        scaling: RopeScaling = self.rope_scaling.value if self.rope_scaling else "auto"
        stretch = {name.removeprefix("rope_"): getattr(self, name) for name in _ROPE}
        return RopeSettings(scaling, **stretch, **{name: getattr(self, name) for name in _YARN})

    def placed(self, model: ModelSettings) -> ModelSettings:
        """The same model, split and overridden as given."""
        return replace(
            model,
            split_mode=self.split_mode.value if self.split_mode else "layer",
            tensor_split=self.shares,
            main_gpu=self.main_gpu or 0,
            n_cpu_moe=self.n_cpu_moe or 0,
            overrides=tuple(Override.parse(text) for text in self.override_tensor or ()),
            adapters=tuple(Adapter.parse(text) for text in self.lora or ()),
        )

    def keywords(self) -> dict[str, Any]:
        """As `Parlay` takes them."""
        return {
            "split_mode": self.split_mode.value if self.split_mode else "layer",
            "tensor_split": self.shares,
            "main_gpu": self.main_gpu or 0,
            "ubatch": self.ubatch or 0,
            "n_cpu_moe": self.n_cpu_moe or 0,
            "tensor_overrides": self.override_tensor or (),
            "lora": self.lora or (),
            "rope": self.rope,
        }

    def keys(self) -> dict[str, Any]:
        """As the deployment file names them, with dots; what was not given is None."""
        alone = ("ubatch", "main_gpu", "n_cpu_moe", *_ROPE, *_YARN)
        found: dict[str, Any] = {f"runtime.{name}": getattr(self, name) for name in alone}
        found["runtime.split_mode"] = self.split_mode and self.split_mode.value
        found["runtime.rope_scaling"] = self.rope_scaling and self.rope_scaling.value
        found["runtime.tensor_split"] = self.shares or None
        found["runtime.tensor_overrides"] = self.override_tensor or None
        found["model.lora"] = [str(Path(name)) for name in self.lora] if self.lora else None
        return found


NO_MACHINE_OPTIONS = MachineOptions()

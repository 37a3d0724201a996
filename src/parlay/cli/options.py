"""Options that mean the same in several verbs: their names, limits and help.

Knows typer; what a verb does with them is its own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from parlay.errors import BadRequest

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Threads = Annotated[int, typer.Option(min=0, help="0: physical cores.")]
GpuLayers = Annotated[int, typer.Option(help="-1: all, if there is a GPU.")]
ContextSize = Annotated[int, typer.Option("--context-size", "-c", help="Tokens.")]


@dataclass(frozen=True, slots=True)
class PlacingOptions:
    """How much of a model is loaded where; the same for its drafter."""

    context_size: Annotated[
        str, typer.Option("--context-size", "-c", help="Tokens; auto: the longest that fits.")
    ] = "4096"
    gpu_layers: Annotated[
        str, typer.Option(help="-1: all, if there is a GPU; auto: as many as fit.")
    ] = "-1"
    cache_type_k: Annotated[str, typer.Option(help="Of keys: auto, f16, q8_0, ...")] = "auto"
    cache_type_v: Annotated[str, typer.Option(help="Of values.")] = "auto"
    drafter_cache_type_k: Annotated[str, typer.Option(help="The drafter's.")] = "auto"
    drafter_cache_type_v: Annotated[str, typer.Option(help="The drafter's.")] = "auto"
    drafter_gpu_layers: Annotated[int, typer.Option(help="As --gpu-layers.")] = -1

    @property
    def size(self) -> int | Literal["auto"]:
        return _number_or_auto("--context-size", self.context_size)

    @property
    def layers(self) -> int | Literal["auto"]:
        return _number_or_auto("--gpu-layers", self.gpu_layers)


def _number_or_auto(option: str, text: str) -> int | Literal["auto"]:
    """What was given for an option that Parlay can also find by itself."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{option} {text!r} is neither a number nor auto") from None

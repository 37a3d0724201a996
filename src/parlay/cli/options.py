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
# The same where Parlay can also find the number by itself.
GpuLayersOrAuto = Annotated[
    str, typer.Option(help="-1: all, if there is a GPU; auto: as many as fit.")
]
ContextSizeOrAuto = Annotated[
    str, typer.Option("--context-size", "-c", help="Tokens; auto: the longest that fits.")
]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Types of both caches, and where the drafter's weights go."""

    cache_type_k: Annotated[str, typer.Option(help="Of keys: auto, f16, q8_0, ...")] = "auto"
    cache_type_v: Annotated[str, typer.Option(help="Of values.")] = "auto"
    drafter_cache_type_k: Annotated[str, typer.Option(help="The drafter's.")] = "auto"
    drafter_cache_type_v: Annotated[str, typer.Option(help="The drafter's.")] = "auto"
    drafter_gpu_layers: Annotated[int, typer.Option(help="As --gpu-layers.")] = -1


def number_or_auto(option: str, text: str) -> int | Literal["auto"]:
    """What was given for an option that Parlay can also find by itself."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{option} {text!r} is neither a number nor auto") from None

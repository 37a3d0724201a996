"""What the deployment bets with, in words that every engine's flags can be made from.

Knows the deployment file and the first bytes of a drafter's file; knows no flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.llama.header import read_parts
from parlay.models import SHIPPED_DRAFTERS
from parlay.rendering.launch import RenderError

Method = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "dflash"]
FREE = ("suffix",)
_NEEDS_MODEL = ("draft_model", "eagle3", "dflash")


@dataclass(frozen=True, slots=True)
class EngineBet:
    """One way of drafting; `others`: further proposers the file names."""

    method: Method
    model: str | None
    window: int
    others: tuple[str, ...] = ()


def bet_of(deployment: Deployment) -> EngineBet:
    """What to draft with on another engine."""
    names = [part.strip() for part in deployment.model.drafter.split(",") if part.strip()]
    files = [str(SHIPPED_DRAFTERS.get(n, n)) for n in names if n not in (*FREE, "auto", "none")]
    free = ["suffix" if n == "auto" else n for n in names if n in (*FREE, "auto")]
    model = deployment.scale.drafter or (files[0] if files else None)
    method = _method(deployment, model, free)
    window = deployment.runtime.fixed_window
    if method == "none" or window == 0:
        return EngineBet("none", None, 0)
    if method in _NEEDS_MODEL and model is None:
        raise RenderError(f"scale.method {method} needs a drafter; name it in scale.drafter")
    others = tuple(n for n in free if n != method)
    named = model if method in (*_NEEDS_MODEL, "mtp") else None
    return EngineBet(method, named if named != deployment.model.target else None, window, others)


def _method(deployment: Deployment, model: str | None, free: list[str]) -> Method:
    wanted = deployment.scale.method
    if wanted != "auto":
        return wanted
    if model is not None:
        return _kind_of(model, deployment.model.target)
    return "suffix" if free else "none"


def _kind_of(model: str, target: str) -> Method:
    """By the architecture its file names; a drafter that is not here is taken for a plain one."""
    path = Path(model)
    if path.suffix != ".gguf" or not path.is_file():
        return "draft_model"
    try:
        header = read_parts(path)[0]
    except ParlayError:
        return "draft_model"
    architecture = header.text("general.architecture")
    if architecture in ("eagle3", "dflash"):
        return "eagle3" if architecture == "eagle3" else "dflash"
    names = [tensor.name for tensor in header.tensors]
    alone = model == target or not any(name.startswith("blk.0.") for name in names)
    return "mtp" if alone and any(".nextn." in name for name in names) else "draft_model"


def has_markov_head(model: str) -> bool:
    """Whether a drafter is a DSpark one, which llama.cpp counts as a kind of its own."""
    path = Path(model)
    if path.suffix != ".gguf" or not path.is_file():
        return False
    return any(tensor.name == "markov_w1.weight" for tensor in read_parts(path)[0].tensors)

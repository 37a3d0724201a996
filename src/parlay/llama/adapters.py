"""LoRA adapters: checked against the target's header, loaded with it, set on its contexts.

Knows the file's layout and the C calls; knows nothing of what an adapter is for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import BadRequest
from parlay.llama import library
from parlay.llama.header import Header, Tensor, read_parts
from parlay.llama.library import C
from parlay.llama.settings import Adapter

_PARTS = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class FactorPair:
    """Both factors of the change to one tensor."""

    a: Tensor
    b: Tensor

    @property
    def n_bytes(self) -> int:
        return self.a.n_bytes + self.b.n_bytes


def check_adapters(adapters: Sequence[Adapter], target: Path) -> None:
    """Raise BadRequest where one was made for another model; nothing is loaded for it."""
    if not adapters:
        return
    headers = read_parts(target)
    for adapter in adapters:
        _check(adapter.path, headers)


def read_pairs(path: Path) -> dict[str, FactorPair]:
    """The factors by the name of the tensor they change."""
    own = {tensor.name: tensor for tensor in read_parts(path)[0].tensors}
    names = {name.removesuffix(part) for name in own for part in _PARTS if name.endswith(part)}
    for name in sorted(names):
        missing = [part for part in _PARTS if name + part not in own]
        if missing:
            raise BadRequest(f"{path.name} lacks {name}{missing[0]}; convert the adapter again")
    return {
        name: FactorPair(own[name + ".lora_a"], own[name + ".lora_b"]) for name in sorted(names)
    }


def _check(path: Path, target: Sequence[Header]) -> None:
    header, name = read_parts(path)[0], target[0].path.name
    if header.text("general.type") != "adapter" or header.text("adapter.type") != "lora":
        raise BadRequest(f"{path.name} is no LoRA adapter; name a GGUF of general.type adapter")
    if "adapter.alora.invocation_tokens" in header.values:
        raise BadRequest(f"{path.name} is an activated LoRA, which Parlay does not run")
    made_for, own = header.text("general.architecture"), target[0].text("general.architecture")
    if made_for != own:
        raise BadRequest(f"{path.name} was made for {made_for}, {name} is {own}; use another")
    pairs = read_pairs(path)
    if not pairs:
        raise BadRequest(f"{path.name} changes no tensor; convert the adapter again")
    tensors = {tensor.name: tensor for part in target for tensor in part.tensors}
    for tensor, pair in pairs.items():
        if tensor not in tensors:
            raise BadRequest(f"{path.name} changes {tensor}, which {name} has not; use another")
        if not _fits(pair, tensors[tensor]):
            raise BadRequest(
                f"{path.name} changes {tensor} in another shape than {name} has it; it was made"
                " for another model"
            )


def _fits(pair: FactorPair, tensor: Tensor) -> bool:
    a, b, own = pair.a.dims, pair.b.dims, tensor.dims
    if len(a) < 2 or len(b) < 2 or len(own) < 2:
        return False
    if tensor.name == "token_embd.weight":  # llama.cpp has it the other way round
        return own[0] == b[1] and own[1] == a[1]
    return own[0] == a[0] and own[1] == b[1] and a[1] == b[0]


def load(model: int | None, adapters: Sequence[Adapter]) -> list[int]:
    """Pointers that live as long as the model."""
    return [_load(model, adapter) for adapter in adapters]


def _load(model: int | None, adapter: Adapter) -> int:
    library.forget_errors()
    loaded = C.llama_adapter_lora_init(model, os.fsencode(adapter.path))
    return library.made(loaded, f"load {adapter.path.name}")


def use(context: int | None, loaded: Sequence[int], adapters: Sequence[Adapter]) -> None:
    """Let every pass of a context go through them."""
    if not loaded:
        return
    handles = (ctypes.c_void_p * len(loaded))(*loaded)
    scales = (ctypes.c_float * len(loaded))(*(adapter.scale for adapter in adapters))
    library.check(
        C.llama_set_adapters_lora(context, handles, len(loaded), scales), "llama_set_adapters_lora"
    )

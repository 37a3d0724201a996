"""Which tensors go elsewhere than their layers, and how GPUs share a model: checked before a load.

Reads names from headers and devices from the library; allocates nothing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from parlay.errors import BadRequest
from parlay.llama import binding, library
from parlay.llama.header import read_parts
from parlay.llama.library import C
from parlay.llama.settings import ALL, ModelSettings, Override


def check_placement(path: Path, settings: ModelSettings) -> None:
    """Raise BadRequest for what llama.cpp would ignore in silence, or abort on."""
    check_split(settings, library.gpu_names(settings.devices))
    if settings.all_overrides:
        names = [tensor.name for header in read_parts(path) for tensor in header.tensors]
        check_overrides(settings, names, path.name)
        _check_devices(settings.overrides)


def check_split(settings: ModelSettings, gpus: Sequence[str]) -> None:
    """A share for each GPU that is there, and a main one among them."""
    n, shares = len(gpus), settings.tensor_split
    if shares and settings.split_mode == "none":
        raise BadRequest("a tensor split and split mode none; leave one of them out")
    if shares and len(shares) != n:
        raise BadRequest(
            f"the tensor split has {len(shares)} shares, there are {n} GPUs; give one for each"
        )
    if settings.main_gpu and settings.main_gpu >= n:
        raise BadRequest(f"main GPU {settings.main_gpu}, there are {n}; GPUs are counted from 0")
    if settings.split_mode in ("row", "tensor") and n == 0:
        raise BadRequest(f"split mode {settings.split_mode} needs a GPU; there is none")


def check_overrides(settings: ModelSettings, names: Sequence[str], file: str) -> None:
    """Each must match a tensor; experts in RAM need a mixture of experts."""
    for override in settings.overrides:
        if not any(_matches(override, name) for name in names):
            raise BadRequest(
                f"override {override.pattern!r} matches no tensor of {file}; its names are such as"
                f" {names[len(names) // 2]}"
            )
    experts = settings.all_overrides[len(settings.overrides) :]
    for i, override in enumerate(experts):
        if any(_matches(override, name) for name in names):
            continue
        if settings.n_cpu_moe == ALL or not any("exps" in name for name in names):
            raise BadRequest(f"{file} has no experts to keep in RAM; leave n_cpu_moe out")
        if not any(name.startswith(f"blk.{i}.") for name in names):
            raise BadRequest(f"{file} has {i} layers; n_cpu_moe is {settings.n_cpu_moe}")


def place_of(name: str, overrides: Iterable[Override]) -> str | None:
    """The device a tensor is overridden to, if any: the first that matches holds."""
    return next((o.device for o in overrides if _matches(o, name)), None)


def _matches(override: Override, name: str) -> bool:
    return re.search(override.pattern, name) is not None


def _check_devices(overrides: Iterable[Override]) -> None:
    for override in overrides:
        if library.memory_of(override.device) is None:
            known = ", ".join(library.device_handles())
            raise BadRequest(f"override to {override.device!r}; this build has {known}")


def override_list(overrides: Sequence[Override]) -> ctypes.Array[binding.Override] | None:
    """An array that ends with an empty entry, as the C side wants it."""
    if not overrides:
        return None
    made = (binding.Override * (len(overrides) + 1))()
    for at, override in enumerate(overrides):
        made[at] = binding.Override(override.pattern.encode(), library.memory_of(override.device))
    return made


def split_list(shares: Sequence[float]) -> ctypes.Array[ctypes.c_float] | None:
    """As many numbers as llama.cpp has room for devices."""
    if not shares:
        return None
    n_devices: int = C.llama_max_devices()
    return (ctypes.c_float * n_devices)(*shares)

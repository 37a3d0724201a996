"""What loading one model takes, item by item and place by place.

Knows how llama.cpp lays a model out; knows nothing of what is free.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from parlay.errors import BadRequest
from parlay.llama.placement import place_of
from parlay.llama.settings import (
    CPU,
    MOST_RECORDINGS,
    ContextSettings,
    ModelSettings,
    Override,
)
from parlay.planning.passes import F32, I32, I64, Pass, compute_bytes, rotation_size
from parlay.planning.shape import Layer, Shape, Weight

Place = Literal["gpu", "ram"]
Spot = tuple[Place, int]  # and which GPU
_RAM: Spot = ("ram", 0)
_Size = tuple[str, Spot, int]

_CELL_PAD = 256
# Of a layer in one recorded pass: its kernels, by 27B and 135M on an H200; and its operations, some
# 30, which ggml compares with those of the next pass.
_RECORDED_BYTES, _COMPARED_BYTES = 110_000, 32_000
# For architectures whose passes are only guessed: MLA takes 11 % more than a plain layer would and
# Mamba-2 beside attention up to 20 %, a mixture of experts up to 2 % more than what is followed.
# Masks are known, and without flash attention the scores are, which are most of a pass then.
_MARGIN, _MIXTURE_MARGIN = 1.15, 1.03


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One line of a plan."""

    model: str  # target or drafter
    # weights, repacked weights, adapters, cache, state, snapshots, compute, recordings, logits,
    # features, prompt cache
    what: str
    place: Place
    n_bytes: int
    device: int = 0  # which GPU, in the order llama.cpp lists them


@dataclass(frozen=True, slots=True)
class Load:
    """A model to be loaded, and how."""

    role: str
    shape: Shape
    model: ModelSettings
    context: ContextSettings
    n_features: int = 0  # layers whose inputs are read out for a drafter that wants them
    adapters: tuple[Weight, ...] = ()  # what LoRA adapters add, by the tensor they change
    rank: int = 0  # the largest of them


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Where the layers of a model go."""

    n_layers: int
    on_gpu: int  # how many of them and the head
    shares: tuple[float, ...]  # of each GPU: what was asked for, or what is free of it

    def of(self, i: int) -> Spot:
        """The last layers go to the GPUs first, the head before all of them."""
        first = self.n_layers + 1 - self.on_gpu
        if i < first:
            return "ram", 0
        points = [part / sum(self.shares) for part in accumulate(self.shares)]
        return "gpu", min(bisect_right(points, (i - first) / self.on_gpu), len(points) - 1)

    @property
    def head(self) -> Spot:
        return self.of(self.n_layers)

    @property
    def devices(self) -> list[int]:
        """The GPUs that hold any of it."""
        spots = {self.of(i) for i in range(self.n_layers + 1)}
        return sorted(device for place, device in spots if place == "gpu")


def needs(
    load: Load, *, gpus: Sequence[int] = (), repacked: frozenset[str] = frozenset()
) -> list[PlanItem]:
    """Every allocation of one model and its context. `gpus`: what is free of each."""
    on_gpu = gpu_layers(load, bool(gpus))
    split = LayerSplit(load.shape.n_layers, on_gpu, _shares(load.model, gpus))
    # With a GPU, llama.cpp keeps weights in RAM as they are, so that a wide pass can fetch them.
    copied = frozenset[str]() if gpus else repacked
    sizes = [*_weights(load, split, copied), *_cache(load, split), *_buffers(load, split)]
    spread = [part for size in sizes for part in _spread(size, load.model, split)]
    return [PlanItem(load.role, what, spot[0], n, spot[1]) for what, spot, n in spread if n]


def _shares(model: ModelSettings, gpus: Sequence[int]) -> tuple[float, ...]:
    if model.split_mode == "none":
        return tuple(float(i == model.main_gpu) for i in range(len(gpus)))
    # One that is full still counts as one: it gets the least.
    return model.tensor_split or tuple(max(1, free) for free in gpus)


_SPREAD = {
    "row": frozenset({"weights", "adapters"}),
    "tensor": frozenset({"weights", "adapters", "cache", "state"}),
}


def _spread(size: _Size, model: ModelSettings, split: LayerSplit) -> list[_Size]:
    """What a split by rows or tensors shares out over all GPUs, wherever its layer is."""
    what, (place, _), n = size
    if place == "ram" or what not in _SPREAD.get(model.split_mode, ()):
        return [size]
    total = sum(split.shares)
    return [(what, ("gpu", i), int(n * share / total)) for i, share in enumerate(split.shares)]


def gpu_layers(load: Load, has_gpu: bool) -> int:
    """Layers on the GPU; the head counts as one more, so all of them are n_layers + 1."""
    wanted, most = load.model.gpu_layers, load.shape.n_layers + 1
    if not has_gpu:
        return 0
    return most if wanted < 0 else min(wanted, most)


def cells(context: ContextSettings) -> int:
    """Cache cells of each sequence: llama.cpp rounds up."""
    return _padded(context.context_size, _CELL_PAD)


def cache_types(context: ContextSettings) -> tuple[str, str]:
    """Types of keys and values; what auto means has the same size everywhere."""
    k, v = context.cache_type_k, context.cache_type_v
    return ("f16" if k == "auto" else k), ("f16" if v == "auto" else v)


def row_bytes(n: int, cache_type: str) -> int:
    """Bytes of a row of `n` numbers in a cache type."""
    block, n_bytes = _block(cache_type)
    return n // block * n_bytes


def _block(cache_type: str) -> tuple[int, int]:
    """How many numbers a block of this type holds, and in how many bytes."""
    block, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[cache_type.upper()]]
    return int(block), int(n_bytes)


def check_cache_types(shape: Shape, context: ContextSettings) -> None:
    """Refuse what llama.cpp would refuse only after the weights are loaded."""
    sizes = (("K", shape.head_size_k), ("V", shape.head_size_v))
    for (name, head), cache_type in zip(sizes, cache_types(context), strict=True):
        block, _ = _block(cache_type)
        if head % block:
            raise BadRequest(
                f"a {name} cache of type {cache_type} cannot hold {shape.name}'s heads of {head}"
                f" (blocks of {block}); use f16"
            )
        if name == "V" and block > 1 and context.flash_attention == "off":
            raise BadRequest(f"a V cache of type {cache_type} needs flash attention; use f16")


def _weights(load: Load, split: LayerSplit, repacked: frozenset[str]) -> Iterable[_Size]:
    shape = load.shape
    sizes = Counter({("weights", _RAM): shape.input_bytes})
    sizes["weights", split.head] += shape.tied_bytes if split.on_gpu else 0
    copies = 0
    for weight, spot in _placed(load, split):
        sizes["weights", spot] += weight.n_bytes
        if spot == _RAM and weight.kind in repacked:
            copies += weight.n_bytes
    if not load.model.mmap:  # the file's own pages are not kept: only the copy is there
        sizes["weights", _RAM] -= copies
    spots = {weight.name: spot for weight, spot in _placed(load, split)}
    for adapter in load.adapters:
        sizes["adapters", spots.get(adapter.name, _RAM)] += adapter.n_bytes
    for (what, spot), n in sorted(sizes.items(), key=lambda item: item[0][::-1]):
        yield what, spot, n
    yield "repacked weights", _RAM, copies


def _placed(load: Load, split: LayerSplit) -> Iterable[tuple[Weight, Spot]]:
    """Every tensor but the embeddings, and where it goes."""
    moved = _moved(load.shape, load.model.all_overrides)
    for weight in load.shape.outputs:
        yield weight, moved.get(weight.name, split.head)
    for i, layer in enumerate(load.shape.layers):
        for weight in layer.weights:
            yield weight, moved.get(weight.name, split.of(i))


@functools.lru_cache(maxsize=64)  # a fit tries many settings that move the same tensors
def _moved(shape: Shape, overrides: tuple[Override, ...]) -> dict[str, Spot]:
    """The tensors that overrides send elsewhere, by their names."""
    if not overrides:
        return {}
    weights = [*shape.outputs, *(w for layer in shape.layers for w in layer.weights)]
    found = {weight.name: place_of(weight.name, overrides) for weight in weights}
    return {name: _spot(device) for name, device in found.items() if device is not None}


def _spot(device: str) -> Spot:
    """CPU, or a GPU by the number at the end of its name."""
    number = re.search(r"\d+$", device)
    return _RAM if device == CPU else ("gpu", int(number[0]) if number else 0)


def _cache(load: Load, split: LayerSplit) -> Iterable[_Size]:
    sizes: Counter[tuple[str, Spot]] = Counter()
    for i, layer in enumerate(load.shape.layers):
        sizes["cache", split.of(i)] += _cache_bytes(load, layer)
        state = _state_bytes(load, layer)
        sizes["state", split.of(i)] += state
        sizes["snapshots", split.of(i)] += state * _n_copies(load)
    return [(what, spot, n) for (what, spot), n in sizes.items()]


def _cache_bytes(load: Load, layer: Layer) -> int:
    # Sliding layers are kept at full length too (llama.cpp's default): a cache that forgets could
    # not be cut back after a rejected draft.
    k, v = cache_types(load.context)
    row = row_bytes(layer.n_k, k)
    if load.shape.keeps_values:
        row += row_bytes(_n_values(load, layer), v)
    return cells(load.context) * row * load.context.n_sequences


def _n_values(load: Load, layer: Layer) -> int:
    """Without flash attention values are stored transposed, by the width of the widest layer."""
    transposed = layer.n_v and load.context.flash_attention == "off"
    return max(each.n_v for each in load.shape.layers) if transposed else layer.n_v


def _state_bytes(load: Load, layer: Layer) -> int:
    if layer.state is None:
        return 0
    return (layer.state.n_conv + layer.state.n_state) * F32 * load.context.n_sequences


def n_snapshots(load: Load) -> int:
    """Those llama.cpp allocates: it ignores the wish where it cannot use them."""
    return load.context.n_snapshots if load.shape.takes_back else 0


def _n_copies(load: Load) -> int:
    """Beside snapshots one copy of the state is kept on the device, for the prompt's sake."""
    n = n_snapshots(load)
    return n + 1 if n else 0


def _buffers(load: Load, split: LayerSplit) -> Iterable[_Size]:
    """Each GPU that holds layers has a buffer for its part of a pass: as large as all of it."""
    work = largest_pass(load, on_gpu=bool(split.on_gpu))
    if split.on_gpu:
        work = replace(work, fetched=_fetched(load, split))
    row = load.shape.n_embd * F32
    logits = work.n_outputs * load.shape.n_vocab * F32
    compute = compute_bytes(load.shape, work)
    if not load.shape.followed and work.flash_attention:
        plain = load.shape.n_experts and load.shape.keeps_values
        guessed = compute - _mask_bytes(load, work)
        compute += int(guessed * ((_MIXTURE_MARGIN if plain else _MARGIN) - 1.0))
    for device in split.devices:
        yield "compute", ("gpu", device), compute
        n_layers = sum(split.of(i) == ("gpu", device) for i in range(split.n_layers))
        yield "recordings", ("gpu", device), MOST_RECORDINGS * n_layers * _RECORDED_BYTES
        yield "recordings", _RAM, MOST_RECORDINGS * n_layers * _COMPARED_BYTES
    yield "compute", _RAM, _host_bytes(load, work) if split.on_gpu else compute
    yield "logits", _RAM, logits
    features = load.n_features * work.n_tokens * row
    yield "features", split.head, features
    yield "features", _RAM, features


def _fetched(load: Load, split: LayerSplit) -> tuple[tuple[tuple[str, int], ...], ...]:
    """By layer, the matrices that lie in RAM: a wide pass copies each to the GPU to use it."""
    in_ram = [
        [] if spot != _RAM else [(weight.name.split(".")[2], weight.n_bytes)]
        for weight, spot in _placed(load, split)
        if weight.name.startswith("blk.")
    ]
    counts = [len(layer.weights) for layer in load.shape.layers]
    ends = list(accumulate(counts))
    return tuple(
        tuple(found for one in in_ram[end - n : end] for found in one)
        for n, end in zip(counts, ends, strict=True)
    )


def _host_bytes(load: Load, work: Pass) -> int:
    """The RAM side of a pass on a GPU: inputs and embeddings.

    Also where some layers are in RAM: llama.cpp computes wide passes over them on the GPU.
    """
    embeddings = 2 * work.n_tokens * load.shape.n_embd * F32
    return embeddings + _mask_bytes(load, work) + work.n_tokens * (2 * I32 + 2 * I64)


def _mask_bytes(load: Load, work: Pass) -> int:
    """With flash attention: which token may look at which cell."""
    return work.n_cells * work.n_tokens * 2 * (2 if load.shape.sliding_window else 1)


def largest_pass(load: Load, *, on_gpu: bool) -> Pass:
    """What llama.cpp reserves buffers for."""
    context, shape = load.context, load.shape
    n_cells = cells(context)
    n_tokens = min(context.rows_at_once, n_cells * context.n_sequences)
    flash = context.flash_attention != "off"
    rotated = [
        _block(cache_type)[0] > 1 and rotation_size(head) > 0
        for cache_type, head in zip(
            cache_types(context), (shape.head_size_k, shape.head_size_v), strict=True
        )
    ]
    return Pass(
        n_tokens=n_tokens,
        n_outputs=min(n_tokens, context.n_outputs),
        n_sequences=context.n_sequences,
        n_cells=n_cells,
        flash_attention=flash,
        rotated_k=rotated[0],
        rotated_v=rotated[1],
        on_gpu=on_gpu,
        rank=load.rank,
        n_snapshots=n_snapshots(load),
    )


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to

"""A model's shape: what each layer weighs, stores and computes, from the file's header alone.

Knows llama.cpp's reading of the keys; knows nothing of devices, contexts or what is free.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parlay.llama.facts import ASSISTANT, Recurrent, read_facts
from parlay.llama.header import AGAIN, Header, Tensor, fail, read_parts

_LAYER = re.compile(r"blk\.(\d+)\.")
_INPUT = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight")
# Sliding layers between two full ones, where the file does not say; True: the full one comes first.
_SLIDING_PATTERN = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
# Hybrids whose recurrent layers are told by an interval, not by missing keys and values.
_INTERVAL = ("qwen3next", "qwen35", "qwen35moe", "minimax-01")
# Whose recurrent layers llama.cpp can take back by itself, snapshot by snapshot.
_TAKEN_BACK = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    }
)
_RECURRENT_ONLY = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
DELTA_NETS = ("qwen35", "qwen35moe")
# What the passes of these compute is followed operation by operation (passes.py).
FOLLOWED = frozenset({"gemma3", "lfm2", "llama", "mamba", "qwen2", "qwen3", "qwen35"})


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the file."""

    name: str
    n_bytes: int
    kind: str = ""  # of a matrix that a CPU may rearrange; empty: it is none


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. Widths are numbers per token; 0 where it has none."""

    weights: tuple[Weight, ...]
    n_q: int
    n_k: int
    n_v: int
    n_ff: int
    state: Recurrent | None  # kept for each sequence
    sliding: bool = False

    @property
    def n_bytes(self) -> int:
        return sum(weight.n_bytes for weight in self.weights)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as far as memory is concerned."""

    name: str
    architecture: str
    file_type: str
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    head_size_k: int
    head_size_v: int
    n_experts: int
    n_experts_used: int
    n_ff_expert: int
    sliding_window: int
    keeps_values: bool  # False for MLA: one compressed row per token serves as both
    layers: tuple[Layer, ...]
    input_bytes: int  # embeddings: they stay in RAM
    outputs: tuple[Weight, ...]  # the head and all else outside the layers
    tied_bytes: int  # the embeddings once more where they serve as the head
    n_inner: int = 0  # width of a recurrent layer's inside
    n_reads: int = 0  # layers of its target whose inputs a drafter reads

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> list[str]:
        """Of all tensors but the embeddings."""
        inside = [weight.name for layer in self.layers for weight in layer.weights]
        return [*(weight.name for weight in self.outputs), *inside]

    @property
    def output_bytes(self) -> int:
        return sum(weight.n_bytes for weight in self.outputs)

    @property
    def weight_bytes(self) -> int:
        """All tensors once, as they lie in the file."""
        return self.input_bytes + self.output_bytes + sum(layer.n_bytes for layer in self.layers)

    @property
    def takes_back(self) -> bool:
        """Whether snapshots of its state can be kept; what a file's model really can is probed."""
        states = any(layer.state is not None for layer in self.layers)
        return states and self.architecture in _TAKEN_BACK

    @property
    def followed(self) -> bool:
        """Whether compute buffers are computed, not estimated from a similar architecture."""
        return self.architecture in FOLLOWED


def read_shape(path: Path, *, head: bool = False) -> Shape:
    """The shape of a model file, or of a split model given its first file.

    `head`: only of the NextN layers in it, which use what else is loaded of the file.
    """
    try:
        found = path.stat()
    except OSError:
        return _read_shape(path, head)  # which says what is wrong
    return _shape_of(path, head, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=16)  # a start asks for the same one several times
def _shape_of(path: Path, head: bool, _size: int, _written: int) -> Shape:
    return _read_shape(path, head)


def _read_shape(path: Path, head: bool) -> Shape:
    facts = read_facts(path)
    headers = read_parts(path)
    first = _Keys(headers[0], facts.architecture)
    tensors = [tensor for header in headers for tensor in header.tensors]
    by_name = {tensor.name: tensor for tensor in tensors}
    lone = head or not any(_LAYER.match(name) and name.startswith("blk.0.") for name in by_name)
    n_heads = first.count("nextn_predict_layers") if lone else 0
    borrows = facts.architecture == ASSISTANT
    state = None if n_heads else facts.recurrent
    layers = _layers(first, tensors, facts.n_layers + n_heads, state)
    if n_heads:
        layers = layers[facts.n_layers :]
    if head:
        tensors = []
    outside = [t for t in tensors if not _LAYER.match(t.name) and t.name not in _INPUT]
    embeddings = by_name.get("token_embd.weight")
    tied = "output.weight" not in by_name and embeddings is not None
    inputs = sum(t.n_bytes for t in tensors if t.name in _INPUT)
    return Shape(
        name=path.name,
        architecture=facts.architecture,
        file_type=facts.file_type or facts.tensor_type,
        n_embd=facts.n_embd,
        n_vocab=facts.n_vocab,
        n_ctx_train=facts.n_ctx_train,
        head_size_k=facts.head_size_k,
        head_size_v=facts.head_size_v,
        n_experts=facts.n_experts,
        n_experts_used=facts.n_experts_used,
        n_ff_expert=first.count("expert_feed_forward_length") or facts.n_ff,
        sliding_window=_sliding_window(first),
        keeps_values=not first.count("attention.key_length_mla"),
        layers=layers,
        input_bytes=inputs,
        outputs=tuple(Weight(t.name, t.n_bytes) for t in outside),
        tied_bytes=embeddings.n_bytes if tied and embeddings is not None and not head else 0,
        n_inner=first.count("ssm.inner_size"),
        n_reads=first.length("target_layers") or int(n_heads > 0 or borrows),
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    """The architecture's own keys of a header."""

    header: Header
    architecture: str

    def count(self, name: str) -> int:
        return self.header.count(f"{self.architecture}.{name}", 0)

    def length(self, name: str) -> int:
        """Of an array; 0 where the file has none."""
        value = self.header.values.get(f"{self.architecture}.{name}")
        return len(value) if isinstance(value, tuple) else 0

    def by_layer(self, name: str, n_layers: int, default: int = 0) -> list[int]:
        """One count for each layer, also where the file gives one for all."""
        counts = self.header.counts(f"{self.architecture}.{name}", default)
        if 1 < len(counts) < n_layers:
            fail(self.header.path, f"gives {name} for {len(counts)} of {n_layers} layers; {AGAIN}")
        return list(counts) * n_layers if len(counts) == 1 else list(counts[:n_layers])

    def array(self, name: str) -> list[bool] | None:
        """Flags by layer, or None where the file has no such array."""
        value = self.header.values.get(f"{self.architecture}.{name}")
        return [bool(flag) for flag in value] if isinstance(value, tuple) else None


def _layers(
    keys: _Keys, tensors: Sequence[Tensor], n_layers: int, state: Recurrent | None
) -> tuple[Layer, ...]:
    by_layer: list[list[Tensor]] = [[] for _ in range(n_layers)]
    for tensor in tensors:
        found = _LAYER.match(tensor.name)
        # Layers beyond the model's own only predict further tokens; llama.cpp skips them.
        if found and int(found[1]) < n_layers:
            by_layer[int(found[1])].append(tensor)
    sliding = _sliding(keys, n_layers)
    recurrent = _recurrent(keys, n_layers, state)
    widths = _widths(keys, n_layers, sliding)
    ff = keys.by_layer("feed_forward_length", n_layers)
    return tuple(
        Layer(
            weights=tuple(Weight(t.name, t.n_bytes, _matrix_kind(t)) for t in own),
            n_q=0 if recurrent[i] == "only" else widths[i][0],
            n_k=0 if recurrent[i] == "only" else widths[i][1],
            n_v=0 if recurrent[i] == "only" else widths[i][2],
            n_ff=ff[i] if i < len(ff) else 0,
            state=state if recurrent[i] else None,
            sliding=sliding[i],
        )
        for i, own in enumerate(by_layer)
    )


def _matrix_kind(tensor: Tensor) -> str:
    return tensor.kind if len(tensor.dims) > 1 and tensor.dims[1] % 8 == 0 else ""


def _widths(keys: _Keys, n_layers: int, sliding: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Numbers per token in queries, keys and values, by layer."""
    n_embd = keys.count("embedding_length")
    heads = keys.by_layer("attention.head_count", n_layers)
    kv_name = "attention.head_count_kv"
    has_kv = f"{keys.architecture}.{kv_name}" in keys.header.values
    kv_heads = keys.by_layer(kv_name, n_layers) if has_kv else heads
    size = n_embd // max(heads) if max(heads) else 0
    k, v = (keys.count(f"attention.{name}_length") or size for name in ("key", "value"))
    k_swa, v_swa = (keys.count(f"attention.{name}_length_swa") for name in ("key", "value"))
    widths = []
    for n, n_kv, slides in zip(heads, kv_heads, sliding, strict=True):
        own_k, own_v = (k_swa or k, v_swa or v) if slides else (k, v)
        widths.append((n * own_k, n_kv * own_k, n_kv * own_v))
    shared = keys.count("attention.shared_kv_layers")
    if keys.architecture == ASSISTANT:
        shared = n_layers  # with the target
    for i in range(n_layers - shared, n_layers if shared else 0):
        widths[i] = (widths[i][0], 0, 0)  # reads an earlier layer's cache
    return widths


def _sliding_window(keys: _Keys) -> int:
    return keys.count("attention.sliding_window") if any(_sliding(keys, 1 << 9)) else 0


def _sliding(keys: _Keys, n_layers: int) -> list[bool]:
    """Which layers forget what is further back than the window."""
    name = "attention.sliding_window_pattern"
    given = keys.array(name)
    if not keys.count("attention.sliding_window"):
        return [False] * n_layers
    if given is not None:
        return (given + [False] * n_layers)[:n_layers]
    if keys.architecture not in _SLIDING_PATTERN:
        return [False] * n_layers
    period, full_first = _SLIDING_PATTERN[keys.architecture]
    period = keys.count(name) or period
    full = 0 if full_first else period - 1
    return [i % period != full for i in range(n_layers)]


def _recurrent(keys: _Keys, n_layers: int, state: Recurrent | None) -> list[str]:
    """By layer: "" (attention), "only" (recurrent) or "both"."""
    if state is None:
        return [""] * n_layers
    if keys.architecture in _RECURRENT_ONLY:
        return ["only"] * n_layers
    if keys.architecture == "falcon-h1":
        return ["both"] * n_layers
    if keys.architecture in _INTERVAL:
        given = keys.array("attention.recurrent_layers")
        every = keys.count("full_attention_interval") or 4
        flags = given or [(i + 1) % every != 0 for i in range(n_layers)]
        return ["only" if flag else "" for flag in flags[:n_layers]]
    kv_heads = keys.by_layer("attention.head_count_kv", n_layers)
    # Nemotron-H has layers that are neither: they only feed forward.
    ff = keys.by_layer("feed_forward_length", n_layers)
    neither = keys.architecture.startswith("nemotron_h")
    return [
        "only" if n == 0 and not (neither and n_ff) else ""
        for n, n_ff in zip(kv_heads, ff, strict=True)
    ]

"""What a GGUF file says about its model, read from the header alone, in bounded time and memory.

Does not know llama.cpp's loader: what a layer does with these numbers is the loader's affair.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import LlamaFileType

from parlay.llama.header import AGAIN, MAX_LAYERS, Header, Long, Tensor, fail, read_parts

# Beyond it llama.cpp does not report an error but aborts the process.
MAX_EXPERTS = 1024
# The architecture of Gemma 4's assistant: a drafter that has no keys and values of its own.
ASSISTANT = "gemma4-assistant"


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Size of the state a recurrent layer keeps for each sequence, in numbers of four bytes."""

    n_conv: int  # last inputs of the convolution, or of the token shift
    n_state: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A model as its file describes it. A count that varies by layer is given as its maximum."""

    architecture: str
    name: str | None
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    kv_heads_by_layer: tuple[int, ...]  # 0 where a layer keeps no keys and values
    head_size_k: int
    head_size_v: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    file_type: str | None  # what the file calls itself, such as Q4_K_M
    tensor_type: str  # the type that holds most parameters, such as Q4_K
    n_params: int
    file_bytes: int
    tensor_bytes: int
    tokenizer: str | None
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    n_experts: int
    n_experts_used: int
    sliding_window: int | None
    recurrent: Recurrent | None
    temperature: float | None = None  # that the file recommends
    shares_keys: bool = False  # values are read out of the keys (MLA): both have one type

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None


def read_facts(path: Path) -> Facts:
    """Read a model file, or all files of a split model when given the first one."""
    headers = read_parts(path)
    tensors = [tensor for header in headers for tensor in header.tensors]
    if not tensors:
        fail(path, "holds no weights, only a vocabulary: use the model's own file")
    return _facts(headers[0], tensors, file_bytes=sum(header.file_bytes for header in headers))


# -- the facts --------------------------------------------------------------------------------


def _facts(header: Header, tensors: list[Tensor], file_bytes: int) -> Facts:
    arch = header.text("general.architecture")
    if arch is None:
        fail(header.path, f"lacks general.architecture; {AGAIN}")
    n_layers = _n_layers(header, arch)
    n_embd = header.count(f"{arch}.embedding_length")
    if n_embd == 0:
        fail(header.path, f"claims embeddings of no width; {AGAIN}")
    heads = header.counts(f"{arch}.attention.head_count", 0)
    kv_heads = _kv_heads(header, arch, n_layers)
    head_size = n_embd // max(heads) if max(heads) else 0
    n_experts, n_experts_used = _experts(header, arch)
    return Facts(
        architecture=arch,
        name=header.text("general.name"),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=max(heads),
        n_kv_heads=max(kv_heads),
        kv_heads_by_layer=kv_heads,
        head_size_k=header.count(f"{arch}.attention.key_length", head_size),
        head_size_v=header.count(f"{arch}.attention.value_length", head_size),
        n_ff=header.count(f"{arch}.feed_forward_length", 0),
        n_vocab=_n_vocab(header, arch),
        n_ctx_train=header.count(f"{arch}.context_length"),
        file_type=_file_type(header),
        tensor_type=_main_type(tensors),
        n_params=sum(tensor.n_elements for tensor in tensors),
        file_bytes=file_bytes,
        tensor_bytes=sum(tensor.n_bytes for tensor in tensors),
        tokenizer=header.text("tokenizer.ggml.model"),
        bos_id=header.optional("tokenizer.ggml.bos_token_id"),
        eos_id=header.optional("tokenizer.ggml.eos_token_id"),
        chat_template=header.text("tokenizer.chat_template"),
        n_experts=n_experts,
        n_experts_used=n_experts_used,
        sliding_window=header.count(f"{arch}.attention.sliding_window", 0) or None,
        recurrent=_recurrent(header, arch, n_embd, max(heads)),
        temperature=header.decimal("general.sampling.temp"),
        shares_keys=arch == "deepseek4" or header.count(f"{arch}.attention.key_length_mla", 0) > 0,
    )


def _n_layers(header: Header, arch: str) -> int:
    """Layers of the model proper: those that only predict further tokens are not counted."""
    n_all = header.count(f"{arch}.block_count")
    # An assistant has no other layers.
    n_extra = 0 if arch == ASSISTANT else header.count(f"{arch}.nextn_predict_layers", 0)
    if not n_extra < n_all <= MAX_LAYERS:
        fail(header.path, f"claims {n_all} layers, {n_extra} of them extra; {AGAIN}")
    return n_all - n_extra


def _experts(header: Header, arch: str) -> tuple[int, int]:
    n_all = header.count(f"{arch}.expert_count", 0)
    n_used = header.count(f"{arch}.expert_used_count", 0)
    if not n_used <= n_all <= MAX_EXPERTS or (n_all > 0) != (n_used > 0):
        fail(header.path, f"claims {n_all} experts, {n_used} of them used; {AGAIN}")
    return n_all, n_used


def _kv_heads(header: Header, arch: str, n_layers: int) -> tuple[int, ...]:
    key = f"{arch}.attention.head_count_kv"
    if key not in header.values:  # every head has keys and values of its own
        key = f"{arch}.attention.head_count"
    counts = header.counts(key, 0)
    if len(counts) == 1:
        return counts * n_layers
    if len(counts) < n_layers:
        fail(header.path, f"gives {key} for {len(counts)} of {n_layers} layers; {AGAIN}")
    return counts[:n_layers]


def _n_vocab(header: Header, arch: str) -> int:
    tokens = header.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Long):
        return tokens.length
    return header.count(f"{arch}.vocab_size")


def _file_type(header: Header) -> str | None:
    value = header.optional("general.file_type")
    if value is None:
        return None
    try:
        name: str = LlamaFileType(value).name
    except ValueError:
        return f"unknown ({value})"
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _main_type(tensors: list[Tensor]) -> str:
    n_by_type: Counter[str] = Counter()
    for tensor in tensors:
        n_by_type[tensor.kind] += tensor.n_elements
    return n_by_type.most_common(1)[0][0]


def _recurrent(header: Header, arch: str, n_embd: int, n_heads: int) -> Recurrent | None:
    """State sizes by family, as llama.cpp allocates them."""

    def of(key: str) -> int:
        return header.count(f"{arch}.{key}", 0)

    if head := of("wkv.head_size"):  # RWKV: two token shifts unless it says so
        return Recurrent(header.count(f"{arch}.token_shift_count", 2) * n_embd, n_embd * head)
    if length := of("shortconv.l_cache"):  # LFM2
        return Recurrent((length - 1) * n_embd, 0)
    n_kept = max(of("ssm.conv_kernel") - 1, 0)
    if head := of("kda.head_dim"):  # Kimi
        return Recurrent(3 * n_kept * n_heads * head, head * head * n_heads)
    if inner := of("ssm.inner_size"):  # Mamba, and hybrids made of it
        n_state = of("ssm.state_size")
        return Recurrent(n_kept * (inner + 2 * of("ssm.group_count") * n_state), inner * n_state)
    return None

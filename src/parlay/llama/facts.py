"""What a GGUF file says about its model, read from the header alone, in bounded time and memory.

Does not know llama.cpp's loader: what a layer does with these numbers is the loader's affair.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFValueType,
    LlamaFileType,
)

from parlay.errors import ModelFileError

# gguf's own reader makes numpy views of every token and merge: 2 s for a 49k vocabulary, and it
# trusts every count. This one walks over what it does not need and believes nothing.
MAX_HEADER_BYTES = 64 << 20  # a 262k vocabulary with its merges takes 17 MiB
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = (1 << 16) - 1
MAX_DIMS = 4
# Beyond these llama.cpp does not report an error but aborts the process.
MAX_LAYERS = 512
MAX_EXPERTS = 1024

_SUPPORTED_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_AGAIN = "download or convert it again"
_MISSING = "does not exist: check the path, or download the model first"
_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


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

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None


def read_facts(path: Path) -> Facts:
    """Read a model file, or all files of a split model when given the first one."""
    first = _read_header(path)
    headers = [first, *(_read_header(part) for part in _other_parts(path, first))]
    tensors = [tensor for header in headers for tensor in header.tensors]
    if not tensors:
        _fail(path, "holds no weights, only a vocabulary: use the model's own file")
    return _facts(first, tensors, file_bytes=sum(header.file_bytes for header in headers))


# -- the header -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Long:
    """An array that was walked over: its length is known, its contents are not."""

    length: int


_Number = int | float
_Value = _Number | str | tuple[_Number, ...] | _Long


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: str
    n_elements: int
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Header:
    path: Path
    file_bytes: int
    values: dict[str, _Value]
    tensors: list[_Tensor]

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            _fail(self.path, f"says {key} is not a text; {_AGAIN}")
        return value

    def counts(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One count, or one for each layer. Without a default the key must be there."""
        value = self.values.get(key, default)
        if value is None:
            _fail(self.path, f"lacks {key}: it is not a language model, or {_AGAIN}")
        counts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(n, int) and n >= 0 for n in counts) or not counts:
            _fail(self.path, f"says {key} is not a count; {_AGAIN}")
        return tuple(int(n) for n in counts if isinstance(n, int))

    def count(self, key: str, default: int | None = None) -> int:
        return max(self.counts(key, default))

    def optional(self, key: str) -> int | None:
        return self.count(key) if key in self.values else None


_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_U32 = _SCALARS[GGUFValueType.UINT32]
_U64 = _SCALARS[GGUFValueType.UINT64]


class _Cursor:
    """A position in the header that refuses to pass the file's end or the header's bound."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self.end = min(len(data), MAX_HEADER_BYTES)

    def take(self, n_bytes: int) -> int:
        """Step over n_bytes and say where they begin."""
        start = self.at
        if n_bytes > self.end - start:
            self.overrun()
        self.at = start + n_bytes
        return start

    def overrun(self) -> NoReturn:
        if self.end < len(self.data):
            _fail(self.path, f"has a header of over {MAX_HEADER_BYTES >> 20} MiB; {_AGAIN}")
        _fail(self.path, f"is truncated: it ends inside its header; {_AGAIN}")

    def number(self, code: struct.Struct) -> _Number:
        value: _Number = code.unpack_from(self.data, self.take(code.size))[0]
        return value

    def count(self, code: struct.Struct, limit: int, what: str) -> int:
        n = int(self.number(code))
        if n > limit:
            _fail(self.path, f"claims {n} {what} (at most {limit} are accepted); {_AGAIN}")
        return n

    def text(self, limit: int) -> str:
        n_bytes = self.count(_U64, limit, "bytes in one text")
        start = self.take(n_bytes)
        return self.data[start : start + n_bytes].decode("utf-8", "replace")

    def skip_texts(self, n: int) -> None:
        data, at, last = self.data, self.at, self.end - _U64.size
        for _ in range(n):
            if at > last:
                self.overrun()
            at += _U64.size + _U64.unpack_from(data, at)[0]
        self.take(at - self.at)


def _read_header(path: Path) -> _Header:
    try:
        if not path.is_file():  # opening a named pipe would wait for ever
            _fail(path, "is not a file: name a GGUF file" if path.exists() else _MISSING)
        with path.open("rb") as file:
            _check_magic(path, file.read(4))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(path, data))
    except OSError as error:
        _fail(path, f"cannot be read ({error.strerror}): name a GGUF file you may read")


def _check_magic(path: Path, magic: bytes) -> None:
    if magic != b"GGUF":
        start = f"starts with {magic!r}" if magic else "is empty"
        _fail(path, f"is not a GGUF file (it {start}): name a .gguf file, or {_AGAIN}")


def _parse(cursor: _Cursor) -> _Header:
    cursor.take(4)
    _check_version(cursor.path, int(cursor.number(_U32)))
    n_tensors = cursor.count(_U64, MAX_TENSORS, "tensors")
    n_keys = cursor.count(_U64, MAX_KEYS, "keys")
    values = _parse_values(cursor, n_keys)
    tensors = [_parse_tensor(cursor) for _ in range(n_tensors)]
    _check_length(cursor, values.get("general.alignment", _DEFAULT_ALIGNMENT), tensors)
    return _Header(cursor.path, len(cursor.data), values, tensors)


def _check_version(path: Path, version: int) -> None:
    if version & 0xFFFF == 0:
        _fail(path, "is in big-endian byte order: get the little-endian file of this model")
    if version not in _SUPPORTED_VERSIONS:
        _fail(path, f"has GGUF version {version}, 2 and 3 are supported: convert it again")


def _parse_values(cursor: _Cursor, n_keys: int) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for _ in range(n_keys):
        key = cursor.text(MAX_KEY_BYTES)
        if key in values:
            _fail(cursor.path, f"has the key {key} twice; {_AGAIN}")
        values[key] = _parse_value(cursor, int(cursor.number(_U32)))
    return values


def _parse_value(cursor: _Cursor, kind: int) -> _Value:
    if kind == GGUFValueType.STRING:
        return cursor.text(MAX_HEADER_BYTES)
    if kind == GGUFValueType.ARRAY:
        return _parse_array(cursor)
    return cursor.number(_scalar(cursor.path, kind))


def _parse_array(cursor: _Cursor) -> _Value:
    kind = int(cursor.number(_U32))
    length = cursor.count(_U64, MAX_HEADER_BYTES, "entries in one array")
    if kind == GGUFValueType.STRING:
        cursor.skip_texts(length)
        return _Long(length)
    code = _scalar(cursor.path, kind)
    start = cursor.take(code.size * length)
    if length > MAX_LAYERS:
        return _Long(length)
    return struct.unpack_from(f"<{length}{code.format[1:]}", cursor.data, start)


def _scalar(path: Path, kind: int) -> struct.Struct:
    code = _SCALARS.get(kind)
    if code is None:
        _fail(path, f"holds a value of unknown type {kind}; {_AGAIN}")
    return code


def _parse_tensor(cursor: _Cursor) -> _Tensor:
    name = cursor.text(MAX_KEY_BYTES)
    n_dims = cursor.count(_U32, MAX_DIMS, f"dimensions of {name}")
    dims = [int(cursor.number(_U64)) for _ in range(n_dims)]
    kind = int(cursor.number(_U32))
    offset = int(cursor.number(_U64))
    if kind not in GGML_QUANT_SIZES:
        _fail(cursor.path, f"holds {name} in unknown tensor type {kind}: update the gguf package")
    return _tensor(cursor.path, name, dims, GGMLQuantizationType(kind), offset)


def _tensor(
    path: Path, name: str, dims: list[int], kind: GGMLQuantizationType, offset: int
) -> _Tensor:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    n_elements = 1
    for n in dims:
        n_elements *= n
    if dims and dims[0] % block_size:
        _fail(path, f"has rows of {dims[0]} in {name}, which {kind.name} cannot hold; {_AGAIN}")
    return _Tensor(kind.name, n_elements, n_elements // block_size * block_bytes, offset)


def _check_length(cursor: _Cursor, alignment: _Value, tensors: list[_Tensor]) -> None:
    """The header promises data; a download that stopped early does not have it."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        _fail(cursor.path, f"has an alignment that is not a power of two; {_AGAIN}")
    data_start = -(-cursor.at // alignment) * alignment
    promised = max((data_start + t.offset + t.n_bytes for t in tensors), default=0)
    if promised > len(cursor.data):
        _fail(
            cursor.path,
            f"is truncated: {promised} bytes promised, {len(cursor.data)} there; {_AGAIN}",
        )


# -- the parts of a split model ---------------------------------------------------------------


def _other_parts(path: Path, first: _Header) -> Iterator[Path]:
    n_parts = first.count("split.count", 1)
    if n_parts < 2:
        return
    name = _PART.fullmatch(path.name)
    if name is None or int(name["count"]) != n_parts:
        _fail(path, f"is a part of {n_parts}: keep the name it had, …-00001-of-{n_parts:05d}.gguf")
    names = (f"{name['stem']}-{i:05d}-of-{name['count']}.gguf" for i in range(1, n_parts + 1))
    first_name = next(names)
    if first_name != path.name:
        _fail(path, f"is not the first of {n_parts} parts: name {first_name}")
    yield from (path.with_name(part) for part in names)


# -- the facts --------------------------------------------------------------------------------


def _facts(header: _Header, tensors: list[_Tensor], file_bytes: int) -> Facts:
    arch = header.text("general.architecture")
    if arch is None:
        _fail(header.path, f"lacks general.architecture; {_AGAIN}")
    n_layers = _n_layers(header, arch)
    n_embd = header.count(f"{arch}.embedding_length")
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
    )


def _n_layers(header: _Header, arch: str) -> int:
    """Layers of the model proper: those that only predict further tokens are not counted."""
    n_all = header.count(f"{arch}.block_count")
    n_extra = header.count(f"{arch}.nextn_predict_layers", 0)
    if not n_extra < n_all <= MAX_LAYERS:
        _fail(header.path, f"claims {n_all} layers, {n_extra} of them extra; {_AGAIN}")
    return n_all - n_extra


def _experts(header: _Header, arch: str) -> tuple[int, int]:
    n_all = header.count(f"{arch}.expert_count", 0)
    n_used = header.count(f"{arch}.expert_used_count", 0)
    if not n_used <= n_all <= MAX_EXPERTS or (n_all > 0) != (n_used > 0):
        _fail(header.path, f"claims {n_all} experts, {n_used} of them used; {_AGAIN}")
    return n_all, n_used


def _kv_heads(header: _Header, arch: str, n_layers: int) -> tuple[int, ...]:
    key = f"{arch}.attention.head_count_kv"
    if key not in header.values:  # every head has keys and values of its own
        key = f"{arch}.attention.head_count"
    counts = header.counts(key, 0)
    if len(counts) == 1:
        return counts * n_layers
    if len(counts) < n_layers:
        _fail(header.path, f"gives {key} for {len(counts)} of {n_layers} layers; {_AGAIN}")
    return counts[:n_layers]


def _n_vocab(header: _Header, arch: str) -> int:
    tokens = header.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, _Long):
        return tokens.length
    return header.count(f"{arch}.vocab_size")


def _file_type(header: _Header) -> str | None:
    value = header.optional("general.file_type")
    if value is None:
        return None
    try:
        name: str = LlamaFileType(value).name
    except ValueError:
        return f"unknown ({value})"
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _main_type(tensors: list[_Tensor]) -> str:
    n_by_type: Counter[str] = Counter()
    for tensor in tensors:
        n_by_type[tensor.kind] += tensor.n_elements
    return n_by_type.most_common(1)[0][0]


def _recurrent(header: _Header, arch: str, n_embd: int, n_heads: int) -> Recurrent | None:
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


def _fail(path: Path, what: str) -> NoReturn:
    line = f"{path} {what}"
    # Names and keys come from outside: whatever they hold, the message stays one line.
    raise ModelFileError("".join(c if c.isprintable() else "?" for c in line)) from None

"""The header of a GGUF file: its keys and tensors, read in bounded time and memory.

Does not know what a key means; a file that lies about its counts is refused, never believed.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from parlay.errors import ModelFileError

# gguf's own reader makes numpy views of every token and merge: 2 s for a 49k vocabulary, and it
# trusts every count. This one walks over what it does not need and believes nothing.
MAX_HEADER_BYTES = 64 << 20  # a 262k vocabulary with its merges takes 17 MiB
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = (1 << 16) - 1
MAX_DIMS = 4
MAX_KEPT = 1 << 20  # entries of an array that is kept; a 262k vocabulary has 515k merges
# Longer arrays of numbers are walked over; beyond so many layers llama.cpp aborts the process.
MAX_LAYERS = 512

_SUPPORTED_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
AGAIN = "download or convert it again"
_MISSING = "does not exist: check the path, or download the model first"
_PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Long:
    """An array that was walked over: its length is known, its contents are not."""

    length: int


Number = int | float
Value = Number | str | tuple[Number, ...] | tuple[bytes, ...] | Long


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's entry; its data is not looked at."""

    name: str
    dims: tuple[int, ...]
    kind: str
    n_elements: int
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """One file's keys and tensors."""

    path: Path
    file_bytes: int
    values: dict[str, Value]
    tensors: list[Tensor]

    def text(self, key: str) -> str | None:
        """A text, if the key is there."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            fail(self.path, f"says {key} is not a text; {AGAIN}")
        return value

    def counts(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One count, or one for each layer. Without a default the key must be there."""
        value = self.values.get(key, default)
        if value is None:
            fail(self.path, f"lacks {key}: it is not a language model, or {AGAIN}")
        counts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(n, int) and n >= 0 for n in counts) or not counts:
            fail(self.path, f"says {key} is not a count; {AGAIN}")
        return tuple(int(n) for n in counts if isinstance(n, int))

    def count(self, key: str, default: int | None = None) -> int:
        """The largest of one or several counts."""
        return max(self.counts(key, default))

    def optional(self, key: str) -> int | None:
        """A count, if the key is there."""
        return self.count(key) if key in self.values else None

    def decimal(self, key: str) -> float | None:
        """A finite number that is not negative, if the key is there."""
        value = self.values.get(key)
        if isinstance(value, int | float) and 0 <= value < math.inf:
            return float(value)
        return None


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

    def __init__(self, path: Path, data: mmap.mmap, wanted: frozenset[str]) -> None:
        self.path = path
        self.data = data
        self.wanted = wanted  # keys whose arrays of texts are kept
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
            fail(self.path, f"has a header of over {MAX_HEADER_BYTES >> 20} MiB; {AGAIN}")
        fail(self.path, f"is truncated: it ends inside its header; {AGAIN}")

    def number(self, code: struct.Struct) -> Number:
        value: Number = code.unpack_from(self.data, self.take(code.size))[0]
        return value

    def count(self, code: struct.Struct, limit: int, what: str) -> int:
        n = int(self.number(code))
        if n > limit:
            fail(self.path, f"claims {n} {what} (at most {limit} are accepted); {AGAIN}")
        return n

    def text(self, limit: int) -> str:
        n_bytes = self.count(_U64, limit, "bytes in one text")
        start = self.take(n_bytes)
        return self.data[start : start + n_bytes].decode("utf-8", "replace")

    def texts(self, n: int) -> Iterator[bytes]:
        for _ in range(n):
            n_bytes = int(self.number(_U64))
            start = self.take(n_bytes)
            yield self.data[start : start + n_bytes]

    def skip_texts(self, n: int) -> None:
        data, at, last = self.data, self.at, self.end - _U64.size
        for _ in range(n):
            if at > last:
                self.overrun()
            at += _U64.size + _U64.unpack_from(data, at)[0]
        self.take(at - self.at)


def read_parts(path: Path, texts: frozenset[str] = frozenset()) -> list[Header]:
    """The header of a model file, or those of all files of a split model, given the first one.

    `texts` names the keys whose arrays of texts are wanted; others are walked over.
    """
    first = _read_header(path, texts)
    return [first, *(_read_header(part, texts) for part in _other_parts(path, first))]


def _read_header(path: Path, texts: frozenset[str]) -> Header:
    try:
        if not path.is_file():  # opening a named pipe would wait for ever
            fail(path, "is not a file: name a GGUF file" if path.exists() else _MISSING)
        with path.open("rb") as file:
            _check_magic(path, file.read(4))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(path, data, texts))
    except OSError as error:
        fail(path, f"cannot be read ({error.strerror}): name a GGUF file you may read")


def _check_magic(path: Path, magic: bytes) -> None:
    if magic != b"GGUF":
        start = f"starts with {magic!r}" if magic else "is empty"
        fail(path, f"is not a GGUF file (it {start}): name a .gguf file, or {AGAIN}")


def _parse(cursor: _Cursor) -> Header:
    cursor.take(4)
    _check_version(cursor.path, int(cursor.number(_U32)))
    n_tensors = cursor.count(_U64, MAX_TENSORS, "tensors")
    n_keys = cursor.count(_U64, MAX_KEYS, "keys")
    values = _parse_values(cursor, n_keys)
    tensors = [_parse_tensor(cursor) for _ in range(n_tensors)]
    _check_length(cursor, values.get("general.alignment", _DEFAULT_ALIGNMENT), tensors)
    return Header(cursor.path, len(cursor.data), values, tensors)


def _check_version(path: Path, version: int) -> None:
    if version & 0xFFFF == 0:
        fail(path, "is in big-endian byte order: get the little-endian file of this model")
    if version not in _SUPPORTED_VERSIONS:
        fail(path, f"has GGUF version {version}, 2 and 3 are supported: convert it again")


def _parse_values(cursor: _Cursor, n_keys: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(n_keys):
        key = cursor.text(MAX_KEY_BYTES)
        if key in values:
            fail(cursor.path, f"has the key {key} twice; {AGAIN}")
        values[key] = _parse_value(cursor, key, int(cursor.number(_U32)))
    return values


def _parse_value(cursor: _Cursor, key: str, kind: int) -> Value:
    if kind == GGUFValueType.STRING:
        return cursor.text(MAX_HEADER_BYTES)
    if kind == GGUFValueType.ARRAY:
        return _parse_array(cursor, keep=key in cursor.wanted)
    return cursor.number(_scalar(cursor.path, kind))


def _parse_array(cursor: _Cursor, *, keep: bool) -> Value:
    kind = int(cursor.number(_U32))
    limit = MAX_KEPT if keep else MAX_HEADER_BYTES
    length = cursor.count(_U64, limit, "entries in one array")
    if kind == GGUFValueType.STRING:
        if keep:
            return tuple(cursor.texts(length))
        cursor.skip_texts(length)
        return Long(length)
    code = _scalar(cursor.path, kind)
    start = cursor.take(code.size * length)
    if length > MAX_LAYERS and not keep:
        return Long(length)
    return struct.unpack_from(f"<{length}{code.format[1:]}", cursor.data, start)


def _scalar(path: Path, kind: int) -> struct.Struct:
    code = _SCALARS.get(kind)
    if code is None:
        fail(path, f"holds a value of unknown type {kind}; {AGAIN}")
    return code


def _parse_tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text(MAX_KEY_BYTES)
    n_dims = cursor.count(_U32, MAX_DIMS, f"dimensions of {name}")
    dims = [int(cursor.number(_U64)) for _ in range(n_dims)]
    kind = int(cursor.number(_U32))
    offset = int(cursor.number(_U64))
    if kind not in GGML_QUANT_SIZES:
        fail(cursor.path, f"holds {name} in unknown tensor type {kind}: update the gguf package")
    return _tensor(cursor.path, name, dims, GGMLQuantizationType(kind), offset)


def _tensor(
    path: Path, name: str, dims: list[int], kind: GGMLQuantizationType, offset: int
) -> Tensor:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    n_elements = 1
    for n in dims:
        n_elements *= n
    if dims and dims[0] % block_size:
        fail(path, f"has rows of {dims[0]} in {name}, which {kind.name} cannot hold; {AGAIN}")
    n_bytes = n_elements // block_size * block_bytes
    return Tensor(name, tuple(dims), kind.name, n_elements, n_bytes, offset)


def _check_length(cursor: _Cursor, alignment: Value, tensors: list[Tensor]) -> None:
    """The header promises data; a download that stopped early does not have it."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        fail(cursor.path, f"has an alignment that is not a power of two; {AGAIN}")
    data_start = -(-cursor.at // alignment) * alignment
    promised = max((data_start + t.offset + t.n_bytes for t in tensors), default=0)
    if promised > len(cursor.data):
        fail(
            cursor.path,
            f"is truncated: {promised} bytes promised, {len(cursor.data)} there; {AGAIN}",
        )


# -- the parts of a split model ---------------------------------------------------------------


def _other_parts(path: Path, first: Header) -> Iterator[Path]:
    n_parts = first.count("split.count", 1)
    if n_parts < 2:
        return
    name = _PART.fullmatch(path.name)
    if name is None or int(name["count"]) != n_parts:
        fail(path, f"is a part of {n_parts}: keep the name it had, …-00001-of-{n_parts:05d}.gguf")
    names = (f"{name['stem']}-{i:05d}-of-{name['count']}.gguf" for i in range(1, n_parts + 1))
    first_name = next(names)
    if first_name != path.name:
        fail(path, f"is not the first of {n_parts} parts: name {first_name}")
    yield from (path.with_name(part) for part in names)


def fail(path: Path, what: str) -> NoReturn:
    line = f"{path} {what}"
    # Names and keys come from outside: whatever they hold, the message stays one line.
    raise ModelFileError("".join(c if c.isprintable() else "?" for c in line)) from None

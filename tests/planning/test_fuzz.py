"""Damaged and malicious model files: refused in one line, quickly, in little memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from parlay.errors import ParlayError
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.pairing.tokenizer import read_tokenizer
from parlay.planning.devices import GIB, MemoryPool
from parlay.planning.needs import Load
from parlay.planning.plan import make_plan
from parlay.planning.shape import read_shape
from tests.planning import headers

RAM = [MemoryPool("RAM", "ram", GIB, GIB)]


def read_all(path: Path) -> None:
    """Everything `plan` and `pair check` do with a file before llama.cpp sees it."""
    shape = read_shape(path)
    make_plan([Load("target", shape, ModelSettings(), ContextSettings(512))], RAM)
    read_tokenizer(path).fingerprint  # noqa: B018 - it is computed on the way


def survives(path: Path, data: bytes) -> bool:
    """Whether a file is read or refused as it should be; anything else is raised."""
    path.write_bytes(data)
    started = time.thread_time()
    try:
        read_all(path)
        read = True
    except ParlayError as error:
        assert "\n" not in error.message
        read = False
    assert time.thread_time() - started < 30  # of this thread, whoever else is at work
    return read


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(min(len(data), 9000))] = rng.randrange(256)


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def absurd(rng: random.Random, data: bytearray) -> None:
    """A large number where some number was."""
    at = rng.randrange(8, 9000)
    size, code = rng.choice([(4, "<I"), (8, "<Q")])
    value = rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1]) & (256**size - 1)
    data[at : at + size] = struct.pack(code, value)


def splice(rng: random.Random, data: bytearray) -> None:
    at, n = rng.randrange(9000), rng.randint(1, 64)
    if rng.random() < 0.5:
        del data[at : at + n]
    else:
        data[at:at] = data[at : at + n]


DAMAGE: list[Callable[[random.Random, bytearray], None]] = [flip, truncate, absurd, splice]


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_lfm2", "tiny_gemma3"])
def test_damaged_files_are_read_or_refused(
    request: pytest.FixtureRequest, tmp_path: Path, fixture: str
) -> None:
    whole = request.getfixturevalue(fixture).read_bytes()
    rng = random.Random(fixture)
    path = tmp_path / "damaged.gguf"
    refused = 0
    for i in range(250):
        data = bytearray(whole)
        DAMAGE[i % len(DAMAGE)](rng, data)
        refused += not survives(path, bytes(data))
    assert refused > 50  # the damage is felt


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 1 << 31),
        ("embedding_length", 0),
        ("embedding_length", (1 << 32) - 1),
        ("attention.head_count", 0),
        ("attention.head_count", (1 << 32) - 1),
        ("attention.head_count_kv", (1 << 32) - 1),
        ("feed_forward_length", (1 << 32) - 1),
        ("context_length", (1 << 32) - 1),
        ("rope.dimension_count", 0),
    ],
)
def test_absurd_counts_are_read_or_refused(
    tiny_llama: Path, tmp_path: Path, key: str, value: int
) -> None:
    data = bytearray(tiny_llama.read_bytes())
    at = data.index(f"llama.{key}".encode()) + len(f"llama.{key}") + 4
    data[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)
    survives(tmp_path / "absurd.gguf", bytes(data))


@pytest.mark.parametrize("key", ["attention.head_count", "feed_forward_length"])
def test_counts_for_some_layers_only_are_refused(tmp_path: Path, key: str) -> None:
    path = headers.write_dense(
        tmp_path / "some.gguf", "llama", **headers.SMALL, kind="F32", changes={key: [4, 4]}
    )
    with pytest.raises(ParlayError, match=f"gives {key} for 2 of 3 layers"):
        read_shape(path)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(n_tensors: int, n_keys: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + rest


def array(key: bytes, kind: int, length: int, body: bytes = b"") -> bytes:
    return text(key) + struct.pack("<IIQ", 9, kind, length) + body


HUGE = {
    "keys": header(0, (1 << 64) - 1, b""),
    "tensors": header((1 << 64) - 1, 0, b""),
    "a kept array": header(0, 1, array(b"tokenizer.ggml.tokens", 8, 1 << 60)),
    "a kept array of bytes": header(0, 1, array(b"tokenizer.ggml.token_type", 0, 1 << 40)),
    "a text": header(0, 1, struct.pack("<Q", 1 << 62)),
    "a text in an array": header(
        0, 1, array(b"tokenizer.ggml.tokens", 8, 2, struct.pack("<Q", 1 << 63))
    ),
    "an array of arrays": header(0, 1, array(b"a", 9, 1 << 30)),
    "many empty texts": header(0, 1, array(b"tokenizer.ggml.tokens", 8, 1 << 17, bytes(8 << 17))),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_claims_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    tracemalloc.start()
    refused = not survives(tmp_path / "huge.gguf", HUGE[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused
    assert peak < 1 << 19  # nothing is kept of what will not be used: a list of these takes more

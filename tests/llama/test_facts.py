"""Facts agree with llama.cpp, and a bad or hostile file is refused in one line, quickly."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gguf.constants import GGUFValueType

from parlay.errors import ModelFileError
from parlay.llama.binding import Batch
from parlay.llama.facts import Recurrent, read_facts
from parlay.llama.library import C, start
from tests import tiny_models

TINY = ["tiny_llama", "tiny_gemma3", "tiny_mamba", "tiny_lfm2"]


@contextmanager
def loaded(path: Path) -> Iterator[int]:
    start()
    model = C.llama_model_load_from_file(bytes(path), C.llama_model_default_params())
    assert model
    yield model
    C.llama_model_free(model)


def asked(name: str, model: int) -> int:
    """What a function of llama.cpp that only these tests use says of a model."""
    found = ctypes.c_bool if "_is_" in name else ctypes.c_int32
    return int(C.optional(name, found, ctypes.c_void_p)(model))


@pytest.mark.parametrize("fixture", TINY)
def test_facts_agree_with_llama_cpp(request: pytest.FixtureRequest, fixture: str) -> None:
    path: Path = request.getfixturevalue(fixture)
    facts = read_facts(path)
    with loaded(path) as model:
        vocab = C.llama_model_get_vocab(model)
        assert facts.n_layers == C.llama_model_n_layer(model)
        assert facts.n_embd == C.llama_model_n_embd(model)
        assert facts.n_heads == asked("llama_model_n_head", model)
        assert facts.kv_heads_by_layer[0] == asked("llama_model_n_head_kv", model)
        assert facts.n_ctx_train == C.llama_model_n_ctx_train(model)
        assert (facts.sliding_window or 0) == asked("llama_model_n_swa", model)
        assert facts.n_params == C.llama_model_n_params(model)
        assert facts.tensor_bytes == C.llama_model_size(model)
        assert facts.n_vocab == C.llama_vocab_n_tokens(vocab)
        assert (facts.bos_id, facts.eos_id) == (C.llama_vocab_bos(vocab), C.llama_vocab_eos(vocab))
        assert facts.chat_template == C.llama_model_chat_template(model, None).decode()
        assert (facts.recurrent is not None) == (
            asked("llama_model_is_recurrent", model) or asked("llama_model_is_hybrid", model)
        )


def test_facts_of_a_llama(tiny_llama: Path) -> None:
    facts = read_facts(tiny_llama)
    assert (facts.architecture, facts.name) == ("llama", "tiny llama")
    assert (facts.n_heads, facts.n_kv_heads, facts.kv_heads_by_layer) == (4, 2, (2, 2))
    assert (facts.head_size_k, facts.head_size_v, facts.n_ff) == (16, 16, 128)
    assert (facts.file_type, facts.tensor_type, facts.tokenizer) == ("F32", "F32", "gpt2")
    assert facts.file_bytes == tiny_llama.stat().st_size
    assert facts.has_chat_template
    assert (facts.n_experts, facts.n_experts_used) == (0, 0)
    assert facts.sliding_window is None
    assert facts.recurrent is None


def test_layers_of_a_hybrid_keep_keys_and_values_or_a_state(tiny_lfm2: Path) -> None:
    facts = read_facts(tiny_lfm2)
    assert facts.kv_heads_by_layer == (0, 2)
    assert facts.recurrent == Recurrent(n_conv=2 * 64, n_state=0)


def test_the_state_of_a_recurrent_model_is_as_large_as_in_llama_cpp(tiny_mamba: Path) -> None:
    facts = read_facts(tiny_mamba)
    assert facts.recurrent == Recurrent(n_conv=3 * 128, n_state=16 * 128)
    with loaded(tiny_mamba) as model:
        context = C.llama_init_from_model(model, C.llama_context_default_params())
        token = (ctypes.c_int32 * 1)(5)
        batch = Batch(n_tokens=1, token=ctypes.addressof(token))
        assert C.llama_decode(context, batch) == 0
        n_bytes = C.llama_state_seq_get_size_ext(context, 0, 0)
        C.llama_free(context)
    expected = 4 * facts.n_layers * (facts.recurrent.n_conv + facts.recurrent.n_state)
    assert 0 <= n_bytes - expected < 200  # the rest is a header


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"wkv.head_size": 8}, Recurrent(2 * 64, 8 * 64)),
        ({"wkv.head_size": 8, "token_shift_count": 1}, Recurrent(64, 8 * 64)),
        ({"kda.head_dim": 8, "ssm.conv_kernel": 4}, Recurrent(3 * 3 * 4 * 8, 8 * 8 * 4)),
        (
            {"ssm.inner_size": 32, "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2},
            Recurrent(3 * (32 + 2 * 2 * 8), 32 * 8),
        ),
    ],
    ids=["rwkv6", "rwkv7", "kimi", "mamba2"],
)
def test_recurrent_state_by_family(
    tmp_path: Path, settings: dict[str, int], expected: Recurrent
) -> None:
    assert read_facts(written(tmp_path, keys=keys_of_a_model(**settings))).recurrent == expected


def test_split_files_are_summed(tmp_path: Path, tiny_llama: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "model.gguf", max_tensors=8)
    whole, split = read_facts(tiny_llama), read_facts(first)
    assert (split.n_params, split.tensor_bytes) == (whole.n_params, whole.tensor_bytes)
    assert split.file_bytes == sum(part.stat().st_size for part in tmp_path.iterdir())


@pytest.mark.weights
def test_facts_of_the_default_model_are_read_in_no_time(smollm2: Path) -> None:
    began = time.thread_time()
    facts = read_facts(smollm2)
    assert time.thread_time() - began < 1  # 0.012 measured; 2 s with gguf's own reader
    assert (facts.n_vocab, facts.n_layers, facts.n_params) == (49_152, 30, 134_515_008)
    assert (facts.file_type, facts.tensor_type) == ("Q4_1", "Q4_1")


# -- bad files ----------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The message for a file that must be refused: one line that names the file."""
    with pytest.raises(ModelFileError) as caught:
        read_facts(path)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(str(path.parent))
    return caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist: check the path" in refusal(tmp_path / "none.gguf")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refusal(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # not by chmod: root may read everything
    assert "cannot be read (Permission denied)" in refusal(tiny_llama)


@pytest.mark.parametrize("content", [b"", b"GG", b"<!DOCTYPE html>", b"\0" * 100])
def test_what_is_not_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert "is not a GGUF file" in refusal(path)


def test_every_truncation_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama.read_bytes())
    n_whole = path.stat().st_size
    for n_bytes in [n_whole - 1, n_whole // 2, *range(4000, 4, -7), 4]:
        os.truncate(path, n_bytes)
        assert "is truncated" in refusal(path)


def test_a_truncation_says_how_much_is_there(tmp_path: Path, tiny_llama: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = tiny_llama.read_bytes()
    path.write_bytes(whole[:-1000])
    assert f"{len(whole)} bytes promised, {len(whole) - 1000} there; download" in refusal(path)


@pytest.mark.parametrize("version", [0x02000000, 0x03000000])
def test_a_big_endian_file_is_refused(tmp_path: Path, version: int) -> None:
    assert "big-endian" in refusal(written(tmp_path, version=version))


@pytest.mark.parametrize("version", [1, 4, 999])
def test_another_version_is_refused(tmp_path: Path, version: int) -> None:
    assert f"GGUF version {version}, 2 and 3 are" in refusal(written(tmp_path, version=version))


def test_a_message_stays_one_line_whatever_the_file_is_called(tmp_path: Path) -> None:
    assert "no?such" in refusal(tmp_path / "no\nsuch")


def test_a_missing_part_of_a_split_model_is_named(tmp_path: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "model.gguf", max_tensors=8)
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    assert "model-00002-of-00003.gguf does not exist" in refusal(first)


def test_the_first_part_of_a_split_model_is_asked_for(tmp_path: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "model.gguf", max_tensors=8)
    second = first.with_name("model-00002-of-00003.gguf")
    assert "not the first of 3 parts: name model-00001-of-00003.gguf" in refusal(second)


def test_a_renamed_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "model.gguf", max_tensors=8)
    assert "keep the name it had" in refusal(first.rename(tmp_path / "renamed.gguf"))


def test_a_vocabulary_without_weights_is_refused(tmp_path: Path) -> None:
    assert "holds no weights" in refusal(written(tmp_path, tensors=[]))


# -- crafted headers ----------------------------------------------------------------------------

U32, STRING, ARRAY = (
    int(t) for t in (GGUFValueType.UINT32, GGUFValueType.STRING, GGUFValueType.ARRAY)
)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", U32, value)


def array(key: str, kind: int, length: int, content: bytes = b"") -> bytes:
    return text(key) + struct.pack("<IIQ", ARRAY, kind, length) + content


def tensor(*dims: int, name: str = "a", kind: int = 0, offset: int = 0) -> bytes:
    head = text(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def keys_of_a_model(**changes: int) -> list[bytes]:
    settings = {
        "block_count": 2,
        "embedding_length": 64,
        "context_length": 512,
        "attention.head_count": 4,
        "vocab_size": 99,
    }
    keys = [number(f"x.{key}", value) for key, value in (settings | changes).items()]
    return [text("general.architecture") + struct.pack("<I", STRING) + text("x"), *keys]


def written(
    folder: Path,
    *,
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> Path:
    keys = keys_of_a_model() if keys is None else keys
    tensors = [tensor(4, 4)] if tensors is None else tensors
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    path = folder / "crafted.gguf"
    start = b"GGUF" + struct.pack("<IQQ", version, *counts)
    path.write_bytes(b"".join([start, *keys, *tensors, bytes(256)]))
    return path


def test_a_crafted_file_is_read(tmp_path: Path) -> None:
    facts = read_facts(written(tmp_path))
    assert (facts.architecture, facts.n_layers, facts.n_vocab, facts.n_params) == ("x", 2, 99, 16)
    assert (facts.file_type, facts.name, facts.tokenizer, facts.bos_id) == (None,) * 4


def test_extra_prediction_layers_are_not_layers_of_the_model(tmp_path: Path) -> None:
    keys = keys_of_a_model(block_count=5, nextn_predict_layers=1)
    assert read_facts(written(tmp_path, keys=keys)).n_layers == 4


def test_an_unknown_file_type_is_said_to_be_unknown(tmp_path: Path) -> None:
    keys = [*keys_of_a_model(), number("general.file_type", 5000)]
    assert read_facts(written(tmp_path, keys=keys)).file_type == "unknown (5000)"


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"n_keys": HUGE}, "claims 18446744073709551615 keys"),
        ({"n_tensors": HUGE}, "claims 18446744073709551615 tensors"),
        ({"n_keys": 60_000}, "bytes in one text"),
        ({"n_tensors": 60_000}, "truncated"),
        ({"keys": [struct.pack("<Q", HUGE)]}, "bytes in one text"),
        ({"keys": [number("a", 1), number("a", 1)]}, "has the key a twice"),
        ({"keys": [text("a") + struct.pack("<I", 77)]}, "unknown type 77"),
        ({"keys": [array("a", U32, HUGE)]}, "entries in one array"),
        ({"keys": [array("a", STRING, HUGE)]}, "entries in one array"),
        ({"keys": [array("a", U32, 1 << 25)]}, "truncated"),
        ({"keys": [array("a", STRING, 1 << 25)]}, "truncated"),
        ({"keys": [array("a", STRING, 2, struct.pack("<QQ", HUGE, 0))]}, "truncated"),
        ({"keys": [array("a", ARRAY, 1)]}, "unknown type 9"),
        ({"keys": [number("general.alignment", 3)]}, "power of two"),
        ({"tensors": [tensor(*[1] * 5)]}, "claims 5 dimensions"),
        ({"tensors": [tensor(HUGE, HUGE, HUGE, HUGE)]}, "truncated"),
        ({"tensors": [tensor(1, offset=HUGE)]}, "truncated"),
        ({"tensors": [tensor(1, kind=999)]}, "unknown tensor type 999: update the gguf"),
        ({"tensors": [tensor(33, kind=2)]}, "which Q4_0 cannot hold"),
        ({"keys": []}, "lacks general.architecture"),
        ({"keys": [number("general.architecture", 1)]}, "is not a text"),
        ({"keys": keys_of_a_model()[:1]}, "lacks x.block_count"),
        ({"keys": keys_of_a_model(block_count=0)}, "claims 0 layers"),
        ({"keys": keys_of_a_model(block_count=513)}, "claims 513 layers"),
        ({"keys": keys_of_a_model(expert_count=1025, expert_used_count=1)}, "claims 1025 experts"),
        ({"keys": keys_of_a_model(expert_count=2, expert_used_count=3)}, "claims 2 experts"),
        ({"keys": keys_of_a_model(expert_count=2)}, "claims 2 experts, 0 of them used"),
        (
            {"keys": [*keys_of_a_model(), text("x.expert_count") + struct.pack("<If", 6, 2.0)]},
            "count",
        ),
        (
            {
                "keys": [
                    *keys_of_a_model(block_count=3),
                    array("x.attention.head_count_kv", U32, 2, bytes(8)),
                ]
            },
            "for 2 of 3 layers",
        ),
    ],
)
def test_absurd_headers_are_refused_at_once(
    tmp_path: Path, part: dict[str, object], reason: str
) -> None:
    began = time.thread_time()
    assert reason in refusal(written(tmp_path, **part))  # type: ignore[arg-type]
    assert time.thread_time() - began < 5  # 0.001 measured


def test_a_header_without_end_is_refused_in_bounded_time(tmp_path: Path) -> None:
    path = written(tmp_path, keys=[array("a", STRING, 1 << 25)], tensors=[])
    with path.open("r+b") as file:
        file.truncate(1 << 34)  # sparse: 16 GiB of empty texts
    began = time.thread_time()
    assert "has a header of over 64 MiB" in refusal(path)
    assert time.thread_time() - began < 60  # 1 measured; coverage makes it slower


def test_a_damaged_header_is_read_or_refused_but_nothing_else(
    tmp_path: Path, tiny_lfm2: Path
) -> None:
    whole, n_header = tiny_lfm2.read_bytes(), 6_000
    rng = random.Random(0)
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    with path.open("r+b", buffering=0) as file:
        for _ in range(1500):
            damaged = bytearray(whole[:n_header])
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(n_header)] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
            file.seek(0)
            file.write(damaged)
            try:
                assert read_facts(path).n_layers > 0
            except ModelFileError as error:
                assert error.message.isprintable()

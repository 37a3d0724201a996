"""Loading a model: what it says about itself, where it may go, and what is refused."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from parlay.errors import BadRequest, LoadError, ModelFileError, ParlayError
from parlay.llama import binding, library
from parlay.llama.facts import read_facts
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from tests import tiny_models


def load(path: Path, **settings: Any) -> Model:
    return Model(path, ModelSettings(**settings))


@pytest.mark.parametrize(
    "write",
    [
        tiny_models.write_llama,
        tiny_models.write_gemma3,
        tiny_models.write_mamba,
        tiny_models.write_lfm2,
    ],
    ids=lambda write: write.__name__[6:],
)
def test_a_model_knows_its_size_and_shape(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    facts = read_facts(path)
    with load(path) as model:
        assert model.path == path
        assert (model.n_layers, model.n_embd) == (facts.n_layers, facts.n_embd)
        assert model.n_ctx_train == facts.n_ctx_train
        assert model.vocabulary.size == facts.n_vocab
        assert model.n_params == facts.n_params
        assert model.n_bytes == facts.tensor_bytes
        assert facts.architecture in model.description


def test_the_chat_template_is_the_models_own(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
        template = model.chat_template()
        assert template is not None
        text = template.render([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_has_none(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(tiny_llama) as model:
        monkeypatch.setattr(C, "llama_model_chat_template", lambda *_: None)
        assert model.chat_template() is None


def test_closing_twice_frees_once(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[object] = []
    free = C.llama_model_free
    model = load(tiny_llama)

    def spy(handle: int) -> None:
        freed.append(handle)
        free(handle)

    monkeypatch.setattr(C, "llama_model_free", spy)
    model.close()
    model.close()
    assert len(freed) == 1
    assert model.handle is None


def test_leaving_the_block_frees_the_model(tiny_llama: Path) -> None:
    with pytest.raises(RuntimeError), load(tiny_llama) as model:
        raise RuntimeError
    assert model.handle is None


def spied(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """What llama.cpp is given for one of its parameters at each load from now on."""
    seen: list[int] = []
    real = C.llama_model_load_from_file

    def spy(path: bytes, params: Any) -> Any:
        seen.append(getattr(params, name))
        return real(path, params)

    monkeypatch.setattr(C, "llama_model_load_from_file", spy)
    return seen


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("mlock", [True, False])
def test_files_are_mapped_or_read_and_locked_as_told(
    mmap: bool, mlock: bool, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = spied(monkeypatch, "load_mode")
    with load(tiny_llama, mmap=mmap, mlock=mlock, large_pages=False) as model:
        assert model.handle
    (mode,) = modes
    assert bool(mode & binding.LOAD_MODE_MMAP) == mmap
    assert bool(mode & binding.LOAD_MODE_MLOCK) == mlock


@pytest.mark.parametrize(("asked", "given"), [(-1, 999), (0, 0), (7, 7)])
def test_a_negative_number_of_gpu_layers_means_all_of_them(
    asked: int, given: int, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spied(monkeypatch, "n_gpu_layers")
    load(tiny_llama, gpu_layers=asked).close()
    assert seen == [given]


def test_layers_are_on_a_gpu_only_if_there_is_one(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(tiny_llama) as model, load(tiny_llama, gpu_layers=0) as kept:
        for there in (True, False):
            monkeypatch.setattr(library, "has_gpu", lambda there=there: there)
            assert model.on_gpu is there
            assert not kept.on_gpu


# -- devices -----------------------------------------------------------------------------------


def test_the_cpu_can_be_named_and_needs_no_offloading(tiny_llama: Path) -> None:
    with load(tiny_llama, devices=("CPU",)) as model:
        assert model.n_layers == 2


def test_an_unknown_device_is_refused_with_those_there_are(tiny_llama: Path) -> None:
    with pytest.raises(BadRequest, match=r"no device 'CUDA7'; this build has .*CPU"):
        load(tiny_llama, devices=("CPU", "CUDA7"))


def test_devices_reach_llama_cpp_as_a_list_with_an_end(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "device_handles", lambda: {"CPU": 5, "CUDA0": 7, "CUDA1": 9})
    monkeypatch.setattr(library, "gpu_names", lambda _chosen: ["CUDA0", "CUDA1"])
    lists: list[list[int | None]] = []

    def spy(_path: bytes, params: Any) -> None:
        given = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
        lists.append([given[i] for i in range(3)])

    monkeypatch.setattr(C, "llama_model_load_from_file", spy)
    with pytest.raises(LoadError):
        load(tiny_llama, devices=("CUDA1", "CPU", "CUDA0"), large_pages=False)
    assert lists == [[9, 7, None]]


# -- files that are no models ------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(ParlayError) as caught:
        load(path)
    assert isinstance(caught.value, ModelFileError | LoadError)
    message = caught.value.message
    assert "\n" not in message
    assert path.name in message
    return message


def test_a_missing_file_a_folder_and_another_format_are_told_apart(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"PK\3\4 not a model")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert "does not exist" in refused(tmp_path / "missing.gguf")
    assert "is not a file" in refused(tmp_path)
    assert "not a GGUF file" in refused(other)
    assert "not a GGUF file" in refused(empty)


@pytest.mark.parametrize("share", [0.00002, 0.001, 0.02, 0.5, 0.9999])
def test_a_download_that_stopped_early_is_called_truncated(
    share: float, tiny_llama: Path, tmp_path: Path
) -> None:
    whole = tiny_llama.read_bytes()
    part = tmp_path / "part.gguf"
    part.write_bytes(whole[: int(len(whole) * share)])
    message = refused(part)
    assert "truncated" in message
    assert "download" in message


def test_what_only_llama_cpp_can_tell_is_passed_on_in_one_line(
    tiny_llama: Path, tmp_path: Path
) -> None:
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(tiny_llama.read_bytes().replace(b"llama", b"lxyza"))
    message = refused(unknown)
    assert "could not load unknown.gguf" in message
    assert "unknown model architecture: 'lxyza'" in message


def test_a_name_with_any_characters_loads(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "mödel 模型 🙂.gguf"
    path.write_bytes(tiny_llama.read_bytes())
    with load(path) as model:
        assert model.n_layers == 2

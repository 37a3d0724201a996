"""A loaded model: its weights, its vocabulary, its chat template.

Knows nothing of caches or passes; contexts are made from it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parlay.errors import BadRequest, Closed
from parlay.llama import adapters, binding, cpu, large_pages, library
from parlay.llama.facts import read_facts
from parlay.llama.library import C
from parlay.llama.placement import check_placement, override_list, split_list
from parlay.llama.settings import ModelSettings
from parlay.llama.template import ChatTemplate
from parlay.llama.vocabulary import Vocabulary

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}


class Model:
    """Weights in memory. Close it after the contexts made from it."""

    def __init__(
        self, path: Path, settings: ModelSettings, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_wanted` is asked while it is read: if it is not, that ends with an error."""
        library.start()
        self.path = path
        self.settings = settings
        # Says plainly what llama.cpp would only log, and stops what would make it abort.
        self.facts = read_facts(path)
        check_placement(path, settings)
        adapters.check_adapters(settings.adapters, path)
        self.in_large_pages = has_room_for_a_copy(settings, self.facts.file_bytes)
        self.handle: int | None = _load(path, settings, self.in_large_pages, is_wanted)
        self.vocabulary = Vocabulary(C.llama_model_get_vocab(self.handle))
        try:
            self.adapters = adapters.load(self.handle, settings.adapters)
        except BaseException:
            self.close()
            raise
        self.n_layers: int = C.llama_model_n_layer(self.handle)
        self.n_embd: int = C.llama_model_n_embd(self.handle)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self.n_bytes: int = C.llama_model_size(self.handle)
        self.n_params: int = C.llama_model_n_params(self.handle)

    @property
    def on_gpu(self) -> bool:
        """Whether any layer was put on a GPU."""
        return self.settings.gpu_layers != 0 and library.has_gpu()

    @property
    def threads(self) -> int:
        """CPU threads that suit it. With every layer on a GPU the CPU only looks up embeddings:
        more threads than one spin for nothing and cost 14 % (results at ba28c59)."""
        offloaded = self.on_gpu and self.settings.all_on_gpu(self.n_layers)
        return 1 if offloaded else library.default_threads()

    @property
    def description(self) -> str:
        """llama.cpp's one-line name, such as `llama 135M Q4_1`."""
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self._open_handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def chat_template(self) -> ChatTemplate | None:
        """The template that comes with the model, if it has one."""
        source: bytes | None = C.llama_model_chat_template(self._open_handle, None)
        if source is None:
            return None
        vocabulary = self.vocabulary
        bos = vocabulary.text_of(vocabulary.bos) if vocabulary.bos >= 0 else ""
        eos = vocabulary.text_of(vocabulary.eos) if vocabulary.eos >= 0 else ""
        return ChatTemplate(source.decode("utf-8", "replace"), bos, eos)

    @property
    def _open_handle(self) -> int:
        if self.handle is None:
            raise Closed("the model is closed; open it again")
        return self.handle

    def close(self) -> None:
        """Free the weights; safe to call twice."""
        if self.handle is not None:
            self.vocabulary.close()
            C.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _load(
    path: Path, settings: ModelSettings, in_large_pages: bool, is_wanted: Callable[[], bool]
) -> int:
    params = C.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers if settings.gpu_layers >= 0 else 999
    params.load_mode = _load_mode(settings, mmap=settings.mmap and not in_large_pages)
    params.load_mtp = settings.own_head
    params.use_extra_bufts = cpu.may_rearrange()
    params.split_mode = _SPLIT_MODES[settings.split_mode]
    params.main_gpu = settings.main_gpu
    shares = split_list(settings.tensor_split)
    params.tensor_split = shares
    overrides = override_list(settings.all_overrides)
    params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p) if overrides else None
    devices = _device_list(settings.devices)
    params.devices = ctypes.cast(devices, ctypes.c_void_p) if devices is not None else None
    params.progress_callback = _on_progress(in_large_pages, is_wanted)
    library.forget_errors()
    loaded = C.llama_model_load_from_file(os.fsencode(path), params)
    return library.made(loaded, f"load {path.name}")


def has_room_for_a_copy(settings: ModelSettings, n_bytes: int) -> bool:
    """Whether the weights are to be copied: as much memory again must stay free, for others."""
    wanted = settings.large_pages and (settings.gpu_layers == 0 or not library.has_gpu())
    return wanted and large_pages.available() and library.free_ram() > 2 * n_bytes


def _on_progress(in_large_pages: bool, is_wanted: Callable[[], bool]) -> Any:
    """llama.cpp tells its progress once before it reads: memory is taken then, but not written."""
    pages = large_pages.LargePages() if in_large_pages else None

    def tell(progress: float, _data: object) -> bool:
        if progress == 0.0 and pages is not None:
            n = pages.ask()
            library.log.debug("large pages asked for behind %.0f MB", n / 1e6)
        return is_wanted()

    return binding.ON_PROGRESS(tell)


def _load_mode(settings: ModelSettings, mmap: bool) -> int:
    mode = binding.LOAD_MODE_NONE
    if mmap:
        mode |= binding.LOAD_MODE_MMAP
    if settings.mlock:
        mode |= binding.LOAD_MODE_MLOCK
    return mode


def _device_list(names: tuple[str, ...]) -> ctypes.Array[ctypes.c_void_p] | None:
    """A NULL-terminated array of device pointers, as the C side wants it."""
    if not names:
        return None
    known = library.device_handles()
    missing = [name for name in names if name not in known]
    if missing:
        raise BadRequest(f"no device {missing[0]!r}; this build has {', '.join(known)}")
    # The CPU is always there; it is not listed among the devices to offload to.
    offload = [known[n] for n in names if not n.startswith("CPU")]
    return (ctypes.c_void_p * (len(offload) + 1))(*offload, None)

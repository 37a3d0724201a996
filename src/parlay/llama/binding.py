"""llama.cpp's C functions and structs, as the releases that Parlay supports have them.

Does not know where libraries come from: it is handed the path of one, and either takes it or says
in one line why not. What passes structs by value trusts their layout blindly, so a library is taken
only if its version is known and its default parameters come back as that release sets them.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes import POINTER, c_bool, c_float, c_int32, c_size_t, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay.errors import EngineError

_PTR, _TEXT = ctypes.c_void_p, ctypes.c_char_p
Field = tuple[str, Any, Any]  # name, type, and what the library's own default is

ON_PROGRESS = ctypes.CFUNCTYPE(c_bool, c_float, _PTR)
ON_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, _TEXT, _PTR)

# Numbers that the functions below take and give.
LOAD_MODE_NONE, LOAD_MODE_MMAP, LOAD_MODE_MLOCK = 0, 1, 2
CONTEXT_DEFAULT, CONTEXT_MTP = 0, 1
TOKEN_UNKNOWN, TOKEN_CONTROL = 1 << 0, 1 << 3


# -- structs ---------------------------------------------------------------------------------

_MODEL: tuple[Field, ...] = (
    ("devices", _PTR, None),
    ("tensor_buft_overrides", _PTR, None),
    ("n_gpu_layers", c_int32, -1),
    ("split_mode", c_int32, 1),
    ("load_mode", c_int32, -1),
    ("lazy_mode", c_int32, 1),
    ("main_gpu", c_int32, 0),
    ("tensor_split", POINTER(c_float), None),
    ("progress_callback", ON_PROGRESS, None),
    ("progress_callback_user_data", _PTR, None),
    ("kv_overrides", _PTR, None),
    ("vocab_only", c_bool, False),
    ("check_tensors", c_bool, False),
    ("use_extra_bufts", c_bool, True),
    ("no_host", c_bool, False),
    ("no_alloc", c_bool, False),
    ("load_mtp", c_bool, False),
)

_CONTEXT: tuple[Field, ...] = (
    ("n_ctx", c_uint32, 512),
    ("n_batch", c_uint32, 2048),
    ("n_ubatch", c_uint32, 512),
    ("n_seq_max", c_uint32, 1),
    ("n_rs_seq", c_uint32, 0),
    ("n_outputs_max", c_uint32, 0),
    ("n_outputs_max_per_seq", c_uint32, 1),
    ("n_threads", c_int32, 4),
    ("n_threads_batch", c_int32, 4),
    ("ctx_type", c_int32, CONTEXT_DEFAULT),
    ("rope_scaling_type", c_int32, -1),
    ("pooling_type", c_int32, -1),
    ("attention_type", c_int32, -1),
    ("flash_attn_type", c_int32, -1),
    ("rope_freq_base", c_float, 0.0),
    ("rope_freq_scale", c_float, 0.0),
    ("yarn_ext_factor", c_float, -1.0),
    ("yarn_attn_factor", c_float, -1.0),
    ("yarn_beta_fast", c_float, -1.0),
    ("yarn_beta_slow", c_float, -1.0),
    ("yarn_orig_ctx", c_uint32, 0),
    ("defrag_thold", c_float, -1.0),
    ("cb_eval", _PTR, None),
    ("cb_eval_user_data", _PTR, None),
    ("type_k", c_int32, 1),
    ("type_v", c_int32, 1),
    ("abort_callback", _PTR, None),
    ("abort_callback_data", _PTR, None),
    ("embeddings", c_bool, False),
    ("offload_kqv", c_bool, True),
    ("no_perf", c_bool, True),
    ("op_offload", c_bool, True),
    ("swa_full", c_bool, True),
    ("kv_unified", c_bool, False),
    ("samplers", _PTR, None),
    ("n_samplers", c_size_t, 0),
    ("ctx_other", _PTR, None),
)


class Batch(ctypes.Structure):
    """The rows of one pass (`llama_batch`), which is passed by value."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", _PTR),
        ("embd", _PTR),
        ("pos", _PTR),
        ("n_seq_id", _PTR),
        ("seq_id", _PTR),
        ("logits", _PTR),
    )


class Override(ctypes.Structure):
    """Tensors of a name go to the memory of one device (`llama_model_tensor_buft_override`)."""

    _fields_ = (("pattern", _TEXT), ("memory", _PTR))


def _after(fields: tuple[Field, ...], name: str, *more: Field) -> tuple[Field, ...]:
    at = [field[0] for field in fields].index(name) + 1
    return (*fields[:at], *more, *fields[at:])


@dataclass(frozen=True)
class Release:
    """A release of llama.cpp whose structs are known."""

    name: str
    versions: frozenset[tuple[str, str]]  # what llama.cpp and its ggml say they are
    fits: str  # how to get it
    context: tuple[Field, ...] = _CONTEXT
    model: tuple[Field, ...] = _MODEL


RELEASES = (
    Release(
        "0.6.0-dev (b11549)",
        frozenset({("0.6.0-dev", "0.26.0")}),
        "pip install xllamacpp==2026.10.11549",
        context=_after(_CONTEXT, "type_v", ("moe_cache_size", c_size_t, 0)),
    ),
    Release(
        "0.5.0",
        # llama-cpp-python 0.3.36 is built from a commit just after it; npm has the release itself.
        frozenset({("0.5.0-dev", "0.25.3"), ("0.5.0-dev", "0.25.1")}),
        "parlay engine build",
    ),
)


# -- functions -------------------------------------------------------------------------------

# Result first, then arguments. Handles, arrays and buffers are bare pointers.
_I, _U, _SIZE, _INTS = c_int32, c_uint32, c_size_t, POINTER(c_int32)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, ON_LOG, _PTR),
    "llama_print_system_info": (_TEXT,),
    "llama_max_devices": (_SIZE,),
    # Models
    "llama_model_free": (None, _PTR),
    "llama_model_get_vocab": (_PTR, _PTR),
    "llama_model_n_layer": (_I, _PTR),
    "llama_model_n_layer_nextn": (_I, _PTR),
    "llama_model_n_embd": (_I, _PTR),
    "llama_model_n_ctx_train": (_I, _PTR),
    "llama_model_size": (c_uint64, _PTR),
    "llama_model_n_params": (c_uint64, _PTR),
    "llama_model_desc": (_I, _PTR, _PTR, _SIZE),
    "llama_model_chat_template": (_TEXT, _PTR, _TEXT),
    "llama_model_meta_val_str": (_I, _PTR, _TEXT, _PTR, _SIZE),
    "llama_adapter_lora_init": (_PTR, _PTR, _TEXT),
    "llama_set_adapters_lora": (_I, _PTR, _PTR, _SIZE, _PTR),
    # Vocabularies
    "llama_vocab_type": (_I, _PTR),
    "llama_vocab_n_tokens": (_I, _PTR),
    "llama_vocab_bos": (_I, _PTR),
    "llama_vocab_eos": (_I, _PTR),
    "llama_vocab_mask": (_I, _PTR),
    "llama_vocab_fim_pre": (_I, _PTR),
    "llama_vocab_fim_suf": (_I, _PTR),
    "llama_vocab_fim_mid": (_I, _PTR),
    "llama_vocab_fim_sep": (_I, _PTR),
    "llama_vocab_get_add_bos": (c_bool, _PTR),
    "llama_vocab_is_eog": (c_bool, _PTR, _I),
    "llama_vocab_get_attr": (_I, _PTR, _I),
    "llama_vocab_get_text": (_TEXT, _PTR, _I),
    "llama_tokenize": (_I, _PTR, _TEXT, _I, _PTR, _I, c_bool, c_bool),
    "llama_token_to_piece": (_I, _PTR, _I, _PTR, _I, _I, c_bool),
    # Contexts
    "llama_free": (None, _PTR),
    "llama_get_memory": (_PTR, _PTR),
    "llama_n_ctx_seq": (_U, _PTR),
    "llama_n_ubatch": (_U, _PTR),
    "llama_n_rs_seq": (_U, _PTR),
    "llama_set_n_threads": (None, _PTR, _I, _I),
    "llama_set_causal_attn": (None, _PTR, c_bool),
    "llama_decode": (_I, _PTR, Batch),
    "llama_encode": (_I, _PTR, Batch),
    "llama_synchronize": (None, _PTR),
    "llama_get_logits": (_PTR, _PTR),
    "llama_memory_seq_rm": (c_bool, _PTR, _I, _I, _I),
    "llama_memory_seq_add": (None, _PTR, _I, _I, _I, _I),
    "llama_memory_seq_pos_max": (_I, _PTR, _I),
    "llama_memory_can_shift": (c_bool, _PTR),
    "llama_state_seq_get_size_ext": (_SIZE, _PTR, _I, _U),
    "llama_state_seq_get_data_ext": (_SIZE, _PTR, _PTR, _SIZE, _I, _U),
    "llama_state_seq_set_data_ext": (_SIZE, _PTR, _PTR, _SIZE, _I, _U),
    # Devices, of ggml
    "ggml_backend_load_all_from_path": (None, _TEXT),
    "ggml_backend_dev_count": (_SIZE,),
    "ggml_backend_dev_get": (_PTR, _SIZE),
    "ggml_backend_dev_name": (_TEXT, _PTR),
    "ggml_backend_dev_description": (_TEXT, _PTR),
    "ggml_backend_dev_type": (_I, _PTR),
    "ggml_backend_dev_memory": (None, _PTR, POINTER(_SIZE), POINTER(_SIZE)),
    "ggml_backend_dev_buffer_type": (_PTR, _PTR),
}


class Binding:
    """A library that was taken: its functions are attributes, by their names in C."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise EngineError(_why_not_opened(path, str(error))) from None
        self.version = self._text("llama_version")
        self.ggml_version = self._text("ggml_version")
        self.release = _known(path, self.version, self.ggml_version)
        for name, (result, *arguments) in FUNCTIONS.items():
            setattr(self, name, self._needed(name, result, *arguments))
        self._take_structs(self.release)

    def optional(self, name: str, result: Any, *arguments: Any) -> Any | None:
        """A function that a build may lack: one of C++, or of what the library links to."""
        try:
            found = self.lib[name]
        except AttributeError:
            return None
        found.restype, found.argtypes = result, arguments
        return found

    def _needed(self, name: str, result: Any, *arguments: Any) -> Any:
        found = self.optional(name, result, *arguments)
        if found is None:
            raise EngineError(
                f"{self.path} has no {name}: it is no llama.cpp, or cut down; {fitting()}"
            )
        return found

    def _text(self, name: str) -> str:
        raw: bytes | None = self._needed(name, _TEXT)()
        return raw.decode("utf-8", "replace") if raw else "unknown"

    def _take_structs(self, release: Release) -> None:
        """Functions over structs that releases differ in, once their defaults are as they should
        be."""
        model = self._defaults("llama_model_default_params", release.model)
        context = self._defaults("llama_context_default_params", release.context)
        self._check_batch()
        self.llama_model_default_params = model
        self.llama_context_default_params = context
        self.llama_model_load_from_file = self._needed(
            "llama_model_load_from_file", _PTR, _TEXT, model.restype
        )
        self.llama_init_from_model = self._needed(
            "llama_init_from_model", _PTR, _PTR, context.restype
        )

    def _defaults(self, name: str, fields: tuple[Field, ...]) -> Any:
        kind = _struct(name, fields)
        self._check_size(name, kind)
        call = self._needed(name, kind)
        made = call()
        for field, _, expected in fields:
            found = getattr(made, field)
            if (found or None) != (expected or None):
                self._refuse(f"{name} says {field} is {found}, which should be {expected}")
        return call

    def _check_batch(self) -> None:
        """The library makes one by value, too: each field must be where it is looked for."""
        token = (c_int32 * 1)()
        self._check_size("llama_batch_get_one", Batch, token, 1)
        made = self._needed("llama_batch_get_one", Batch, _PTR, _I)(token, 1)
        others = (made.embd, made.pos, made.n_seq_id, made.seq_id, made.logits)
        if (made.n_tokens, made.token) != (1, ctypes.addressof(token)) or any(others):
            self._refuse("llama_batch has another order of fields")

    def _check_size(self, name: str, kind: Any, *arguments: Any) -> None:
        """How much the library writes where it returns a struct. On x86-64 the place is handed
        over as the first argument, so that it can be watched; elsewhere values must do."""
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return
        room = 4 * ctypes.sizeof(kind)
        into = self._needed(
            name, _PTR, _PTR, *(_PTR if i == 0 else _I for i in range(len(arguments)))
        )
        written = 0
        for fill in (b"\x55", b"\xaa"):
            place = ctypes.create_string_buffer(fill * room, room)
            into(place, *arguments)
            written = max(written, len(place.raw.rstrip(fill)))
        last = kind._fields_[-1][0]
        end = getattr(kind, last).offset + getattr(kind, last).size
        if not end <= written <= ctypes.sizeof(kind):
            self._refuse(f"{name} writes {written} bytes instead of {ctypes.sizeof(kind)}")

    def _refuse(self, what: str) -> None:
        raise EngineError(
            f"{self.path} says it is llama.cpp {self.version}, but {what}; {fitting()}"
        )


def fitting() -> str:
    """What to do about a library that does not fit."""
    return "use one that fits: " + ", or ".join(release.fits for release in RELEASES)


def _struct(name: str, fields: tuple[Field, ...]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": tuple(field[:2] for field in fields)})


def _known(path: Path, version: str, ggml: str) -> Release:
    for release in RELEASES:
        if (version, ggml) in release.versions:
            return release
    known = " and ".join(release.name for release in RELEASES)
    raise EngineError(
        f"{path} is llama.cpp {version} with ggml {ggml}; Parlay knows the structs of {known}:"
        f" {fitting()}"
    )


def _why_not_opened(path: Path, said: str) -> str:
    if "libgomp" in said:
        return (
            f"{path.name} needs OpenMP's library libgomp.so.1, which is not installed: apt-get"
            " install libgomp1, or parlay engine fetch, whose kernels need none"
        )
    return f"the engine {path} cannot be opened ({said}); {fitting()}"

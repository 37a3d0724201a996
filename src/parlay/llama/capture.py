"""Captures hidden states while a context decodes, and says what drafters of this kind want.

llama.cpp exports the calls for it, but under C++ names: they are looked up, and where one is
missing the reason is said. Knows nothing of what becomes of the states.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from parlay.decoding.span import Span
from parlay.decoding.states import Listener, States
from parlay.errors import LoadError
from parlay.llama import library
from parlay.llama.library import C
from parlay.llama.model import Model

_FLOATS = ctypes.POINTER(ctypes.c_float)
_POINTER, _BOOL = ctypes.c_void_p, ctypes.c_bool
# Name, as the compilers of Linux and macOS write it; arguments; result.
_CALLS: dict[str, tuple[str, list[Any], Any]] = {
    "set_layer": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        [_POINTER, ctypes.c_uint32, _BOOL],
        None,
    ),
    "get_layer": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        [_POINTER, ctypes.c_uint32],
        _POINTER,
    ),
    "set_last": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        [_POINTER, _BOOL, _BOOL],
        None,
    ),
    "get_last": ("_Z26llama_get_embeddings_nextnP13llama_context", [_POINTER], _POINTER),
    "set_link": (
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        [_POINTER, ctypes.c_int32],
        None,
    ),
    "layers": (
        "_Z28llama_model_target_layer_idsPK11llama_model",
        [_POINTER],
        ctypes.POINTER(ctypes.c_int32),
    ),
    "n_layers": (
        "_Z30llama_model_target_layer_ids_nPK11llama_model",
        [_POINTER],
        ctypes.c_uint32,
    ),
    "selector": (
        "_Z33llama_model_dflash_selector_top_kPK11llama_model",
        [_POINTER],
        ctypes.c_int32,
    ),
    "embeddings": (
        "_Z24llama_model_get_tok_embdPK11llama_modelPf",
        [_POINTER, _FLOATS],
        ctypes.c_uint32,
    ),
}

# Asked for the input of a layer, llama.cpp aborts the process on any other architecture.
GIVES_LAYERS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "llama",
    "mimo2", "minimax-m2", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35",
    "qwen35moe", "qwen3moe", "qwen3next",
})  # fmt: skip
# These keep the state after their last layer.
GIVES_LAST = frozenset({
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma4", "glm-dsa",
    "glm4moe", "gpt-oss", "hy_v3", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
    "qwen3next", "step35",
})  # fmt: skip
# Of several NextN layers these run any; the others abort the process if there is more than one.
RUNS_CHAINS = frozenset({"hy_v3", "mimo2", "step35"})


@functools.cache
def _call(name: str) -> Any:
    symbol, arguments, result = _CALLS[name]
    found = C.optional(symbol, result, *arguments)
    if found is None:
        raise LoadError(
            f"this build of llama.cpp ({library.version()}) does not export {symbol}, which a"
            " drafter that reads hidden states needs; use a plain draft model or --draft suffix"
        )
    return found


def can_read() -> bool:
    """Whether this engine gives hidden states to drafters that read them."""
    return all(C.optional(symbol, None) is not None for symbol, *_ in _CALLS.values())


def wanted_layers(drafter: Model) -> tuple[int, ...]:
    """The target's layers whose inputs a drafter reads."""
    ids, n = _call("layers")(drafter.handle), _call("n_layers")(drafter.handle)
    return tuple(ids[:n])


def selector_size(drafter: Model) -> int:
    """Candidates of a DFlash2 selector; 0: it has none."""
    return int(_call("selector")(drafter.handle))


def keep_last(handle: int | None) -> None:
    """Let a context keep the state after its last layer, of the rows with logits."""
    _call("set_last")(handle, True, True)


def last_states(handle: int | None, n: int, width: int) -> States:
    """Those states of the last pass, as a copy."""
    return _copy(_call("get_last")(handle), n, width)


def use_link(handle: int | None, link: int) -> None:
    """Let a context of NextN layers run one of them, from 0."""
    _call("set_link")(handle, link)


def token_embeddings(model: Model) -> States:
    """The embedding of every token, as llama.cpp decodes it."""
    call = _call("embeddings")
    table = np.empty((model.vocabulary.size, model.n_embd), np.float32)
    if call(model.handle, table.ctypes.data_as(_FLOATS)) != table.size:
        raise LoadError(f"llama.cpp does not give the embeddings of {model.path.name}")
    return table


class Capture:
    """The inputs of some layers of a context, read after every pass.

    A layer one past the last means the state after the last one.
    """

    def __init__(
        self, handle: int | None, model: Model, layers: Sequence[int], listener: Listener
    ) -> None:
        self._handle = handle
        self._n_embd = model.n_embd
        self._n_layers = model.n_layers
        self.layers = tuple(layers)
        self._listener = listener
        self._views: dict[int, tuple[int, States]] = {}  # where a layer's states lie
        self.paused = self._to_pause = False
        _check(model, self.layers)
        self._switch(on=True)

    def pause(self, paused: bool) -> None:
        """From the next pass on: while paused, passes cost what they did before, and nobody is told
        of them."""
        self._to_pause = paused

    def before_pass(self) -> None:
        """The last pass has ended, and with it what it was to capture."""
        if self._to_pause != self.paused:
            self._switch(on=self.paused)
            self.paused = self._to_pause

    def close(self) -> None:
        """Stop: from here on passes cost what they did before."""
        self._switch(on=False)

    def tell(self, spans: Sequence[Span], n_rows: int) -> None:
        """Hand the last pass's states over."""
        if self.paused:
            return
        width = self._n_embd
        rows: States = np.empty((n_rows, len(self.layers) * width), np.float32)
        for i, layer in enumerate(self.layers):
            rows[:, i * width : (i + 1) * width] = self._read(layer, n_rows)
        if len(spans) == 1:
            self._listener(spans, [rows])
        else:
            ends = np.cumsum([len(span.tokens) for span in spans])
            self._listener(spans, np.split(rows, ends[:-1]))

    def _read(self, layer: int, n_rows: int) -> States:
        """Views are kept: to make one takes longer than to copy what it shows."""
        if layer == self._n_layers:
            address = _call("get_last")(self._handle)
        else:
            address = _call("get_layer")(self._handle, layer)
        before, rows = self._views.get(layer, (None, None))
        if rows is None or address != before or len(rows) < n_rows:
            rows = _view(address, n_rows, self._n_embd)
            self._views[layer] = address, rows
        return rows[:n_rows]

    def _switch(self, *, on: bool) -> None:
        for layer in self.layers:
            if layer == self._n_layers:
                _call("set_last")(self._handle, on, False)
            else:
                _call("set_layer")(self._handle, layer, on)


def _check(model: Model, layers: Sequence[int]) -> None:
    architecture, n = model.facts.architecture, model.n_layers
    if not layers or not all(0 <= layer <= n for layer in layers):
        raise LoadError(
            f"the drafter reads layers {list(layers)}, {model.path.name} has {n}; it was made for"
            " another target"
        )
    knows = GIVES_LAST if n in layers else GIVES_LAYERS
    if architecture not in knows or (len(set(layers)) > 1 and architecture not in GIVES_LAYERS):
        raise LoadError(
            f"llama.cpp does not give out the hidden states of the architecture {architecture!r}"
            f" ({model.path.name}); use a plain draft model or --draft suffix"
        )


def _view(address: int | None, n: int, width: int) -> States:
    if not address:
        raise LoadError("llama.cpp kept no hidden states of this pass")
    flat = (ctypes.c_float * (n * width)).from_address(address)
    rows: States = np.ctypeslib.as_array(flat).reshape(n, width)
    return rows


def _copy(address: int | None, n: int, width: int) -> States:
    return np.array(_view(address, n, width))

"""A drafter that reads its target's hidden states: DFlash, EAGLE-3, or the target's NextN head.

Its context borrows embeddings and head from the target's where the file has none. Knows which rows
each kind is fed, nothing of drafts.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.decoding.states import Fed, States
from parlay.errors import BadRequest, DecodeError, LoadError
from parlay.llama import capture, library
from parlay.llama.context import Batch, Context, create
from parlay.llama.header import read_parts
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings
from parlay.llama.undo import Rollback

Kind = Literal["model", "dflash", "eagle3", "mtp"]


def kind_of(drafter: Model, target: Model) -> Kind:
    """What kind of drafter it is for this target; `mtp` is a target's own NextN head."""
    if drafter.facts.architecture == "dflash":
        return "dflash"
    if drafter.facts.architecture == "eagle3":
        return "eagle3"
    own_head = drafter is target and target.settings.own_head
    return "mtp" if own_head and C.llama_model_n_layer_nextn(target.handle) > 0 else "model"


def refuse_lone_head(path: Path) -> None:
    """NextN weights without the layers below them would load as a draft model of no layers."""
    names = [tensor.name for header in read_parts(path) for tensor in header.tensors]
    alone = not any(name.startswith("blk.0.") for name in names)
    # Gemma 4's assistant has layers of its own, and projections named like this beside them.
    assistant = any(name.startswith("nextn.") for name in names)
    if assistant or (alone and any(".nextn." in name for name in names)):
        raise LoadError(
            f"{path.name} holds only NextN layers, which Parlay runs from the target's own file;"
            " use another drafter, or a target converted with them, named as its own drafter"
        )


class StateContext(Context):
    """A drafter's context. Close it before the target's."""

    def __init__(self, model: Model, settings: ContextSettings, target: Context) -> None:
        self.kind = kind_of(model, target.model)
        self._target = target
        self.layers = _layers(self.kind, model, target.model)
        self.width = len(self.layers) * target.model.n_embd
        _check(self.kind, model, target.model)
        fed = self.width if self.kind == "dflash" else model.n_embd
        self._fed = _StateBatch(settings.n_batch, fed, with_tokens=self.kind != "dflash")
        super().__init__(model, settings)

    def _open(self) -> int:
        mtp = C.LLAMA_CONTEXT_TYPE_MTP if self.kind == "mtp" else C.LLAMA_CONTEXT_TYPE_DEFAULT
        handle = create(
            self.model, self.settings, self.cache_types, other=self._target._handle, kind=mtp
        )
        if self.kind == "dflash":
            causal = self.setting("attention.causal") == "true"
            C.llama_set_causal_attn(handle, causal)
        else:
            capture.keep_last(handle, every_row=False)
        return handle

    # -- what the file says ---------------------------------------------------

    def setting(self, key: str) -> str | None:
        """A value of the file's metadata, as text."""
        buffer = ctypes.create_string_buffer(64)
        name = f"{self.model.facts.architecture}.{key}".encode()
        n = C.llama_model_meta_val_str(self.model.handle, name, buffer, len(buffer))
        return buffer.value.decode() if n >= 0 else None

    @property
    def block_size(self) -> int:
        """Rows of a DFlash block: the last committed token, then masks."""
        return int(self.setting("block_size") or 16)  # llama.cpp's own default

    @property
    def mask(self) -> int:
        """The token that stands for one not known yet."""
        return int(C.llama_vocab_mask(C.llama_model_get_vocab(self.model.handle)))

    # -- passes ---------------------------------------------------------------

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        """One pass over states; per item logits and own states of its last `n_logits` rows."""
        n_outputs = self._fed.fill_states(fed)
        library.forget_errors()
        started = time.perf_counter()
        library.check(C.llama_decode(self._handle, self._fed.struct), "llama_decode of states")
        rows = self._logits(n_outputs)
        states = self._own_states(n_outputs)
        self.busy_s += time.perf_counter() - started
        ends = np.cumsum([item.n_logits for item in fed])[:-1]
        return list(zip(np.split(rows, ends), np.split(states, ends), strict=True))

    def _own_states(self, n: int) -> States:
        if n == 0 or self.kind == "dflash":
            return np.empty((n, 0), np.float32)
        return capture.last_states(self._handle, n, self.model.n_embd)

    def encode(self, states: States) -> States:
        """EAGLE-3 fuses the layers in a pass of its own; the others take them as they are."""
        if self.kind != "eagle3" or not len(states):
            return states
        limit = self.settings.n_batch
        parts = [self._encode(states[i : i + limit]) for i in range(0, len(states), limit)]
        return np.concatenate(parts)

    def _encode(self, states: States) -> States:
        batch = _StateBatch(len(states), states.shape[1], with_tokens=False)
        # The encoder has no positions, but llama.cpp checks that they go on.
        batch.fill_states([Fed(0, self.length(0), states, n_logits=len(states))])
        library.check(C.llama_encode(self._handle, batch.struct), "llama_encode")
        C.llama_synchronize(self._handle)
        return capture.last_states(self._handle, len(states), self.model.n_embd)

    def _probe_rollback(self) -> Rollback:
        """Feed a few rows and take the last ones back."""
        states = np.zeros((4, self._fed.width), np.float32)
        tokens = (0,) * 4 if self._fed.with_tokens else ()
        try:
            self.read([Fed(0, 0, states, tokens)])
            cut = C.llama_memory_seq_rm(self._memory, 0, 2, -1)
            return Rollback.PARTIAL if cut and self.length(0) == 2 else Rollback.NONE
        except DecodeError as error:
            raise LoadError(f"{self.model.path.name} does not run as a drafter: {error}") from None
        finally:
            self.clear(0)


class _StateBatch(Batch):
    """Rows of states, with or without a token beside each."""

    def __init__(self, capacity: int, width: int, *, with_tokens: bool) -> None:
        super().__init__(capacity)
        self.width = width
        self.with_tokens = with_tokens
        self._states = np.zeros((capacity, width), np.float32)
        kind = dict(C.llama_batch._fields_)["embd"]
        self.struct.embd = ctypes.cast(self._states.ctypes.data, kind)
        if not with_tokens:
            self.struct.token = None

    def fill_states(self, fed: Sequence[Fed]) -> int:
        """Write the rows; returns how many rows of logits they ask for."""
        at = 0
        for item in fed:
            end = at + len(item.states)
            if end > self.capacity:
                raise BadRequest(f"a pass holds {self.capacity} rows; feed fewer")
            self._states[at:end] = item.states
            at = end
        unread = ((0,) * len(item.states) for item in fed)
        return self.fill(
            [
                Span(item.seq_id, item.start, item.tokens or zeros, item.n_logits)
                for item, zeros in zip(fed, unread, strict=True)
            ]
        )


def _layers(kind: Kind, model: Model, target: Model) -> tuple[int, ...]:
    # A NextN head reads the state after the last layer.
    return (target.n_layers,) if kind == "mtp" else capture.wanted_layers(model)


def _check(kind: Kind, model: Model, target: Model) -> None:
    """Refuse what llama.cpp would only abort on, or what is not done here."""
    name = model.path.name
    if kind == "dflash" and capture.selector_size(model):
        raise LoadError(f"{name} is a DFlash2 drafter with a selector, which Parlay does not run")
    if kind == "dflash" and _has_markov_head(model):
        raise LoadError(f"{name} is a DSpark drafter, which Parlay does not run; use a DFlash one")
    if kind == "mtp" and C.llama_model_n_layer_nextn(model.handle) > 1:
        raise LoadError(f"{name} has several NextN layers in a chain, which Parlay does not run")
    if kind in ("dflash", "mtp") and model.n_embd != target.n_embd:
        raise LoadError(
            f"{name} is {model.n_embd} wide, {target.path.name} {target.n_embd}; it was made for"
            " another target"
        )


def _has_markov_head(model: Model) -> bool:
    headers = read_parts(model.path)
    return any("markov" in tensor.name for header in headers for tensor in header.tensors)

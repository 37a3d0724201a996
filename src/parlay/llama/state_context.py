"""A drafter that reads its target's hidden states: DFlash, DSpark, EAGLE-3, or a NextN head.

Its context borrows embeddings and head from the target's where the file has none. Knows which rows
each kind is fed, nothing of drafts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.decoding.states import Fed, States
from parlay.errors import BadRequest, DecodeError, LoadError
from parlay.llama import binding, capture
from parlay.llama.batch import Batch
from parlay.llama.context import Context, create
from parlay.llama.facts import ASSISTANT
from parlay.llama.header import Header, read_parts
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings
from parlay.llama.undo import Rollback

Kind = Literal["model", "dflash", "eagle3", "mtp", "assistant"]

_OWN_ARCHITECTURE: dict[str, Kind] = {
    "dflash": "dflash",
    "eagle3": "eagle3",
    ASSISTANT: "assistant",
}


def kind_of(drafter: Model) -> Kind:
    """What kind of drafter it is; `mtp` is a NextN head, of the target's file or of its own."""
    if (kind := _OWN_ARCHITECTURE.get(drafter.facts.architecture)) is not None:
        return kind
    has_head = drafter.settings.own_head and C.llama_model_n_layer_nextn(drafter.handle) > 0
    return "mtp" if has_head else "model"


def is_lone_head(path: Path) -> bool:
    """Whether a file holds NextN layers without those below them."""
    names = [tensor.name for header in read_parts(path) for tensor in header.tensors]
    alone = not any(name.startswith("blk.0.") for name in names)
    return alone and any(".nextn." in name for name in names)


class StateContext(Context):
    """A drafter's context. Close it before the target's."""

    def __init__(self, model: Model, settings: ContextSettings, target: Context) -> None:
        self.kind = kind_of(model)
        self._target = target
        self.layers = _layers(self.kind, model, target.model)
        self.width = len(self.layers) * target.model.n_embd
        _check(self.kind, model, target.model)
        fed = model.n_embd if self.kind in ("eagle3", "mtp") else self.width
        self._fed = _StateBatch(settings.n_batch, fed, with_tokens=self.kind != "dflash")
        super().__init__(model, settings)

    def _open(self) -> int:
        nextn = self.kind in ("mtp", "assistant")
        kind = binding.CONTEXT_MTP if nextn else binding.CONTEXT_DEFAULT
        handle = create(
            self.model, self.settings, self.cache_types, other=self._target._handle, kind=kind
        )
        if self.kind == "dflash":
            causal = self.setting("attention.causal") == "true"
            C.llama_set_causal_attn(handle, causal)
        else:
            capture.keep_last(handle)
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
    def n_links(self) -> int:
        """NextN layers, which draft in turn."""
        return int(C.llama_model_n_layer_nextn(self.model.handle)) if self.kind == "mtp" else 1

    def use(self, link: int) -> None:
        """Run one of the NextN layers in the coming passes."""
        capture.use_link(self._handle, link)

    @property
    def n_candidates(self) -> int:
        """Tokens a DFlash2 selector weighs at each position; 0: there is none."""
        return capture.selector_size(self.model) if self.kind == "dflash" else 0

    @property
    def from_anchor(self) -> bool:
        """Whether a block's first row, the last committed token's, gives a token too (DSpark)."""
        return _has_markov_head(self.model) and self.setting("sample_from_anchor") != "false"

    @property
    def mask(self) -> int:
        """The token that stands for one not known yet."""
        return int(C.llama_vocab_mask(C.llama_model_get_vocab(self.model.handle)))

    # -- passes ---------------------------------------------------------------

    def read(self, fed: Sequence[Fed]) -> list[tuple[NDArray[np.float32], States]]:
        """One pass over states; per item logits and own states of its last `n_logits` rows."""
        n_outputs = self._fed.fill_states(fed)
        self._hand_over(C.llama_decode, self._fed.struct, "llama_decode of states")
        rows, states = self._logits(n_outputs), self._own_states(n_outputs)
        ends = np.cumsum([item.n_logits for item in fed])[:-1]
        return list(zip(np.split(rows, ends), np.split(states, ends), strict=True))

    def _own_states(self, n: int) -> States:
        if n == 0 or self.kind == "dflash":
            return np.empty((n, 0), np.float32)
        return capture.last_states(self._handle, n, self._fed.width)

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
        self._hand_over(C.llama_encode, batch.struct, "llama_encode")
        C.llama_synchronize(self._handle)
        return capture.last_states(self._handle, len(states), self.model.n_embd)

    def _make_recorder(self) -> None:
        """It is fed states, and its shapes hardly change: llama.cpp's own way will do."""

    def _probe_rollback(self) -> Rollback:
        """Feed a few rows and take the last ones back; an assistant leaves none behind."""
        states = np.zeros((4, self._fed.width), np.float32)
        tokens = (0,) * 4 if self._fed.with_tokens else ()
        try:
            if self.kind == "assistant":
                self.read([Fed(0, self.length(0), states[:1], tokens[:1])])
                return Rollback.PARTIAL
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
        self.struct.embd = self._states.ctypes.data
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
    if kind in ("mtp", "assistant"):  # they read the state after the last layer
        return (target.n_layers,)
    return capture.wanted_layers(model)


def _check(kind: Kind, model: Model, target: Model) -> None:
    """Refuse what llama.cpp would only abort on, or what is not done here."""
    name = model.path.name
    if kind == "mtp" and model.facts.architecture != target.facts.architecture:
        raise LoadError(
            f"{name} is a head for {model.facts.architecture}, {target.path.name} is"
            f" {target.facts.architecture}; it was made for another target"
        )
    if kind == "assistant":
        _check_assistant(model, target)
    n_links, architecture = C.llama_model_n_layer_nextn(model.handle), model.facts.architecture
    if kind == "mtp" and n_links > 1 and architecture not in capture.RUNS_CHAINS:
        raise LoadError(
            f"{name} has {n_links} NextN layers, of which llama.cpp runs a single one for the"
            f" architecture {architecture!r}; use another drafter, or --draft suffix"
        )
    if kind in ("dflash", "mtp") and model.n_embd != target.n_embd:
        raise LoadError(
            f"{name} is {model.n_embd} wide, {target.path.name} {target.n_embd}; it was made for"
            " another target"
        )


def _has_markov_head(model: Model) -> bool:
    headers = read_parts(model.path)
    return any("markov" in tensor.name for header in headers for tensor in header.tensors)


def _check_assistant(model: Model, target: Model) -> None:
    """It reads the keys of the target's last two layers: llama.cpp takes their shape on trust."""
    own, others = (read_parts(each.path)[0] for each in (model, target))
    width = own.optional(f"{ASSISTANT}.embedding_length_out")
    lasts = _keys(others, target)[-2:]
    fits = [slides for slides, *_ in lasts] == [True, False] and set(_keys(own, model)) <= {*lasts}
    if target.facts.architecture != "gemma4" or width != target.n_embd or not fits:
        raise LoadError(
            f"{model.path.name} is a Gemma 4 assistant that reads the keys of another target than"
            f" {target.path.name}; use the one made for it, or --draft suffix"
        )


def _keys(header: Header, model: Model) -> list[tuple[bool, int, int | None]]:
    """By layer: whether it slides, its heads, and how wide their keys are."""
    name = f"{model.facts.architecture}.attention"
    pattern = header.values.get(f"{name}.sliding_window_pattern")
    slides = [bool(each) for each in pattern] if isinstance(pattern, tuple) else []
    sizes = {True: f"{name}.key_length_swa", False: f"{name}.key_length"}
    n_heads = model.facts.kv_heads_by_layer
    return [(s, n, header.optional(sizes[s])) for s, n in zip(slides, n_heads, strict=False)]

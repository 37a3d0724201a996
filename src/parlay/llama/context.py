"""A context: the cache of several sequences, and one pass over rows of any of them.

Knows nothing of drafts: a span is a run of tokens of one sequence, logits are asked for its end.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.decoding.states import Listener
from parlay.errors import BadRequest, Closed, DecodeError, LoadError
from parlay.llama import adapters, fence, library
from parlay.llama.batch import Batch
from parlay.llama.capture import Capture
from parlay.llama.kernels import Kernels, can_choose
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.sample_text import SAMPLE
from parlay.llama.settings import CACHE_TYPES, ContextSettings, RopeSettings
from parlay.llama.threads import Threads
from parlay.llama.undo import Rollback, SavedSequence, State, Undo, restore, save

_ROPE_SCALING = {"auto": -1, "none": 0, "linear": 1, "yarn": 2}
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


class Context:
    """One llama.cpp context. Logits are views: valid until the next pass."""

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        self.model = model
        self.settings = settings
        self.n_vocab = model.vocabulary.size
        self.busy_s = 0.0
        self.steady = model.on_gpu
        chooses = _chooses_kernels(model, settings)
        self.cache_types = settings.cache_types(
            on_gpu=model.on_gpu, shares_keys=model.facts.shares_keys, kernels=chooses
        )
        self._n_threads = self._own_threads = settings.threads or model.threads
        self.threads = Threads(self._own_threads)  # for the next pass
        self._handle: int | None = self._open()
        halves = set(self.cache_types) <= {"f16", "f32"}  # only these have other kernels
        self.kernels = Kernels(self._handle) if chooses and halves else None
        hacks = fence.hacks()
        self._work = hacks and hacks.make_work_memory(self._handle, on_gpu=model.on_gpu)
        self._memory: int = C.llama_get_memory(self._handle)
        cells: int = C.llama_n_ctx_seq(self._handle)
        self.context_size = min(cells, settings.context_size) if settings.unified else cells
        self._batch = Batch(settings.n_batch)
        self._max_outputs = _max_outputs(settings)
        self._n_outputs = 0  # rows of logits that the pass under way gives
        self._view: NDArray[np.float32] = np.empty((0, self.n_vocab), np.float32)
        self._view_address = 0
        self._copies = True  # whether what cannot be cut can be copied and put back
        self._undo: Undo | None = None  # for sequences that cannot be cut by position
        self._reach: dict[int, int] = {}  # cells that a sequence spanned before it slid
        # Sequences with sliding layers that came back from a copy: that holds just the window,
        # so that they cannot be cut to fewer tokens than these.
        self._floor: dict[int, int] = {}
        self._capture: Capture | None = None
        self.recorder: Any = None  # llama.cpp's own way, unless a trial of another goes well
        self.rollback = Rollback.PARTIAL  # until the probe says otherwise
        self.rollback = self._probe_rollback()
        self.can_shift = self._probe_shift()
        self.recorder = self._make_recorder()

    @functools.cached_property
    def sample(self) -> tuple[int, ...]:
        """A page of real text, by this model's vocabulary."""
        return tuple(self.model.vocabulary.tokenize(SAMPLE, bos=False, special=False))

    def _open(self) -> int:
        """Make the context. Kinds that need more than the settings say override it."""
        return create(self.model, self.settings, self.cache_types)

    # -- passes ---------------------------------------------------------------

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """One pass over all spans. Returns, per span, its last `n_logits` rows as a view."""
        return _apart(self.decode_rows(spans), spans)

    def decode_rows(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """The same, with every row of logits in one view, in order of spans."""
        self.start(spans)
        return self._logits(self._n_outputs)

    def start(self, spans: Sequence[Span]) -> None:
        """One pass. A GPU still works on it when this comes back."""
        if self._undo is not None:
            self._undo.before(spans)
        if self._capture is not None:
            self._capture.before_pass()
        self._n_outputs = self._batch.fill(spans)
        if self._n_outputs > self._max_outputs:
            raise BadRequest(f"a pass gives {self._max_outputs} rows of logits; ask for fewer")
        if self.kernels is not None:
            self.kernels.choose(plain=not all(span.apart for span in spans))
        if self.recorder is not None:
            self.recorder.before(spans)
        self._hand_over(C.llama_decode, self._batch.struct, "llama_decode")
        if self._capture is not None:
            self._capture.tell(spans, self._batch.struct.n_tokens)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        """The rows of the pass that was started last. Waits for a GPU to finish."""
        return _apart(self._logits(self._n_outputs), spans)

    def settle(self) -> None:
        """Wait for passes that were only started: their time must not be taken for the next's."""
        started = time.perf_counter()
        C.llama_synchronize(self._handle)
        self.busy_s += time.perf_counter() - started

    def _hand_over(self, call: Callable[..., int], batch: Any, what: str) -> None:
        """Start a pass, with the threads that were chosen for it."""
        if self.threads.n != self._n_threads:
            self._n_threads = self.threads.n
            C.llama_set_n_threads(self._handle, self._n_threads, self._n_threads)
        library.forget_errors()
        started = time.perf_counter()
        code = call(self._handle, batch)
        self.busy_s += time.perf_counter() - started
        if code != 0:
            library.check(code, what)
        if self._work is not None:
            self._work.keep_aligned()

    def share_threads(self, other: Context) -> None:
        """Compute with the threads of another context, if it has as many."""
        if self._own_threads == other._own_threads:
            self.threads = other.threads

    def capture(self, layers: Sequence[int], listener: Listener) -> None:
        """After every pass, tell the listener the inputs of these layers; see `Capture`."""
        self.release()
        self._capture = Capture(self._handle, self.model, layers, listener)

    @property
    def captured(self) -> tuple[int, ...]:
        """The layers whose inputs are captured now."""
        return () if self._capture is None else self._capture.layers

    def pause_capture(self, paused: bool) -> None:
        """Leave states inside from the next pass on: reading them out costs a part of each."""
        if self._capture is not None:
            self._capture.pause(paused)

    def release(self) -> None:
        """Capture nothing any more."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    def _logits(self, n: int) -> NDArray[np.float32]:
        """The logits of the last pass, without a copy. Waits for a GPU to finish."""
        if n == 0:
            self.settle()
            return self._view[:0]
        started = time.perf_counter()
        address: int | None = C.llama_get_logits(self._handle)
        self.busy_s += time.perf_counter() - started
        if not address:
            raise DecodeError("llama.cpp returned no logits for this pass", code=-1)
        if address != self._view_address or n > len(self._view):
            flat = (ctypes.c_float * (n * self.n_vocab)).from_address(address)
            self._view = np.ctypeslib.as_array(flat).reshape(n, self.n_vocab)
            self._view_address = address
        return self._view[:n]

    # -- the cache ------------------------------------------------------------

    def length(self, seq_id: int) -> int:
        """Tokens of the sequence in the cache."""
        return int(C.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def truncate(self, seq_id: int, length: int) -> None:
        """Forget everything from position `length` on."""
        if self._undo is not None and 0 < length < self.length(seq_id):
            again = self._undo.back(seq_id, length)
            if again:
                self.decode([Span(seq_id, length - len(again), again, 0)])
        elif not C.llama_memory_seq_rm(self._memory, seq_id, length, -1):
            raise DecodeError(f"the cache could not be cut to {length} tokens", code=-1)

    def reusable(self, seq_id: int, length: int) -> int:
        """How many of the first `length` cached tokens can be kept."""
        cached = self.length(seq_id)
        if length < self._floor.get(seq_id, 0):
            return 0
        if self.rollback is Rollback.PARTIAL or length >= cached:
            return min(length, cached)
        return 0 if self._undo is None else self._undo.reusable(seq_id, length)

    def mark(self, seq_id: int, *, lasting: bool = False) -> None:
        """Make it possible to come back to where the sequence is now; a lasting mark takes RAM."""
        if self._undo is not None:
            self._undo.mark(seq_id, self.length(seq_id), lasting=lasting)

    def save(self, seq_id: int) -> SavedSequence:
        """A copy of the whole sequence in RAM; what stays may be shorter, to its last mark."""
        whole = save(self._open_handle, seq_id, self.length(seq_id))
        marks = () if self._undo is None else self._undo.bring_home(seq_id)
        cuts_anywhere = self.rollback is Rollback.PARTIAL and not self._slides
        return SavedSequence(whole, marks, cuts_anywhere)

    def restore(self, seq_id: int, saved: SavedSequence) -> None:
        """Put a saved sequence into a place, whatever was there before."""
        self.clear(seq_id)
        self._put_back(seq_id, saved.whole)
        if self._undo is not None:
            self._undo.adopt(seq_id, saved.marks)

    def _put_back(self, seq_id: int, whole: State) -> None:
        restore(self._open_handle, seq_id, whole)
        if self._slides:
            self._floor[seq_id] = whole.length

    @property
    def _slides(self) -> bool:
        return self.model.facts.sliding_window is not None

    @property
    def free_rollback(self) -> int:
        """How many tokens of a draft are taken back at no cost."""
        if self._undo is not None:
            return self._undo.n_snapshots
        return self.context_size if self.rollback is Rollback.PARTIAL else 0

    @property
    def max_rollback(self) -> int:
        """How many tokens of a draft can be taken back, at whatever cost."""
        if self.rollback is Rollback.NONE:
            return 0
        return self.context_size if self._copies else self.free_rollback

    def clear(self, seq_id: int) -> None:
        """Forget a sequence."""
        if self._undo is not None:
            self._undo.forget(seq_id)
        self._reach.pop(seq_id, None)
        self._floor.pop(seq_id, None)
        C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard) and move what follows down."""
        if not self.can_shift:
            raise BadRequest("this model's cache cannot slide; read what is left of the text again")
        self._reach[seq_id] = max(self._reach.get(seq_id, 0), self.length(seq_id))
        C.llama_memory_seq_rm(self._memory, seq_id, keep, keep + discard)
        C.llama_memory_seq_add(self._memory, seq_id, keep + discard, -1, -discard)

    def holes(self, seq_id: int, length: int) -> int:
        """Free cells between used ones; only sliding leaves any, and new tokens fill them.

        `length` is the sequence's, as its owner knows it: other threads ask, and must not call
        llama.cpp while the owner decodes.
        """
        return max(0, self._reach.get(seq_id, 0) - length)

    def compact(self, seq_id: int) -> None:
        """Move a sequence's cells together. A slide must have been followed by a pass: until then
        the keys are not yet turned to their new positions."""
        state = save(self._open_handle, seq_id, self.length(seq_id))
        self.clear(seq_id)
        self._put_back(seq_id, state)

    def _probe_shift(self) -> bool:
        # Sliding turns the keys in place, and ggml has no such kernel for bf16: it would abort.
        return (
            self.rollback is Rollback.PARTIAL
            and self.cache_types[0] != "bf16"
            and bool(C.llama_memory_can_shift(self._memory))
        )

    def _make_recorder(self) -> Any:
        """Recordings of passes by shape; None where that cannot be had, or shapes cost nothing."""
        hacks = fence.hacks() if self.steady else None
        if hacks is None:
            return None
        try:
            return hacks.make_recorder(
                self._open_handle, self.decode, unified=self.settings.unified
            )
        finally:
            self.clear(0)

    def close(self) -> None:
        """Free the context; safe to call twice."""
        if self._handle is not None:
            self.release()
            if self.recorder is not None:
                C.llama_synchronize(self._handle)
                self.recorder.close()
            C.llama_free(self._handle)
            self._handle = None

    # -- rollback -------------------------------------------------------------

    def _probe_rollback(self) -> Rollback:
        """Try it: decode a few tokens and take the last ones back, one way and then the other."""
        n_snapshots = int(C.llama_n_rs_seq(self._handle))
        try:
            if n_snapshots == 0 and self._cuts_anywhere():
                return Rollback.PARTIAL
            self._copies = self._comes_back(self._make_undo(0))
            if n_snapshots and self._comes_back(self._make_undo(n_snapshots)):
                return Rollback.BOUNDED
            if self._copies:
                self._undo = self._make_undo(0)
                return Rollback.CHECKPOINT
        except DecodeError as error:
            library.log.info("no rollback on this model: %s", error)
        finally:
            self.clear(0)
        self._undo = None
        return Rollback.NONE

    def _cuts_anywhere(self) -> bool:
        self.decode([Span(0, 0, list(range(4)), 1)])
        cut = C.llama_memory_seq_rm(self._memory, 0, 2, -1)
        return bool(cut) and self.length(0) == 2

    def _make_undo(self, n_snapshots: int) -> Undo:
        return Undo(
            self._open_handle,
            n_snapshots=n_snapshots,
            # Sliding layers may lie in several pieces, which llama.cpp cannot copy on a device.
            on_device=not self._slides,
            n_ubatch=int(C.llama_n_ubatch(self._handle)),
            mark_bytes=self.settings.prompt_cache_bytes // 2,
        )

    def _comes_back(self, undo: Undo) -> bool:
        """Whether a text goes on after a rejected draft as it does where nothing was drafted."""
        text, draft, last = [0, 1], [2, 3], [1]
        self._undo = None
        self.clear(0)
        self.decode([Span(0, 0, text, 1)])
        rejected = Span(0, 2, draft, 1)
        undo.note(rejected, min(undo.n_snapshots, 1), copied=undo.n_snapshots == 0)
        self.decode([rejected])
        self._undo = undo
        self.truncate(0, 3)
        if self.length(0) != 3:
            return False
        after = self.decode([Span(0, 3, last, 1)])[0][0].copy()
        kept, never = (self._read_anew([*text, *more], last) for more in (draft, draft[:1]))
        return bool(np.abs(after - never).max() <= 0.25 * np.abs(kept - never).max())

    def _read_anew(self, text: Sequence[int], last: Sequence[int]) -> NDArray[np.float32]:
        self.clear(0)
        self.decode([Span(0, 0, text, 1)])
        row: NDArray[np.float32] = self.decode([Span(0, len(text), last, 1)])[0][0].copy()
        return row

    @property
    def _open_handle(self) -> int:
        if self._handle is None:
            raise Closed("the context is closed; open it again")
        return self._handle


def _apart(rows: NDArray[np.float32], spans: Sequence[Span]) -> list[NDArray[np.float32]]:
    """The rows of each span."""
    if len(spans) == 1:
        return [rows]
    found, at = [], 0
    for span in spans:
        found.append(rows[at : at + span.n_logits])
        at += span.n_logits
    return found


def _chooses_kernels(model: Model, settings: ContextSettings) -> bool:
    """Without flash attention there is one for all."""
    wanted = settings.same_bits and settings.flash_attention != "off"
    return wanted and not model.on_gpu and can_choose()


def _max_outputs(settings: ContextSettings) -> int:
    # llama.cpp keeps one row per sequence at least.
    return max(settings.n_sequences, min(settings.n_batch, settings.n_outputs))


def _check_ram(model: Model, settings: ContextSettings, cache_types: tuple[str, str]) -> None:
    """llama.cpp fills the cache at once, and the system kills whoever takes more than there is."""
    if model.on_gpu:
        return  # a GPU says no by itself
    facts = model.facts
    k, v = (_bytes_per_number(name) for name in cache_types)
    per_token = sum(facts.kv_heads_by_layer) * (facts.head_size_k * k + facts.head_size_v * v)
    needed = int(settings.context_size * settings.n_sequences * per_token)
    free = library.free_ram()
    if needed > free:
        raise LoadError(
            f"a cache of {settings.context_size} tokens for {settings.n_sequences} sequence(s)"
            f" needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; lower the context size"
        )


def _bytes_per_number(cache_type: str) -> float:
    n_numbers, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(CACHE_TYPES[cache_type])]
    return float(n_bytes / n_numbers)


def create(
    model: Model,
    settings: ContextSettings,
    cache_types: tuple[str, str],
    *,
    other: int | None = None,
    kind: int = 0,
) -> int:
    """A context by its settings; `other` is the context whose embeddings and head it borrows."""
    _check_ram(model, settings, cache_types)
    params = C.llama_context_default_params()
    params.n_ctx = settings.context_size * settings.n_sequences
    params.n_seq_max = settings.n_sequences
    params.n_batch, params.n_ubatch = settings.n_batch, settings.rows_at_once
    params.n_outputs_max = _max_outputs(settings)
    params.n_threads = params.n_threads_batch = settings.threads or model.threads
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attention]
    params.type_k, params.type_v = (CACHE_TYPES[name] for name in cache_types)
    params.kv_unified = settings.unified
    params.n_rs_seq = settings.n_snapshots
    params.no_perf = True
    _stretch(params, settings.rope)
    params.ctx_other, params.ctx_type = other, kind
    library.forget_errors()
    handle: int | None = C.llama_init_from_model(model.handle, params)
    if not handle:
        raise LoadError(
            f"no context of {settings.context_size} tokens for {settings.n_sequences} sequence(s):"
            f" {library.last_error()}; lower the context size or the cache type"
        )
    adapters.use(handle, model.adapters, model.settings.adapters)
    return handle


def _stretch(params: Any, rope: RopeSettings) -> None:
    """How positions are scaled; what is not given stays as llama.cpp reads it from the file."""
    params.rope_scaling_type = _ROPE_SCALING[rope.scaling]
    if rope.scale is not None:
        params.rope_freq_scale = 1 / rope.scale
    for name, value in (
        ("rope_freq_base", rope.freq_base),
        ("yarn_orig_ctx", rope.yarn_orig_context),
        ("yarn_ext_factor", rope.yarn_ext_factor),
        ("yarn_attn_factor", rope.yarn_attn_factor),
        ("yarn_beta_fast", rope.yarn_beta_fast),
        ("yarn_beta_slow", rope.yarn_beta_slow),
    ):
        if value is not None:
            setattr(params, name, value)

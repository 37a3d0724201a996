"""What one pass computes, tensor by tensor, and so how large its compute buffer is.

Follows llama.cpp's graphs for the common blocks; knows nothing of weights' bytes or of devices.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from parlay.llama.facts import Recurrent
from parlay.planning.arena import Node, Tape
from parlay.planning.shape import DELTA_NETS, Layer, Shape

F32, F16, I32, I64 = 4, 2, 4, 8  # bytes
# The smallest matrix that quantised keys and values are rotated by before they are stored.
_ROTATION = 64


@dataclass(frozen=True, slots=True)
class Pass:
    """The largest pass a context is built for."""

    n_tokens: int
    n_outputs: int
    n_sequences: int
    n_cells: int  # of one sequence
    flash_attention: bool = True
    rotated_k: bool = False  # quantised keys are rotated before they are stored
    rotated_v: bool = False
    on_gpu: bool = False
    # By layer, weights that lie in RAM and are copied to the GPU for a wide pass: name and bytes.
    fetched: tuple[tuple[tuple[str, int], ...], ...] = ()
    rank: int = 0  # of LoRA adapters: every product is computed once more through it, and added
    n_snapshots: int = 0  # earlier states that recurrent layers leave behind


@functools.lru_cache(maxsize=64)  # proposals try many settings that change no pass
def compute_bytes(shape: Shape, work: Pass) -> int:
    """Bytes of the compute buffer of one device that holds every layer."""
    return _Graph(shape, work).tape.peak(128 if work.on_gpu else 32)


def rotation_size(head_size: int) -> int:
    """The largest power of two from 64 on that divides a head; 0: it cannot be rotated."""
    if head_size % _ROTATION:
        return 0
    size = _ROTATION
    while head_size % (2 * size) == 0:
        size *= 2
    return size


class _Graph:
    """The operations of one pass over a shape."""

    def __init__(self, shape: Shape, work: Pass) -> None:
        self.shape = shape
        self.work = work
        self.tape = Tape()
        self._row = shape.n_embd * F32
        self._full = work.n_tokens * self._row
        self._write()

    # -- the whole ------------------------------------------------------------

    def _write(self) -> None:
        current = self._inputs()
        for i, layer in enumerate(self.shape.layers):
            self._fetched = dict(self.work.fetched[i]) if self.work.fetched else {}
            last = i == self.shape.n_layers - 1
            current = self._layer(layer, current, last)
        normed = self.tape.op(current.n_bytes, current, in_place=True)
        result = self.tape.op(normed.n_bytes, normed, in_place=True, kept=True)
        self.tape.op(self.work.n_outputs * self.shape.n_vocab * F32, result, kept=True)

    def _inputs(self) -> Node:
        tape, work = self.tape, self.work
        if work.on_gpu:
            current = tape.input(self._full)  # looked up in RAM and copied
        else:
            tokens = tape.input(work.n_tokens * I32)
            tape.input(self._full)  # room for embeddings given instead of tokens
            current = tape.op(self._full, tokens)
            self._mixed_inputs()
        self.positions = tape.input(work.n_tokens * I32)
        self.indices = tape.input(work.n_tokens * I64)
        # Without flash attention values are stored transposed, one index for each number.
        widest = 1 if work.flash_attention else max(layer.n_v for layer in self.shape.layers)
        self.value_indices = tape.input(work.n_tokens * max(1, widest) * I64)
        self.mask = self._mask(work.n_cells)
        self.sliding_mask = self._mask(work.n_cells) if self.shape.sliding_window else self.mask
        self.output_ids = tape.input(work.n_outputs * I32)
        self._rotations()
        return current

    def _mixed_inputs(self) -> None:
        """Room for a batch of tokens and given embeddings: a copy that nothing reads is kept."""
        tape, n = self.tape, self.work.n_tokens
        tokens, given, places = tape.input(n * I32), tape.input(self._full), tape.input(n * I64)
        looked_up = tape.op(self._full, tokens)
        copied = tape.op(self._full, given, kept=True)
        tape.op(0, copied, looked_up, places)

    def _rotations(self) -> None:
        if self.work.rotated_k:
            self.tape.input(rotation_size(self.shape.head_size_k) ** 2 * F32)
        if self.work.rotated_v:
            self.tape.input(_ROTATION**2 * F32)

    def _mask(self, n_cells: int) -> Node:
        size = F16 if self.work.flash_attention else F32
        attends = any(layer.n_k for layer in self.shape.layers)
        return self.tape.input(n_cells * self.work.n_tokens * size if attends else 0)

    def _layer(self, layer: Layer, residual: Node, last: bool) -> Node:
        mixed = residual
        if layer.state is not None:
            mixed = self._recurrent(layer.state, self._norm(residual))
        if layer.n_q:
            mixed = self._attention(layer, self._norm(residual))
        if last:
            mixed, residual = self._pick(mixed), self._pick(residual)
        if mixed is not residual:
            residual = self.tape.op(mixed.n_bytes, mixed, residual, in_place=True)
        if not layer.n_ff and not self.shape.n_experts:
            return residual
        out = self._feed_forward(layer, self._norm(residual))
        return self.tape.op(out.n_bytes, out, residual, in_place=True)

    def _pick(self, node: Node) -> Node:
        """Only the rows whose logits are wanted."""
        return self.tape.op(self.work.n_outputs * self._row, node, self.output_ids)

    def _norm(self, node: Node) -> Node:
        normed = self.tape.op(node.n_bytes, node, in_place=True)
        return self.tape.op(node.n_bytes, normed, in_place=True)

    # -- blocks ---------------------------------------------------------------

    def _attention(self, layer: Layer, x: Node) -> Node:
        tape, t = self.tape, self.work.n_tokens * F32
        q = self._rotated(self._placed(layer.n_q * t, x, "attn_q"), self.work.rotated_k)
        v = None
        if layer.n_v:
            v = self._rotated(self._product(layer.n_v * t, x, "attn_v"), self.work.rotated_v)
        if layer.n_k:
            k = self._rotated(self._placed(layer.n_k * t, x, "attn_k"), self.work.rotated_k)
            tape.op(0, k, self.indices)
        if v is not None:
            tape.op(0, v, self.value_indices)
        mask = self.sliding_mask if layer.sliding else self.mask
        n_heads = max(1, layer.n_q // max(1, self.shape.head_size_k))
        n_out = n_heads * self.shape.head_size_v
        mixed = self._attend(q, mask, layer, n_out)
        mixed = self._rotated(mixed, self.work.rotated_v)
        return self._product(self._full, mixed, "attn_output")

    def _attend(self, q: Node, mask: Node, layer: Layer, n_out: int) -> Node:
        tape, t = self.tape, self.work.n_tokens * F32
        if self.work.flash_attention:
            return tape.op(n_out * t, q, mask)
        n_heads = max(1, layer.n_q // max(1, self.shape.head_size_k))
        scores = tape.op(n_heads * self.work.n_cells * t, q)
        scores = tape.op(scores.n_bytes, scores, mask, in_place=True)
        return tape.op(n_out * t, tape.op(n_out * t, scores))

    def _placed(self, n_bytes: int, x: Node, name: str) -> Node:
        """A product, then positions rotated into it."""
        product = self._product(n_bytes, x, name)
        return self.tape.op(n_bytes, product, self.positions, in_place=True)

    def _product(self, n_bytes: int, x: Node, name: str, *others: Node) -> Node:
        """With a weight, which is copied first where it lies in RAM."""
        product = self.tape.op(n_bytes, x, *self._weight(name), *others)
        if not self.work.rank:
            return product
        low = self.tape.op(self.work.rank * self.work.n_tokens * F32, x)
        change = self.tape.op(n_bytes, low)
        change = self.tape.op(n_bytes, change, in_place=True)
        return self.tape.op(n_bytes, product, change, in_place=True)

    def _weight(self, name: str) -> tuple[Node, ...]:
        n_bytes = self._fetched.get(name, 0)
        return (self.tape.op(n_bytes),) if n_bytes else ()

    def _rotated(self, x: Node, rotated: bool) -> Node:
        return self.tape.op(x.n_bytes, x) if rotated else x

    def _feed_forward(self, layer: Layer, x: Node) -> Node:
        rows = x.n_bytes // self._row
        if self.shape.n_experts:
            return self._experts(x, rows)
        up = self._product(layer.n_ff * rows * F32, x, "ffn_up")
        gate = self._product(layer.n_ff * rows * F32, x, "ffn_gate")
        return self._product(x.n_bytes, self.tape.op(gate.n_bytes, gate, up), "ffn_down")

    def _experts(self, x: Node, rows: int) -> Node:
        """Each row goes through its few experts, and their answers are added up."""
        tape, shape = self.tape, self.shape
        n_used = shape.n_experts_used
        scores = tape.op(shape.n_experts * rows * F32, x)
        probabilities = tape.op(scores.n_bytes, scores, in_place=True)
        ranked = tape.op(shape.n_experts * rows * I32, probabilities)
        weights = tape.op(n_used * rows * F32, probabilities, ranked)
        inner = shape.n_ff_expert * n_used * rows * F32
        up = self._product(inner, x, "ffn_up_exps", ranked)
        gate = self._product(inner, x, "ffn_gate_exps", ranked)
        mixed = tape.op(inner, gate, up)
        down = self._product(n_used * rows * self._row, mixed, "ffn_down_exps", ranked)
        weighed = tape.op(down.n_bytes, down, weights, in_place=True)
        total = tape.op(x.n_bytes, weighed, weighed)
        for _ in range(n_used - 2):
            total = tape.op(x.n_bytes, total, weighed, in_place=True)
        return total

    def _recurrent(self, state: Recurrent, x: Node) -> Node:
        """A state space or convolution layer."""
        tape, t, s = self.tape, self.work.n_tokens * F32, self.work.n_sequences * F32
        conv = tape.op(state.n_conv * s)
        if not state.n_state:  # LFM2: gated convolution
            inner = tape.op(3 * self._full, x)
            gated = tape.op(self._full, inner)
            joined = tape.op(self._full + state.n_conv * s, conv, gated)
            out = tape.op(self._full, inner, tape.op(self._full, joined))
            return tape.op(self._full, out)
        n_inner = self.shape.n_inner
        inner = tape.op(2 * n_inner * t, x)
        joined = tape.op(n_inner * t + state.n_conv * s, conv, inner)
        hidden = tape.op(n_inner * t, joined)
        mixing = tape.op((state.n_state // max(1, n_inner) * 2 + n_inner // 16) * t, hidden)
        step = tape.op(n_inner * t, mixing)
        states = (1 + self.work.n_snapshots) * state.n_state * s
        scanned = tape.op(n_inner * t + states, hidden, step, mixing)
        # Only delta nets compute what gates the answer once it is there.
        gate = tape.op(n_inner * t, x) if self.shape.architecture in DELTA_NETS else inner
        gated = tape.op(n_inner * t, scanned, gate)
        return tape.op(self._full, gated)

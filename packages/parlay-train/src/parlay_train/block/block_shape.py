"""How big a block drafter is, and which of the target's hidden states it reads.

Plain data; knows nothing of PyTorch. Its width is the target's: llama.cpp wants it so.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlay.errors import BadRequest
from parlay.llama.facts import Facts

_BLOCK = 32  # numbers that Q4_0 and Q8_0 quantise together
_HEAD = 64


@dataclass(frozen=True, slots=True)
class BlockShape:
    """A DFlash drafter for one target."""

    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    layers: tuple[int, ...]  # of the target; their inputs are read
    block_size: int
    mask: int
    n_vocab: int
    n_head_rows: int  # tokens its own head knows; 0: it borrows the target's head
    n_ctx: int = 1024
    head_size: int = _HEAD
    rope_base: float = 10_000.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.n_embd % _BLOCK or self.n_ff % _BLOCK:
            raise BadRequest(f"width {self.n_embd} and {self.n_ff} must be multiples of {_BLOCK}")
        if self.n_heads % self.n_kv_heads:
            raise BadRequest(f"{self.n_kv_heads} key heads do not divide {self.n_heads} heads")
        if not 2 <= self.block_size <= 64:
            raise BadRequest(f"a block of {self.block_size} tokens; give 2 to 64")

    @property
    def n_params(self) -> int:
        """Those of its own."""
        kv, q = self.n_kv_heads * self.head_size, self.n_heads * self.head_size
        layer = 2 * self.n_embd * q + 2 * self.n_embd * kv + 3 * self.n_embd * self.n_ff
        fused = len(self.layers) * self.n_embd**2
        return self.n_layers * layer + fused + self.n_head_rows * self.n_embd


@dataclass(frozen=True, slots=True)
class BlockPreset:
    """What is chosen; the rest is the target's."""

    n_layers: int
    n_ff: int
    n_reads: int  # layers of the target
    block_size: int = 8
    n_head_rows: int = 0


PRESETS = {
    "tiny": BlockPreset(n_layers=1, n_ff=64, n_reads=2, block_size=4, n_head_rows=64),  # for tests
    "small": BlockPreset(n_layers=3, n_ff=1536, n_reads=5, n_head_rows=12_288),
    "base": BlockPreset(n_layers=4, n_ff=1536, n_reads=5, n_head_rows=16_384),
    "shared": BlockPreset(n_layers=4, n_ff=1536, n_reads=5),  # the target's own head
}


def block_preset(name: str) -> BlockPreset:
    """A preset by its name."""
    if name not in PRESETS:
        raise BadRequest(f"no preset {name!r} of this kind; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def shape_for(chosen: BlockPreset, target: Facts, mask: int, n_ctx: int) -> BlockShape:
    """A preset for a target."""
    head_size = min(_HEAD, target.n_embd)
    n_heads = max(1, target.n_embd // head_size)
    return BlockShape(
        n_embd=target.n_embd,
        n_layers=chosen.n_layers,
        n_heads=n_heads,
        n_kv_heads=_key_heads(n_heads),
        n_ff=chosen.n_ff,
        layers=spread(target.n_layers, chosen.n_reads),
        block_size=chosen.block_size,
        mask=mask,
        n_vocab=target.n_vocab,
        n_head_rows=min(chosen.n_head_rows, target.n_vocab),
        n_ctx=n_ctx,
        head_size=head_size,
    )


def spread(n_layers: int, n: int) -> tuple[int, ...]:
    """So many layers from the second to the last, evenly."""
    first, last = min(1, n_layers - 1), n_layers - 1
    n = max(1, min(n, last - first + 1))
    if n == 1:
        return (last,)
    return tuple(round(first + i * (last - first) / (n - 1)) for i in range(n))


def _key_heads(n_heads: int) -> int:
    """About a third as many: keys and values of the context are most of what it computes."""
    return next(n for n in (3, 2, 4, 5, 1) if n_heads % n == 0 and n < max(2, n_heads))

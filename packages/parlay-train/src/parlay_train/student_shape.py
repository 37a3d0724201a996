"""How big a drafter is: presets by size, and what a drafted token costs in bytes.

Plain data; knows nothing of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parlay.errors import BadRequest

_BLOCK = 32  # numbers that Q4_0 and Q8_0 quantise together
BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}


@dataclass(frozen=True, slots=True)
class StudentShape:
    """A llama of this size. Vocabulary and context are the target's affair."""

    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    tied: bool = True  # one matrix for reading and for predicting tokens
    n_vocab: int = 0
    n_ctx: int = 1024
    rope_base: float = 10_000.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.n_embd % _BLOCK or self.n_ff % _BLOCK:
            raise BadRequest(f"width {self.n_embd} and {self.n_ff} must be multiples of {_BLOCK}")
        if self.n_embd % self.n_heads or self.n_heads % self.n_kv_heads or self.head_size % 2:
            raise BadRequest(f"{self.n_heads} heads do not divide a width of {self.n_embd}")

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_heads

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a preset fixes; the rest is the target's affair."""
        layers = self.n_embd, self.n_layers, self.n_heads, self.n_kv_heads, self.n_ff
        return *layers, int(self.tied)

    @property
    def n_body(self) -> int:
        """Parameters of the layers."""
        attention = self.n_embd * (2 * self.n_embd + 2 * self.n_kv_heads * self.head_size)
        return self.n_layers * (attention + 3 * self.n_embd * self.n_ff)

    @property
    def n_params(self) -> int:
        return self.n_body + self.n_vocab * self.n_embd * (1 if self.tied else 2)

    def bytes_per_token(self, file_type: str) -> int:
        """What is read to draft one token: the layers and the head, not the embedding's table."""
        return int((self.n_body + self.n_vocab * self.n_embd) * BITS[file_type] / 8)


PRESETS = {
    "tiny": StudentShape(n_embd=32, n_layers=1, n_heads=1, n_kv_heads=1, n_ff=64),  # for tests
    "small": StudentShape(n_embd=256, n_layers=4, n_heads=4, n_kv_heads=2, n_ff=704),
    "deep": StudentShape(n_embd=256, n_layers=5, n_heads=4, n_kv_heads=2, n_ff=1408),
    "base": StudentShape(n_embd=384, n_layers=6, n_heads=6, n_kv_heads=2, n_ff=1280),
    "wide": StudentShape(n_embd=448, n_layers=4, n_heads=7, n_kv_heads=1, n_ff=1216),
    "large": StudentShape(n_embd=512, n_layers=8, n_heads=8, n_kv_heads=4, n_ff=1408),
}


def preset(name: str, n_vocab: int, n_ctx: int) -> StudentShape:
    """A preset for a target's vocabulary."""
    if name not in PRESETS:
        raise BadRequest(f"no preset {name!r}; use one of {', '.join(PRESETS)}")
    return replace(PRESETS[name], n_vocab=n_vocab, n_ctx=n_ctx)

"""A hash of what a class gives after a fixed text: tells later whether it still holds.

Knows only walks and classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from parlay.engine.exact.exactness import ExactClass
from parlay.engine.exact.walking import Digest, Walker
from parlay.timing.probe_text import probe_tokens

N_BEFORE, N_SIGNED = 24, 4  # tokens before the places whose logits are hashed, and these places


def signature(walker: Walker, found: ExactClass, seq_id: int = 0) -> str:
    """By padded plain passes of the class."""
    n = min(N_BEFORE, walker.passes.context_size - N_SIGNED - found.floor)
    tokens = probe_tokens(n + N_SIGNED, walker.passes.n_vocab)
    walker.read(tokens[:n], seq_id)
    return signed(walker.walk(n, tokens[n:], found.floor, seq_id))


def signed(rows: Iterable[Digest]) -> str:
    """The same, of logits that are known."""
    return hashlib.sha256(b"".join(rows)).hexdigest()[:24]

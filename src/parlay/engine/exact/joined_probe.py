"""Whether several chunks of a prompt, read apart, may be read in one pass: tried, not assumed.

Knows only passes. The kernels that prompts have take rows in tiles, and a row's sums do not depend
on its neighbours; so one pass over two chunks leaves what two passes leave, and takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from parlay.decoding.span import Passes, Span
from parlay.engine.exact.walking import Digest, digest
from parlay.timing.probe_text import probe_tokens

N_JOINED = 2  # chunks in a pass: more of them save little
_SLOW_S = 2.0  # of one chunk: then the probe takes too long, and whoever comes next waits too long


def joins(passes: Passes, chunk: int) -> bool:
    """Whether they may; the first sequence is forgotten over it."""
    n = N_JOINED * chunk
    if n >= passes.context_size:
        return False
    text = probe_tokens(n + 1, passes.n_vocab)
    try:
        started = perf_counter()
        apart = _read(passes, text, chunk)
        if perf_counter() - started > N_JOINED * _SLOW_S:
            return False
        return apart == _read(passes, text, n)
    finally:
        passes.clear(0)


def _read(passes: Passes, text: Sequence[int], step: int) -> list[Digest]:
    """The last logits of a prompt, and those of a token after it, which reads all of the cache."""
    passes.clear(0)
    end = len(text) - 1
    for at in range(0, end, step):
        (rows,) = passes.decode([Span(0, at, text[at : at + step], 1, apart=True)])
    last = digest(rows[0])
    (rows,) = passes.decode([Span(0, end, text[end:], 1)])
    return [last, digest(rows[0])]

"""Text for probes and measurements: read into a cache and taken back.

Prices are measured with real text, exactness is probed with tokens that mean nothing. Knows passes;
knows nothing of what is measured with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.decoding.span import Passes, Span

_SPREAD = 7919  # a prime: probe tokens jump about the vocabulary
_STRIDE = 37  # tokens between two places of the real text
_SMALL_CHUNK = 16  # rows of a pass that reads a prefix: any batch holds that many


def probe_tokens(n: int, n_vocab: int, offset: int = 0) -> list[int]:
    """Text that means nothing and repeats nothing."""
    return [(i * _SPREAD + 31 * offset + 11) % n_vocab for i in range(n)]


def real_tokens(passes: Passes, n: int, place: int = 0) -> list[int]:
    """n tokens of real text that go on from one of many places; it begins again at its end."""
    text = passes.sample
    if len(text) < _SMALL_CHUNK:
        return probe_tokens(n, passes.n_vocab, offset=place)
    first = place * _STRIDE % len(text)
    return [text[(first + i) % len(text)] for i in range(n)]


def read(passes: Passes, prefix: Sequence[int], seq_id: int = 0) -> None:
    """Into the cache, in chunks."""
    for at in range(0, len(prefix), _SMALL_CHUNK):
        passes.decode([Span(seq_id, at, prefix[at : at + _SMALL_CHUNK], 0)])
    passes.mark(seq_id, lasting=True)


def rewind(passes: Passes, prefix: Sequence[int], seq_id: int = 0) -> None:
    """Leave just the prefix in the cache; one without a mark there has to read it again."""
    if passes.reusable(seq_id, len(prefix)) == len(prefix):
        passes.truncate(seq_id, len(prefix))
    else:
        passes.clear(seq_id)
        read(passes, prefix, seq_id)

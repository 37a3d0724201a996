"""A vocabulary as grammars see it: the bytes of each token, and texts as a model writes them.

Knows neither models nor grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

_N_TEXTS = 4096  # tokenised texts that are kept: a schema's names come again and again


class Alphabet:
    """Tokens as bytes, and back."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        tokenize: Callable[[str], list[int]],
        ends: frozenset[int],
        spell: Callable[[str], list[int]] | None = None,
    ) -> None:
        """`spell`: tokens of a text in any way that is fast."""
        self.pieces = pieces
        self.ends = ends
        self._tokenize = lru_cache(_N_TEXTS)(tokenize)
        self._spell = self._tokenize if spell is None else lru_cache(_N_TEXTS)(spell)

    @cached_property
    def letters(self) -> dict[int, int]:
        """Single bytes, each with its token."""
        return {piece[0]: token for token, piece in enumerate(self.pieces) if len(piece) == 1}

    def text_of(self, tokens: Sequence[int]) -> bytes:
        """What a grammar has read after them; control tokens have no text, but each is another."""
        return b"".join([self.pieces[token] or b"\xff%d\xff" % token for token in tokens])

    def tokens_of(self, text: bytes) -> Sequence[int]:
        """As the model would write it; nothing where the bytes are no text by themselves."""
        return _of(self._tokenize, text)

    def spelled(self, text: bytes) -> Sequence[int]:
        """Tokens that have these bytes together, to move on in a grammar."""
        return _of(self._spell, text)


def _of(tokenize: Callable[[str], list[int]], text: bytes) -> Sequence[int]:
    try:
        return tokenize(text.decode("utf-8")) if text else ()
    except UnicodeDecodeError:
        return ()

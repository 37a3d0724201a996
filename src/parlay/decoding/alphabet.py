"""A vocabulary as grammars see it: the bytes of each token, and texts as a model writes them.

Knows neither models nor grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

_SPACE = b" \t\r\n"
_NO_BYTE = 256  # of tokens that stand for no text
_N_TEXTS = 4096  # tokenised texts that are kept: a schema's names come again and again


class Alphabet:
    """Tokens as bytes, and back."""

    def __init__(
        self, pieces: Sequence[bytes], tokenize: Callable[[str], list[int]], ends: frozenset[int]
    ) -> None:
        self.pieces = pieces
        self.ends = ends
        self._tokenize = lru_cache(_N_TEXTS)(tokenize)

    @cached_property
    def first_bytes(self) -> NDArray[np.int16]:
        """By token, the byte it begins with."""
        return np.array([piece[0] if piece else _NO_BYTE for piece in self.pieces], np.int16)

    @cached_property
    def not_space(self) -> NDArray[np.bool_]:
        """By token, whether it begins with anything but white space."""
        return ~np.isin(self.first_bytes, [*_SPACE, _NO_BYTE])

    def text_of(self, tokens: Sequence[int]) -> bytes:
        """What a grammar has read after them; control tokens have no text, but each is another."""
        return b"".join([self.pieces[token] or b"\xff%d\xff" % token for token in tokens])

    def tokens_of(self, text: bytes) -> Sequence[int]:
        """As the model would write it; nothing where the bytes are no text by themselves."""
        try:
            return self._tokenize(text.decode("utf-8"))
        except UnicodeDecodeError:
            return ()

"""One answer's place in its grammar: what may come next, what must, and whether a draft obeys.

Knows a matcher (llguidance's, by its methods) and bytes of tokens; knows neither HTTP nor sampling.
No state of the grammar is computed twice for one row: what a draft was made with, its verification
reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.spacing import Spacing
from parlay.errors import BadRequest

Mask = NDArray[np.bool_]

_SPACE = b" \t\r\n"
_NO_BYTE = 256  # of tokens that stand for no text
_MOST_CHOICES = 512  # more tokens than this may come: no byte of them is forced
_MOST_BYTES = 512  # of a skeleton: what is longer waits for its next round
_FEW = 2048  # so many columns are faster picked than masked


@dataclass(frozen=True)
class Alphabet:
    """A vocabulary as grammars see it."""

    pieces: Sequence[bytes]
    tokenize: Callable[[str], list[int]]
    ends: frozenset[int]

    @cached_property
    def first_bytes(self) -> NDArray[np.int16]:
        """By token, the byte it begins with."""
        return np.array([piece[0] if piece else _NO_BYTE for piece in self.pieces], np.int16)

    @cached_property
    def not_space(self) -> Mask:
        """By token, whether it begins with anything but white space."""
        return ~np.isin(self.first_bytes, [*_SPACE, _NO_BYTE])

    def text_of(self, tokens: Sequence[int]) -> bytes:
        """What a grammar has read after them; control tokens have no text, but each is another."""
        return b"".join([self.pieces[token] or b"\xff%d\xff" % token for token in tokens])

    def tokens_of(self, text: bytes) -> list[int]:
        """As the model would write it; nothing where the bytes are no text by themselves."""
        try:
            return self.tokenize(text.decode("utf-8"))
        except UnicodeDecodeError:
            return []


class GrammarConstraint:
    """The state of one sequence's grammar."""

    def __init__(self, matcher: Any, alphabet: Alphabet) -> None:
        self._matcher = matcher
        self._alphabet = alphabet
        self._ends = alphabet.ends
        # Masks after the text of a draft: a grammar reads bytes, however tokens cut them.
        self._known: dict[bytes, Mask] = {}

    # -- verification ---------------------------------------------------------

    def mask(self, p: NDArray[np.float32], draft: Sequence[int]) -> NDArray[np.float32]:
        """Rows with what may not come at -inf, each given that the draft held before it."""
        found: NDArray[np.float32] = np.array(p, np.float32)  # rows behind a rejection stay as is
        for row, allowed in zip(found, self._along(draft[: len(p) - 1]), strict=False):
            _forbid(row, allowed)
        return found

    def accept(self, tokens: Sequence[int]) -> None:
        self._known.clear()
        for token in tokens:
            if token not in self._ends:
                self._matcher.consume_token(token)
        self._check()

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    # -- drafts ---------------------------------------------------------------

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """What may follow a draft; None where the draft itself may not come."""
        found = self._known.get(self._alphabet.text_of(draft))
        if found is None:
            with self._ahead(draft) as n:
                found = self._after(draft) if n == len(draft) else None
        return found

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""
        return int(self._matcher.validate_tokens(list(draft))) if draft else 0

    def forced(self, spacing: Spacing) -> list[int]:
        """The tokens that must come next, white space as this answer has put it so far; up to the
        next place where the model has a choice."""
        path: list[int] = []
        text, habit = bytearray(), spacing.copy()
        try:
            while len(text) < _MOST_BYTES:
                part = bytes(self._matcher.compute_ff_bytes()) or self._past_space(path, habit)
                tokens = self._alphabet.tokens_of(part)
                n = self._consume_all(tokens)
                path += tokens[:n]
                if n < len(tokens) or not tokens:
                    break
                text += part
                habit.read(part)
        finally:
            if path:
                self._matcher.rollback(len(path))
        tokens = self._alphabet.tokens_of(bytes(text)) if text else []
        return tokens[: self.n_obeying(tokens)]

    def _past_space(self, path: Sequence[int], spacing: Spacing) -> bytes:
        """White space by habit and the one byte that must come behind it; nothing for a choice."""
        may = np.flatnonzero(self._after(path) & self._alphabet.not_space)
        if self.complete or not 0 < len(may) <= _MOST_CHOICES:
            return b""
        firsts = self._alphabet.first_bytes[may]
        byte = int(firsts[0])
        if (firsts != byte).any():
            return b""
        space = spacing.guess(byte)
        return b"" if space is None else space + bytes([byte])

    # -- the matcher ----------------------------------------------------------

    def _after(self, path: Sequence[int]) -> Mask:
        """The mask here, after the path that was consumed."""
        key = self._alphabet.text_of(path)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._now()
        return found

    def _along(self, draft: Sequence[int]) -> Iterator[Mask]:
        """The masks before a draft and after each of its tokens, as far as it obeys."""
        n_consumed = 0
        try:
            for j in range(len(draft) + 1):
                yield self._after(draft[:j])
                if j == len(draft) or not self._consume(draft[j]):
                    return
                n_consumed += 1
        finally:
            if n_consumed:
                self._matcher.rollback(n_consumed)

    @contextmanager
    def _ahead(self, tokens: Sequence[int]) -> Iterator[int]:
        """With so many of the tokens consumed, as far as they may come."""
        n = self._consume_all(tokens)
        try:
            yield n
        finally:
            if n:
                self._matcher.rollback(n)

    def _consume_all(self, tokens: Sequence[int]) -> int:
        n = 0
        while n < len(tokens) and self._consume(tokens[n]):
            n += 1
        return n

    def _consume(self, token: int) -> bool:
        """Follow the draft one token, if the grammar lets it; a failed try would be final."""
        if token in self._ends or not self._matcher.validate_tokens([token]):
            return False
        return bool(self._matcher.consume_token(token))

    def _now(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        n = len(self._alphabet.pieces)
        mask: Mask = np.unpackbits(bits, bitorder="little", count=n).view(np.bool_)
        if self.complete:  # the text may end, by any of the model's ends
            mask[sorted(self._ends)] = True
        return mask

    def _check(self) -> None:
        """A matcher that gave up allows only the end: half a text would pass for a whole one."""
        if self._matcher.is_error():
            reason = " ".join(str(self._matcher.get_error()).split())[:300]
            raise BadRequest(f"the grammar is too complex: {reason}")


def _forbid(row: NDArray[np.float32], allowed: Mask) -> None:
    """-inf wherever a token may not come; columns beyond the vocabulary mean nothing."""
    n = min(len(row), len(allowed))
    row[n:] = -np.inf
    may = np.flatnonzero(allowed[:n]) if np.count_nonzero(allowed) <= _FEW else None
    if may is None:
        row[:n][~allowed[:n]] = -np.inf
    else:
        kept = row[may]
        row.fill(-np.inf)
        row[may] = kept

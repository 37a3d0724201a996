"""One answer's place in its grammar: what may come next, what must, and whether a draft obeys.

Knows a matcher (llguidance's, by its methods) and bytes of tokens; knows neither HTTP nor sampling.
To ask about one token costs a microsecond, to compute a mask a hundred: so masks are made only for
rows that need one, and never twice for one row. They are made on a copy, since a matcher that gives
up stays that way, and no draft may end an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.decoding.alphabet import Alphabet
from parlay.decoding.constraint import Forced
from parlay.decoding.spacing import Spacing
from parlay.decoding.span import common_prefix
from parlay.errors import BadRequest

Mask = NDArray[np.bool_]
Bits = NDArray[np.uint8]  # a mask, eight tokens to a byte

_LETTERS = frozenset(b"abefnt01-.")
_MOST_BYTES = 512  # of a skeleton: what is longer waits for its next round


class GrammarConstraint:
    """The state of one sequence's grammar."""

    def __init__(self, matcher: Any, alphabet: Alphabet) -> None:
        self._matcher = matcher
        self._alphabet = alphabet
        self._ends = alphabet.ends
        self._ahead: list[int] = []  # of a draft, what the matcher has read and may unread
        self._certain: list[bool] = []  # of each of these, whether it had to come
        # Masks after the text of a draft: a grammar reads bytes, however tokens cut them.
        self._known: dict[bytes, Bits] = {}

    # -- verification ---------------------------------------------------------

    def permits(self, draft: Sequence[int], token: int) -> bool:
        """Whether a token may follow a draft that holds."""
        n = len(draft)
        if len(self._ahead) > n and self._ahead[n] == token and self._ahead[:n] == list(draft):
            return True  # the draft went on like this, and obeyed
        self._go_to(draft)
        return self._may(token, self._must())

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """What may follow a draft; None where the draft itself may not come."""
        if self.n_obeying(draft) < len(draft) or (draft and draft[-1] in self._ends):
            return None
        must = self._must()
        if must is not None:
            return _only(must, len(self._alphabet.pieces))
        bits = self._mask(self._matcher, self._alphabet.text_of(draft))
        count = len(self._alphabet.pieces)
        return np.unpackbits(bits, bitorder="little", count=count).view(np.bool_)

    def accept(self, tokens: Sequence[int]) -> None:
        self._known.clear()
        self._go_to([token for token in tokens if token not in self._ends])
        self._ahead.clear()
        self._certain.clear()
        _check(self._matcher)

    @property
    def complete(self) -> bool:
        self._go_to(())
        return bool(self._matcher.is_accepting())

    # -- drafts ---------------------------------------------------------------

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""
        n = self._go_back(draft)
        while n < len(draft):
            token, must = draft[n], self._must()
            if not self._may(token, must):
                break
            n += 1
            if token in self._ends:
                break
            self._read(token, certain=must is not None)
        return n

    def forced(self, spacing: Spacing) -> Forced:
        """The tokens that must come next, white space as this answer has put it so far; up to the
        next place where the model has a choice."""
        self._go_to(())
        ahead, habit, text = self._matcher.deep_copy(), spacing.ahead(), b""
        while len(text) < _MOST_BYTES:
            part = bytes(ahead.compute_ff_bytes()) or self._past_space(ahead, text, habit)
            tokens = self._alphabet.spelled(part)
            if not tokens or ahead.try_consume_tokens(tokens) < len(tokens):
                break
            text += part
            habit.read(part)
        found = self._alphabet.tokens_of(text)
        n = self.n_obeying(found)
        return Forced(tuple(found[:n]), tuple(self._certain[:n]))

    def _past_space(self, ahead: Any, text: bytes, spacing: Spacing) -> bytes:
        """White space by habit and the one byte that must come behind it; nothing for a choice."""
        if ahead.is_accepting():
            return b""
        firsts = self._probed(ahead)
        if not firsts or (len(firsts) == 1 and firsts <= _LETTERS):  # others were not tried
            firsts = self._firsts(ahead, text)
        if len(firsts) != 1:
            return b""
        byte = firsts.pop()
        space = spacing.guess(byte)
        return b"" if space is None else space + bytes([byte])

    def _probed(self, matcher: Any) -> set[int]:
        """Of a few bytes, those that may come; two are enough to know of a choice. One mark is all
        but sure to be forced, and a draft may err: that takes a tenth of a mask's time."""
        found: set[int] = set()
        for byte, token in self._alphabet.probes:
            if matcher.validate_tokens([token]):
                found.add(byte)
                if len(found) == 2:
                    break
        return found

    def _firsts(self, matcher: Any, text: bytes) -> set[int]:
        """The bytes that may come, white space aside."""
        alphabet = self._alphabet
        may = self._mask(matcher, text)[: len(alphabet.not_space)] & alphabet.not_space
        at = np.flatnonzero(may)
        rows, columns = np.nonzero(np.unpackbits(may[at], bitorder="little").reshape(-1, 8))
        return set(alphabet.first_bytes[at[rows] * 8 + columns].tolist())

    # -- the matcher ----------------------------------------------------------

    def _go_to(self, draft: Sequence[int]) -> None:
        """After a draft that holds."""
        for token in draft[self._go_back(draft) :]:
            self._read(token)

    def _go_back(self, draft: Sequence[int]) -> int:
        """To where what was read leaves a draft; how far into it that is."""
        n = common_prefix(self._ahead, draft)
        if n < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - n)
            del self._ahead[n:], self._certain[n:]
        return n

    def _read(self, token: int, certain: bool = False) -> None:
        self._matcher.consume_token(token)
        self._ahead.append(token)
        self._certain.append(certain)

    def _may(self, token: int, must: int | None) -> bool:
        """Whether it may come here, where one that must come is the only one."""
        if must is not None:
            return token == must
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        known = token < len(self._alphabet.pieces)
        return known and bool(self._matcher.validate_tokens([token]))

    def _must(self) -> int | None:
        """The token that has to come here: what is forced is written as the model would write it,
        and not letter by letter."""
        if not self._matcher.compute_ff_bytes():
            return None
        tokens = self._matcher.compute_ff_tokens()
        return int(tokens[0]) if tokens else None

    def _mask(self, matcher: Any, text: bytes) -> Bits:
        """What may come in this state of a matcher, `text` after the committed one."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._computed(matcher.deep_copy())
        return found

    def _computed(self, matcher: Any) -> Bits:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        _check(matcher)
        if matcher.is_accepting():  # the text may end, by any of the model's ends
            bits = bits.copy()
            for end in self._ends:
                bits[end // 8] |= 1 << end % 8
        return bits


def _check(matcher: Any) -> None:
    """A matcher that gave up allows only the end: half a text would pass for a whole one."""
    if matcher.is_error():
        reason = " ".join(str(matcher.get_error()).split())[:300]
        raise BadRequest(f"the grammar is too complex: {reason}")


def _only(token: int, n: int) -> Mask:
    mask: Mask = np.zeros(n, np.bool_)
    mask[token] = True
    return mask

"""One answer's place in its grammar: what may come next, what must, and whether a draft obeys.

Knows a matcher (llguidance's, by its methods) and bytes of tokens; knows neither HTTP nor sampling.
To ask about one token costs a microsecond, to compute a mask a hundred: so masks are made only for
rows that need one, never twice for one row, and never to find a draft. A matcher that gives up
stays that way, and no draft may end an answer: one that gave up over a draft is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlay.decoding.constraint import NOTHING_FORCED, Forced, Mask
from parlay.decoding.masks import only
from parlay.decoding.span import common_prefix
from parlay.errors import BadRequest

DEAD_END = "NoExtension"  # how a matcher says that no byte may come, and no end
# A skeleton ends in bytes that must come and may be written as one token with what follows them.
_LAST = 0.8
_MOST_FORCED = 256  # tokens of a skeleton: what is longer waits for its next round


@dataclass(frozen=True, slots=True)
class Alphabet:
    """A vocabulary as grammars see it: the bytes of tokens, and texts as a model writes them."""

    pieces: Sequence[bytes]
    tokenize: Callable[[str], Sequence[int]]
    ends: frozenset[int]

    def text_of(self, tokens: Sequence[int]) -> bytes:
        """What a grammar has read after them; control tokens have no text, but each is another."""
        return b"".join([self.pieces[token] or b"\xff%d\xff" % token for token in tokens])

    def tokens_of(self, text: bytes) -> Sequence[int]:
        """As the model would write it; nothing where the bytes are no text by themselves."""
        try:
            return self.tokenize(text.decode("utf-8")) if text else ()
        except UnicodeDecodeError:
            return ()


class GrammarConstraint:
    """The state of one sequence's grammar."""

    def __init__(self, matcher: Any, alphabet: Alphabet, first: Any = None) -> None:
        """`first`: a matcher at the beginning of the text, where this one no longer is."""
        self._matcher = matcher
        self._first = first or matcher.deep_copy()
        self._said: list[int] = []  # committed since then
        self._alphabet = alphabet
        self._ends = alphabet.ends
        self._ahead: list[int] = []  # of a draft, what the matcher has read and may unread
        # Before each of these and after the last: the tokens that have to come; None: not asked.
        self._due: list[tuple[int, ...] | None] = [None]
        # Masks after the text of a draft: a grammar reads bytes, however tokens cut them.
        self._known: dict[bytes, Mask] = {}

    # -- verification ---------------------------------------------------------

    def must(self, draft: Sequence[int]) -> int | None:
        """The only token that may follow a draft that holds, if there is one."""
        n = len(draft)
        if n >= len(self._ahead) or self._ahead[:n] != list(draft):
            self._go_to(draft)
            return self._must()
        due = self._due[n]  # the draft went on, and obeyed
        return due[0] if due else None

    def permits(self, draft: Sequence[int], token: int) -> bool:
        """Whether a token may follow a draft that holds."""
        n = len(draft)
        if len(self._ahead) > n and self._ahead[n] == token and self._ahead[:n] == list(draft):
            return True  # the draft went on like this, and obeyed
        self._go_to(draft)
        must = self._must()
        if must is not None:
            return token == must
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        known = token < len(self._alphabet.pieces)
        return known and bool(self._matcher.validate_tokens([token]))

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """What may follow a draft; None where the draft itself may not come."""
        if not self._reaches(draft):
            return None
        must = self._must()
        if must is not None:
            return only(len(self._alphabet.pieces), must)
        text = self._alphabet.text_of(draft)
        found = self._known.get(text)
        if found is None:
            try:
                found = self._known[text] = self._mask()
            except BadRequest:
                self._start_again()
                raise
        return found

    def accept(self, tokens: Sequence[int]) -> None:
        self._known.clear()
        said = [token for token in tokens if token not in self._ends]
        self._go_to(said)
        self._said += said
        self._ahead.clear()
        del self._due[:-1]

    @property
    def complete(self) -> bool:
        self._go_to(())
        return bool(self._matcher.is_accepting())

    @property
    def over(self) -> bool:
        """Whether nothing may follow but the end."""
        self._go_to(())
        return bool(self._matcher.is_stopped())

    def after(self, tokens: Sequence[int]) -> GrammarConstraint:
        """Another one, so many tokens further."""
        self._go_to(())
        made = GrammarConstraint(self._matcher.deep_copy(), self._alphabet, self._first)
        made._said, made._due = list(self._said), self._due.copy()
        made.accept(tokens)
        return made

    # -- drafts ---------------------------------------------------------------

    def n_obeying(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft may come."""
        n = self._go_back(draft)
        while n < len(draft):
            token, must = draft[n], self._must()
            if must is not None and token != must:
                break
            if token in self._ends:
                return n + bool(self._matcher.is_accepting())
            if token >= len(self._alphabet.pieces) or not self._try(token):
                break
            n += 1
        return n

    def forced(self, draft: Sequence[int] = ()) -> Forced:
        """The tokens that must follow a draft: what is written in one way only, and then the bytes
        that must come behind it as the model would write them."""
        if not self._reaches(draft):
            return NOTHING_FORCED
        found: list[int] = []
        while len(found) < _MOST_FORCED and (must := self._must()) is not None:
            if not self._try(must):
                break
            found.append(must)
        last = self._alphabet.tokens_of(bytes(self._matcher.compute_ff_bytes()))
        n = self.n_obeying([*draft, *found, *last]) - len(draft) - len(found)
        sure = (*(1.0,) * len(found), *(_LAST,) * max(0, n))
        return Forced((*found, *last[: max(0, n)]), sure)

    # -- the matcher ----------------------------------------------------------

    def _reaches(self, draft: Sequence[int]) -> bool:
        """Go to where a draft ends; False: it may not come, or nothing may come after it."""
        obeys = self.n_obeying(draft) == len(draft)
        return obeys and not (draft and draft[-1] in self._ends)

    def _go_to(self, draft: Sequence[int]) -> None:
        """After a draft that holds."""
        for token in draft[self._go_back(draft) :]:
            self._must()
            if self._matcher.consume_token(token):
                self._went(token)
            else:
                _check(self._matcher)

    def _go_back(self, draft: Sequence[int]) -> int:
        """To where what was read leaves a draft; how far into it that is."""
        n = common_prefix(self._ahead, draft)
        if n < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - n)
            del self._ahead[n:], self._due[n + 1 :]
        return n

    def _try(self, token: int) -> bool:
        """Read a token where it may come; whether it may."""
        if self._matcher.try_consume_tokens([token]):
            self._went(token)
            return True
        if self._matcher.is_error():
            self._start_again()
        return False

    def _went(self, token: int) -> None:
        """The matcher has read a token; what else had to come still has to."""
        due = self._due[-1]
        self._ahead.append(token)
        self._due.append(due[1:] or None if due and due[0] == token else None)

    def _start_again(self) -> None:
        """The matcher gave up over a draft, which may come otherwise: another one in its place."""
        self._matcher = self._first.deep_copy()
        self._matcher.consume_tokens(self._said)
        self._ahead.clear()
        del self._due[1:]

    def _must(self) -> int | None:
        """The token that has to come here: what is forced is written as the model would write it,
        and not letter by letter. It is tokenised once, where it begins: so what comes depends on
        the text alone, whoever asks and when."""
        due = self._due[-1]
        if due is None:
            forced = self._matcher.compute_ff_bytes() and self._matcher.compute_ff_tokens()
            due = self._due[-1] = tuple(forced)
        return due[0] if due else None

    def _mask(self) -> Mask:
        """What may come where the matcher is now. What it finds out on the way it knows at the next
        mask."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        _check(self._matcher)
        if self._matcher.is_accepting():  # the text may end, by any of the model's ends
            bits = bits.copy()
            for end in self._ends:
                bits[end // 8] |= 1 << end % 8
        return bits


def _check(matcher: Any) -> None:
    """A matcher that gave up allows only the end: half a text would pass for a whole one."""
    if matcher.is_error():
        reason = " ".join(str(matcher.get_error()).partition("<state>")[0].split())[:300]
        if reason.startswith(DEAD_END):
            raise BadRequest("the grammar leads to a place where nothing may follow")
        raise BadRequest(f"the grammar is too complex: {reason}")

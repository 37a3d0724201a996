"""One answer's place in its grammar: what may come next, what must, and whether a draft obeys.

Knows a matcher (llguidance's, by its methods) and bytes of tokens; knows neither HTTP nor sampling.
To ask about one token costs a microsecond, to compute a mask a hundred: so masks are made only for
rows that need one, never twice for one row, and never to find a draft. A matcher that gives up
stays that way, and no draft may end an answer: one that gave up over a draft is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from parlay.decoding.alphabet import Alphabet
from parlay.decoding.constraint import NOTHING_FORCED, Forced
from parlay.decoding.mask import Mask, only
from parlay.decoding.spacing import Guess, Spacing
from parlay.decoding.span import common_prefix
from parlay.errors import BadRequest

DEAD_END = "NoExtension"  # how a matcher says that no byte may come, and no end
_MARKS = b'",}]{[:'  # a letter that may come is one of others that were not tried
_LIST_MARKS = b",]"
_STRING_ENDS = (b'"', b'",', b'",\n')  # as models write them
_NUMBER_ENDS = (b",", b",\n")
_CERTAIN = 1.0  # nothing else may come
_HELD = 0.97  # a guess that has begun to come
_NO_GUESS = Guess(b"", _CERTAIN)
_MOST_BYTES = 512  # of a skeleton: what is longer waits for its next round
_MOST_PLACES = 1024  # whose skeletons are kept


class GrammarConstraint:
    """The state of one sequence's grammar."""

    def __init__(
        self, matcher: Any, alphabet: Alphabet, first: Any = None, grammar: object = None
    ) -> None:
        """`first`: a matcher at the beginning of the text, where this one no longer is; `grammar`:
        equal for those whose texts are alike."""
        self._matcher = matcher
        self._grammar = grammar
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
        return self._may(token, self._must())

    def allowed(self, draft: Sequence[int]) -> Mask | None:
        """What may follow a draft; None where the draft itself may not come."""
        if not self._reaches(draft):
            return None
        must = self._must()
        if must is not None:
            return only(len(self._alphabet.pieces), must)
        return self._mask(self._alphabet.text_of(draft))

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
        made = self._at(self._matcher.deep_copy(), ())
        made._due = self._due.copy()
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

    def forced(self, spacing: Spacing, draft: Sequence[int] = ()) -> Forced:
        """The tokens that must follow, white space as this answer has put it so far; up to the
        next place where the model has a choice that is not by habit, too. What was forced at a
        place is forced at its like, as long as the grammar lets it."""
        if not self._reaches(draft):
            return NOTHING_FORCED
        if spacing.in_string and not self._matcher.compute_ff_bytes():
            return NOTHING_FORCED
        known, place = spacing.found, self._place(spacing)
        found: Forced | None = known.get(place)
        if found is None or self._n_behind(draft, found.tokens) < len(found.tokens):
            found = known[place] = self._skeleton(spacing, draft)
            if len(known) > _MOST_PLACES:
                del known[next(iter(known))]
        return found

    def prepare(self, spacing: Spacing) -> None:
        """Look now for what will be forced once the string or number ends that the text is in."""
        for end in _STRING_ENDS if spacing.in_string else _NUMBER_ENDS:
            habit = spacing.ahead()
            habit.read(end)
            if self._place(habit) not in habit.found:
                self._go_to(())
                ahead, tokens = self._matcher.deep_copy(), self._alphabet.spelled(end)
                if ahead.try_consume_tokens(tokens) == len(tokens):
                    self._at(ahead, tokens).forced(habit)

    def _place(self, spacing: Spacing) -> tuple[object, ...]:
        return (self._grammar, *spacing.place)

    def _at(self, matcher: Any, tokens: Sequence[int]) -> GrammarConstraint:
        """Another one of the same answer, so far behind this one."""
        made = GrammarConstraint(matcher, self._alphabet, self._first, self._grammar)
        made._said = [*self._said, *tokens]
        return made

    def _n_behind(self, draft: Sequence[int], tokens: Sequence[int]) -> int:
        """How many tokens may follow a draft that holds."""
        return self.n_obeying([*draft, *tokens]) - len(draft)

    def _skeleton(self, spacing: Spacing, draft: Sequence[int] = ()) -> Forced:
        self._go_to(draft)
        ahead, habit, text = self._matcher.deep_copy(), spacing.ahead(), b""
        guesses: dict[int, float] = {}  # where each begins in the text, and how sure it is
        while len(text) < _MOST_BYTES:
            part, sure = bytes(ahead.compute_ff_bytes()), _CERTAIN
            if not part:
                part, sure = self._by_habit(ahead, habit)
            tokens = self._alphabet.spelled(part)
            if not tokens or ahead.try_consume_tokens(tokens) < len(tokens):
                break
            if sure < _CERTAIN:
                guesses[len(text)] = sure
            text += part
            habit.go_on(part)
        found = self._alphabet.tokens_of(text)
        n = self._n_behind(draft, found)
        return Forced(tuple(found[:n]), tuple(self._sure(found[:n], guesses, len(draft))))

    def _sure(
        self, tokens: Sequence[int], guesses: Mapping[int, float], n_before: int
    ) -> Iterator[float]:
        """Of each token: the chance of the guesses that begin in it."""
        end = 0
        for token, due in zip(tokens, self._due[n_before:], strict=False):
            start, end = end, end + len(self._alphabet.pieces[token])
            begun = [sure for at, sure in guesses.items() if start <= at < end]
            yield _CERTAIN if due else prod(begun) if begun else _HELD

    def _by_habit(self, ahead: Any, spacing: Spacing) -> Guess:
        """White space and the one byte that must come behind it, or the mark by which a list goes
        on or ends; nothing for any other choice."""
        if spacing.in_string or ahead.is_accepting():
            return _NO_GUESS
        firsts = self._probed(ahead, spacing.marks)
        mark = spacing.goes_on() if firsts == _LIST_MARKS else Guess(firsts, _CERTAIN)
        known = len(mark.text) == 1 and mark.text in _MARKS
        space = spacing.guess(mark.text[0]) if known else None
        if space is None:
            return _NO_GUESS
        return Guess(space.text + mark.text, space.sure * mark.sure)

    def _probed(self, matcher: Any, bytes_: bytes) -> bytes:
        """Of these bytes, those that may come; two are enough to know of a choice. One mark is all
        but sure to be forced, and a draft may err: that takes a tenth of a mask's time."""
        found, letters = b"", self._alphabet.letters
        for byte in bytes_:
            token = letters.get(byte)
            if token is not None and matcher.validate_tokens([token]):
                found += bytes([byte])
                if len(found) == 2:
                    break
        return found

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
        and not letter by letter. It is tokenised once, where it begins: so what comes depends on
        the text alone, whoever asks and when."""
        due = self._due[-1]
        if due is None:
            forced = self._matcher.compute_ff_bytes() and self._matcher.compute_ff_tokens()
            due = self._due[-1] = tuple(forced)
        return due[0] if due else None

    def _mask(self, text: bytes) -> Mask:
        """What may come where the matcher is now, `text` after the committed one. What it finds
        out on the way it knows at the next mask."""
        found = self._known.get(text)
        if found is None:
            try:
                found = self._known[text] = self._computed(self._matcher)
            except BadRequest:
                self._start_again()
                raise
        return found

    def _computed(self, matcher: Any) -> Mask:
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
        reason = " ".join(str(matcher.get_error()).partition("<state>")[0].split())[:300]
        if reason.startswith(DEAD_END):
            raise BadRequest("the grammar leads to a place where nothing may follow")
        raise BadRequest(f"the grammar is too complex: {reason}")

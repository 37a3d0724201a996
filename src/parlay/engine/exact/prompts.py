"""The passes in which an exact prompt is read, and where a next turn can go on from.

All of it follows from the tokens of the text, so that a cold cache and a warm one get the same
bits. Knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.errors import BadRequest
from parlay.llama.kernels import PROMPT_ROWS
from parlay.llama.model import Model
from parlay.llama.template import ChatTemplate
from parlay.llama.vocabulary import Vocabulary

_N_OPENING = 2  # tokens by which a chat is known: one may be what every text begins with
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "Hello."}


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a prompt can be gone on with and have the bits of one that was read at once.

    A chunk is read either apart, always in the same pass, which then need not agree with others to
    the bit; or in any passes, which agree. Deep in a text all chunks are read apart. Before that,
    those in which no answer's tokens can lie, as far as marks tell; of a chunk in which an answer
    begins, what comes well before it.
    """

    step: int  # tokens of a chunk
    anywhere_until: int = 0  # tokens from which on everything is read apart
    marks: TurnMarks | None = None  # None: an answer's tokens may be anywhere
    kernels: bool = False  # whether prompts have some of their own; else nothing is read apart

    def next_pass(self, tokens: Seq[int], start: int) -> tuple[int, bool]:
        """How many tokens of a text are read in one pass from there on, and whether apart."""
        chunk = start - start % self.step
        end = min(chunk + self.step, len(tokens))
        n = end - start
        if start >= self.anywhere_until:  # of few nobody knows whether they are read or decoded
            return n, self.kernels and n >= PROMPT_ROWS
        if start > chunk or not self.kernels:
            return n, False
        own = self._first_own(tokens, chunk, end)
        if own is None:
            return n, n == self.step >= PROMPT_ROWS
        before = (own - start) // PROMPT_ROWS * PROMPT_ROWS
        return (before, True) if before else (n, False)

    def joined(self, tokens: Seq[int], start: int, most: int) -> int:
        """Tokens of whole chunks that are read apart from there on, up to so many. Where that was
        tried they have in one pass the bits they have in several. 0: there are no two of them."""
        n = 0
        while start % self.step == 0 and n + self.step <= most:
            if self.next_pass(tokens, start + n) != (self.step, True):
                break
            n += self.step
        return n if n > self.step else 0

    def is_usual(self, tokens: Seq[int], start: int, n: int, *, apart: bool) -> bool:
        """Whether every reader of a text makes this pass: over whole chunks, or over what comes
        before an answer in one."""
        if n > self.step:
            return apart and self.joined(tokens, start, n) == n
        whole = start % self.step == 0 and n == self.step
        before = apart and start < self.anywhere_until
        return (whole or before) and self.next_pass(tokens, start) == (n, apart)

    def last(self, tokens: Seq[int], n: int) -> int:
        """The last joint of the first n tokens, whatever follows them."""
        chunk = n - n % self.step
        if n > self.anywhere_until:
            return max(self.anywhere_until, chunk)
        return n if self.agrees_until(tokens, chunk, n) == n else chunk

    def agrees_until(self, tokens: Seq[int], start: int, end: int) -> int:
        """How far passes that agree have the bits of a prompt's, from a joint on. In the middle of
        a chunk such passes follow in any case."""
        end = min(end, self.anywhere_until)
        for chunk in range(start + -start % self.step, end, self.step):
            if self._first_own(tokens, chunk, min(chunk + self.step, end)) is None:
                return chunk
        return max(start, end)

    def _first_own(self, tokens: Seq[int], start: int, end: int) -> int | None:
        return start if self.marks is None else self.marks.first_own(tokens, start, end)


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """Tokens that tell who speaks in a chat. A wrong guess costs time, never a bit: it only says
    how a part is read, and what was read otherwise is read again."""

    openings: tuple[tuple[int, ...], ...]  # how a chat begins
    answer: tuple[int, ...]  # opens an answer, and nobody else's message
    ends: tuple[int, ...]  # of a message

    def first_own(self, tokens: Seq[int], start: int, end: int) -> int | None:
        """The first of these tokens that an answer may have made, as those up to it tell: what
        stands between an answer's mark and its end. Of a text that is no chat it may be any."""
        if not any(tuple(tokens[: len(each)]) == each for each in self.openings):
            return start if start < end else None
        own = False
        for i, token in enumerate(tokens[:end]):
            own = own or (token == self.answer[-1] and self._opens_answer(tokens, i))
            if own and i >= start:
                return i
            if token in self.ends:
                own = False
        return None

    def _opens_answer(self, tokens: Seq[int], last: int) -> bool:
        return tuple(tokens[max(0, last + 1 - len(self.answer)) : last + 1]) == self.answer


def marks_of(model: Model) -> TurnMarks | None:
    """None: its template has no marks, or writes none before an answer."""
    template = model.chat_template()
    if template is None:
        return None
    openings = [_tokens(model.vocabulary, template, *chat) for chat in ((_USER,), (_SYSTEM, _USER))]
    asked = _tokens(model.vocabulary, template, _USER, add_generation_prompt=False)
    answer = _answer_mark(asked, openings[0])
    if answer is None:
        return None
    known = sorted({tuple(tokens[:_N_OPENING]) for tokens in openings if tokens})
    return TurnMarks(tuple(known), answer, tuple(sorted(model.vocabulary.ends)))


def _tokens(
    vocabulary: Vocabulary,
    template: ChatTemplate,
    *messages: Mapping[str, str],
    add_generation_prompt: bool = True,
) -> list[int]:
    """A chat as the target reads it; nothing where the template refuses it."""
    try:
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
    except BadRequest:
        return []
    tokens = vocabulary.tokenize(text)
    return tokens[1:] if tokens[:2] == [vocabulary.bos] * 2 else tokens


def _answer_mark(asked: list[int], opened: list[int]) -> tuple[int, ...] | None:
    """The shortest beginning of what is written before an answer that is not in the chat itself."""
    if not asked or opened[: len(asked)] != asked:
        return None
    for end in range(len(asked) + 1, len(opened) + 1):
        mark = opened[len(asked) : end]
        if not any(asked[i : i + len(mark)] == mark for i in range(len(asked))):
            return tuple(mark)
    return None

"""Which tokens of a chat an answer of ours may have made, told by the marks of its template.

A function of the tokens alone, so that whoever reads a text sees the same. A wrong guess costs
time, never a bit: it only says how a part is read, and what was read otherwise is read again.
Knows nothing of passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.llama.template import ChatTemplate
from parlay.llama.vocabulary import Vocabulary

_N_OPENING = 2  # tokens by which a chat is known: one may be what every text begins with
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "Hello."}


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """Tokens that tell who speaks."""

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

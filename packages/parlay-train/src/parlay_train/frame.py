"""The tokens around a user's turn, as the target's chat template writes them.

Knows the template and the tokenizer; whose words fill the turn is not its affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.errors import BadRequest
from parlay.llama.model import Model

# Stand-ins for what people say: letters only, so that no template escapes or trims them.
_FIRST, _ANSWER, _SECOND = "QQFIRSTQQ", "QQANSWERQQ", "QQSECONDQQ"


@dataclass(frozen=True, slots=True)
class ScoreFrame:
    """opening + a user's words + closing + the answer [+ between + more words + closing ...]"""

    opening: tuple[int, ...]
    closing: tuple[int, ...]
    between: tuple[int, ...]  # empty where the template cannot go on after an answer


class Template:
    """A target's chat template, in tokens."""

    def __init__(self, model: Model) -> None:
        template = model.chat_template()
        if template is None:
            raise BadRequest(
                f"{model.path.name} has no chat template: it cannot be asked to write;"
                " take an instruction model"
            )
        self._template = template
        self._vocabulary = model.vocabulary
        self.frame = self._frame()

    def tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A whole conversation, ready for the answer."""
        return self._once(self._vocabulary.tokenize(self._template.render(messages)))

    def user(self, text: str) -> list[int]:
        """One user's message, ready for the answer."""
        return self.tokens([{"role": "user", "content": text}])

    def _frame(self) -> ScoreFrame:
        opening, closing = self._around(_FIRST, [_message("user", _FIRST)])
        try:
            talk = [_message("user", _FIRST), _message("assistant", _ANSWER)]
            before, _ = self._around(_SECOND, [*talk, _message("user", _SECOND)])
            between = before.partition(_ANSWER)[2]
        except BadRequest:
            between = ""
        return ScoreFrame(
            tuple(self._once(self._vocabulary.tokenize(opening))),
            tuple(self._vocabulary.tokenize(closing, bos=False)),
            tuple(self._vocabulary.tokenize(between, bos=False)),
        )

    def _around(self, mark: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        before, found, after = self._template.render(messages).partition(mark)
        if not found:
            raise BadRequest("the chat template does not show what the user says")
        return before, after

    def _once(self, tokens: list[int]) -> list[int]:
        """Most templates write the beginning-of-text mark themselves; it must not come twice."""
        return tokens[1:] if tokens[:2] == [self._vocabulary.bos] * 2 else tokens


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}

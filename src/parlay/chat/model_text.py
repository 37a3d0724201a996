"""What a prompter must know of a model: its vocabulary and its template.

Knows no llama.cpp: an engine's own objects follow these protocols, and so may a copy of what they
say in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class InfillMarks(Protocol):
    """Tokens around what stands before and after a gap."""

    @property
    def before(self) -> int: ...

    @property
    def after(self) -> int: ...

    @property
    def middle(self) -> int: ...

    @property
    def file(self) -> int | None:
        """Before another file."""


class Vocabulary(Protocol):
    """Text to tokens and back."""

    @property
    def size(self) -> int: ...

    @property
    def bos(self) -> int: ...

    @property
    def eos(self) -> int: ...

    @property
    def adds_bos(self) -> bool: ...

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""

    @property
    def infill(self) -> InfillMarks | None:
        """The marks for filling in the middle; None: this model has none."""

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = True) -> list[int]:
        """Tokens of a text. `special`: marks such as <|im_end|> in it become their own tokens."""

    def tokenize_parts(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Tokens of one text in parts, each with whether marks in it become their own tokens."""

    def continuation(self, text: str) -> list[int]:
        """Tokens of text that stands in the middle of another one; marks in it are text."""

    def control_words(self) -> list[str]:
        """The texts that `special` is about."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""

    def text_of(self, token: int) -> str:
        """A token as a person would write it, control tokens included."""

    def raw_text(self, token: int) -> str:
        """A token as the model's file writes it."""

    def detokenize(self, tokens: list[int]) -> str:
        """The text of several tokens."""


class Template(Protocol):
    """A conversation as its model was trained to read it."""

    def mentions(self, text: str) -> bool:
        """Whether a text stands in the template itself."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. Further keywords reach the template as they are."""

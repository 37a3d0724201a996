"""A tokenizer as its model file describes it, from the header alone.

Does not tokenise: llama.cpp does that (`round_trip.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import ModelFileError
from parlay.llama.header import Header, read_parts

_TOKENS, _MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_TYPES = "tokenizer.ggml.token_type"
_WANTED = frozenset({_TOKENS, _MERGES, _TYPES})
# Ids that have a meaning of their own, by the name of their key.
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask")
_FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Everything that decides which text a token stands for, and how text becomes tokens."""

    kind: str  # gpt2, llama, bert, ...
    pre: str  # how text is cut before merging
    tokens: tuple[bytes, ...]
    types: tuple[int, ...]
    merges: tuple[bytes, ...]
    special: dict[str, int]
    flags: dict[str, bool]
    chat_template: str | None

    @property
    def added(self) -> dict[int, bytes]:
        """Tokens that are not made by merging: control marks and those added after training."""
        return {
            i: self.tokens[i]
            for i, kind in enumerate(self.types)
            if kind in (CONTROL, USER_DEFINED) and i < len(self.tokens)
        }

    @property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers; chat templates do not count."""
        digest = hashlib.sha256()
        for part in (self.kind, self.pre, sorted(self.special.items()), sorted(self.flags.items())):
            digest.update(repr(part).encode())
        for texts in (self.tokens, self.merges):
            for text in texts:
                digest.update(len(text).to_bytes(4, "little") + text)
        digest.update(repr(self.types).encode())
        return digest.hexdigest()[:16]


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a model file."""
    header = read_parts(path, _WANTED)[0]
    tokens = _texts(header, _TOKENS)
    if not tokens:
        raise ModelFileError(f"{path.name} holds no tokenizer; use a file converted with one")
    types = header.values.get(_TYPES)
    return Tokenizer(
        kind=header.text("tokenizer.ggml.model") or "?",
        pre=header.text("tokenizer.ggml.pre") or "default",
        tokens=tokens,
        types=tuple(t for t in types if isinstance(t, int)) if isinstance(types, tuple) else (),
        merges=_texts(header, _MERGES),
        special=_special(header),
        flags=_flags(header),
        chat_template=header.text("tokenizer.chat_template"),
    )


def _texts(header: Header, key: str) -> tuple[bytes, ...]:
    value = header.values.get(key)
    if not isinstance(value, tuple):
        return ()
    return tuple(text for text in value if isinstance(text, bytes))


def _special(header: Header) -> dict[str, int]:
    found = {name: header.optional(f"tokenizer.ggml.{name}_token_id") for name in SPECIAL}
    return {name: token for name, token in found.items() if token is not None}


def _flags(header: Header) -> dict[str, bool]:
    found = {name: header.values.get(f"tokenizer.ggml.{name}") for name in _FLAGS}
    return {name: bool(value) for name, value in found.items() if value is not None}

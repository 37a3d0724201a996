"""A model's vocabulary: text to tokens and back, and which tokens end a text.

Knows nothing of contexts. It is valid as long as its model, and says so afterwards: llama.cpp would
read freed memory.
"""

from __future__ import annotations

import codecs
import ctypes
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import BadRequest, Closed
from parlay.llama import library
from parlay.llama.binding import TOKEN_CONTROL, TOKEN_UNKNOWN
from parlay.llama.library import C

# Fine-tunes pad the vocabulary to a multiple of 64 or 128.
_MAX_PADDING = 128
_BPE = 2  # llama.cpp's LLAMA_VOCAB_TYPE_BPE: the kind that is cut into words first
_BLOCK = 4096
# Places where every pre-tokeniser ends a word: a letter before a space, digit or sign; a space
# before a letter or digit.
_BREAK = re.compile(r"[^\W\d_][\s\d!-/:-@\[-^{-~\u3000-\u303f\uff00-\uff0f]|\s[^\W_]")


@dataclass(frozen=True, slots=True)
class InfillMarks:
    """Tokens around what stands before and after a gap."""

    before: int
    after: int
    middle: int
    file: int | None = None  # before another file


class Vocabulary:
    """Token ids of one model."""

    def __init__(self, handle: int) -> None:
        self._open: int | None = handle
        self.size: int = C.llama_vocab_n_tokens(handle)
        self.kind: int = C.llama_vocab_type(handle)
        self.bos: int = C.llama_vocab_bos(handle)
        self.eos: int = C.llama_vocab_eos(handle)
        self.adds_bos: bool = C.llama_vocab_get_add_bos(handle)
        self.ends: frozenset[int] = frozenset(
            token for token in range(self.size) if C.llama_vocab_is_eog(handle, token)
        )
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """The model is about to be freed."""
        self._open = None

    @property
    def _handle(self) -> int:
        if self._open is None:
            raise Closed("the model is closed; open it again")
        return self._open

    @property
    def infill(self) -> InfillMarks | None:
        """The marks for filling in the middle; None: this model has none."""
        names = ("pre", "suf", "mid", "sep")
        found = [getattr(C, f"llama_vocab_fim_{name}")(self._handle) for name in names]
        before, after, middle, file = found
        if min(before, after, middle) < 0:
            return None
        return InfillMarks(before, after, middle, file if file >= 0 else None)

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = True) -> list[int]:
        """Tokens of a text. `special`: marks such as <|im_end|> in it become their own tokens."""
        add = self.adds_bos if bos is None else bos
        if self.kind != _BPE or len(text) <= 2 * _BLOCK:
            return self._tokenize(text, add, special)
        found: list[int] = []
        for i, part in enumerate(_unbroken(text)):
            found += self._tokenize(part, add and i == 0, special)
        return found

    def tokenize_parts(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Tokens of one text in parts, each with whether marks in it become their own tokens."""
        found: list[int] = []
        for i, (text, special) in enumerate(parts):
            found += self.tokenize(text, special=special) if i == 0 else self._go_on(text, special)
        return found

    def continuation(self, text: str) -> list[int]:
        """Tokens of text that stands in the middle of another one; marks in it are text."""
        return self._go_on(text, False)

    def _go_on(self, text: str, special: bool) -> list[int]:
        """The middle of a text, where some vocabularies would add a space as to its beginning."""
        if self.kind == _BPE:
            return self.tokenize(text, bos=False, special=special)
        anchor = self.tokenize("\n", bos=False, special=False)
        found = self.tokenize("\n" + text, bos=False, special=special)
        n = len(anchor)
        return found[n:] if found[:n] == anchor else self.tokenize(text, bos=False, special=special)

    def _tokenize(self, text: str, add: bool, special: bool) -> list[int]:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError:  # half of a surrogate pair, as JSON and shells can hand over
            raise BadRequest("the text is not valid text; send it as UTF-8") from None
        room = len(raw) + 8
        buffer = (ctypes.c_int32 * room)()
        n = C.llama_tokenize(self._handle, raw, len(raw), buffer, room, add, special)
        if n < 0:
            raise BadRequest("the text could not be tokenised; is it too long?")
        return list(buffer[:n])

    def control_words(self) -> list[str]:
        """The texts that `special` is about."""
        wanted = TOKEN_CONTROL | TOKEN_UNKNOWN
        return [
            self.raw_text(token)
            for token in range(self.size)
            if C.llama_vocab_get_attr(self._handle, token) & wanted
        ]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token, special=False)
        return known

    def text_of(self, token: int) -> str:
        """A token as a person would write it, control tokens included."""
        return self._read_piece(token, special=True).decode("utf-8", "replace")

    def raw_text(self, token: int) -> str:
        """A token as the model's file writes it."""
        raw: bytes = C.llama_vocab_get_text(self._handle, token) or b""
        return raw.decode("utf-8", "replace")

    def detokenize(self, tokens: list[int]) -> str:
        """The text of several tokens."""
        return b"".join(self.piece(token) for token in tokens).decode("utf-8", "replace")

    def fingerprint(self) -> str:
        """A hash that is equal for equal vocabularies."""
        digest = hashlib.sha256(f"{self.kind} {self.size} {self.bos} {self.eos}".encode())
        for token in range(self.size):
            digest.update(C.llama_vocab_get_text(self._handle, token) or b"")
            digest.update(b"\0")
        return digest.hexdigest()[:16]

    def first_difference(self, other: Vocabulary) -> str | None:
        """Why a draft in the other vocabulary would mean something else here; None if it would not.

        Models of one family may be padded to different sizes: ids beyond the smaller one are
        never proposed by it, so only the shared ids must agree.
        """
        if self.kind != other.kind:
            return "the tokenizers are of different types"
        if abs(self.size - other.size) > _MAX_PADDING:
            return f"the target has {self.size} tokens and the drafter {other.size}"
        for token in range(min(self.size, other.size)):
            mine = C.llama_vocab_get_text(self._handle, token)
            theirs = C.llama_vocab_get_text(other._handle, token)
            if mine != theirs:
                return f"token {token} is {mine!r} for the target and {theirs!r} for the drafter"
        return None

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.size:
            raise BadRequest(f"token {token} is not in the vocabulary (0 to {self.size - 1})")
        buffer = ctypes.create_string_buffer(256)
        n = C.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, special)
        if n < 0:  # the piece is longer than the buffer: llama.cpp says by how much
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]


@contextmanager
def open_vocabulary(path: Path) -> Iterator[Vocabulary]:
    """The vocabulary of a model file without its weights: quick, however large the model."""
    library.start()
    params = C.llama_model_default_params()
    params.vocab_only = True
    library.forget_errors()
    handle = library.made(
        C.llama_model_load_from_file(os.fsencode(path), params), f"read {path.name}"
    )
    vocabulary = Vocabulary(C.llama_model_get_vocab(handle))
    try:
        yield vocabulary
    finally:
        vocabulary.close()
        C.llama_model_free(handle)


def _unbroken(text: str) -> Iterator[str]:
    """A text, cut where a run of one kind of characters is too long for llama.cpp.

    Many of its pre-tokenisers are regular expressions of the C++ library, which call themselves for
    every character: between ten and thirty thousand letters in a row end the process. Whoever reads
    a block with a break in it needs no cut.
    """
    start = 0
    for at in range(_BLOCK, len(text), _BLOCK):
        if _BREAK.search(text, at - _BLOCK, at) is None:
            yield text[start:at]
            start = at
    yield text[start:]


class Detokenizer:
    """Tokens in, text out, never half a character."""

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int] = frozenset()) -> None:
        """`shown`: control tokens that are written out, such as those around a tool call."""
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that is complete once this token has come."""
        if token in self._shown:
            return self._decoder.decode(self._vocabulary.text_of(token).encode())
        return self._decoder.decode(self._vocabulary.piece(token))

    def flush(self) -> str:
        """Whatever is left; an unfinished character becomes a replacement mark."""
        return self._decoder.decode(b"", final=True)

"""A drafter with another vocabulary: what it says is translated through text.

Knows two vocabularies and any proposer that drafts in the second one; knows nothing of models.
The target still decides every token, so a bad translation costs acceptance and never a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.proposers.proposer import GREEDY, Ask, Proposer, Worth

# Text this far back never changes how the end is cut; only what follows is encoded again.
_SETTLED_BYTES = 64
_TAIL_BYTES = 256
# Drafted beyond the window, to see where the last wanted token ends.
_LOOK_AHEAD = 1


class TranslatedText(Protocol):
    """As much of a vocabulary as translation needs."""

    ends: frozenset[int]
    eos: int

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = True) -> list[int]:
        """Tokens of a text."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""

    def text_of(self, token: int) -> str:
        """A token as a person would write it, control tokens included."""


@dataclass(slots=True)
class _Read:
    """One sequence as the drafter reads it."""

    seen: list[int] = field(default_factory=list)  # the target's tokens, translated so far
    settled: list[int] = field(default_factory=list)  # the drafter's, for text that is final
    tail: bytes = b""  # text after that, which is encoded again whenever it grows
    tail_tokens: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.settled + self.tail_tokens


class TranslatedProposer(Proposer):
    """Gives the drafter the target's text in its own tokens, and its draft back in the target's."""

    def __init__(self, drafter: Proposer, target: TranslatedText, own: TranslatedText) -> None:
        self.name = drafter.name
        self.drafter = drafter
        self._target = Encoder(target)
        self._own = Encoder(own)
        self._reads: dict[int, _Read] = {}

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        inner = [self._ask(ask) for ask in asks]
        drafts = self.drafter.draft(inner, worth)
        return [self._back(draft, ask.window) for draft, ask in zip(drafts, asks, strict=True)]

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self._reads.pop(seq_id, None)
        self.drafter.open(seq_id, (), 0, owner)

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        read = self._reads.get(seq_id)
        return max(1, len(tokens) - (0 if read is None else len(read.seen)))

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        # Which of the drafter's tokens went is not known: read the text again.
        self.open(seq_id, (), 0)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        read = self._reads.get(seq_id)
        self.drafter.finish(seq_id, read.tokens if read else [])

    def close(self) -> None:
        self.drafter.close()

    # -- the target's text to the drafter ---------------------------------------

    def _ask(self, ask: Ask) -> Ask:
        tokens = self._read(ask.seq_id, ask.tokens)
        window = ask.window + _LOOK_AHEAD if ask.window and tokens else 0
        # Noise is keyed by token ids, which mean something else here: draft the likeliest text.
        # A grammar's ids do, too: what comes back is held to it.
        return replace(
            ask,
            tokens=tokens,
            window=window,
            sampling=GREEDY,
            position=0,
            constraint=None,
        )

    def _read(self, seq_id: int, tokens: Sequence[int]) -> list[int]:
        read = self._reads.setdefault(seq_id, _Read())
        n = len(read.seen)
        if list(tokens[:n]) != read.seen:
            read, n = _Read(), 0
            self._reads[seq_id] = read
            self.drafter.open(seq_id, (), 0)
        read.tail += b"".join(self._target.raw(token) for token in tokens[n:])
        read.seen.extend(tokens[n:])
        self._encode_tail(seq_id, read)
        return read.tokens

    def _encode_tail(self, seq_id: int, read: _Read) -> None:
        n, before = len(read.settled), read.tail_tokens
        self._settle(read)
        read.tail_tokens = self._own.encode(_whole(read.tail), first=not read.settled)
        if read.tokens[n : n + len(before)] != before:
            self.drafter.open(seq_id, (), 0)  # it must look again at what it has read

    def _settle(self, read: _Read) -> None:
        """Encode a long tail's beginning for good, up to a space."""
        while len(read.tail) > _TAIL_BYTES:
            limit = max(_TAIL_BYTES, len(read.tail) - _TAIL_BYTES)
            cut = read.tail.rfind(b" ", 1, limit - _SETTLED_BYTES)
            cut = cut if cut > 0 else limit - _SETTLED_BYTES
            head, read.tail = read.tail[:cut], read.tail[cut:]
            read.settled += self._own.encode(
                head.decode("utf-8", "replace"), first=not read.settled
            )

    # -- the draft back ---------------------------------------------------------

    def _back(self, draft: Draft, window: int) -> Draft:
        if not draft.tokens:
            return replace(NO_DRAFT, proposer=self.name)
        ended = draft.tokens[-1] in self._own.vocabulary.ends
        tokens = draft.tokens[:-1] if ended else draft.tokens
        pieces = [self._own.raw(token) for token in tokens]
        # The next token of the text begins where the look-ahead does, or nowhere if it is the end.
        safe = len(b"".join(pieces if ended else pieces[:-1]))
        out = self._target.prefix(_whole(b"".join(pieces)), safe)
        if ended and self._target.vocabulary.eos >= 0:
            out.append(self._target.vocabulary.eos)
        out = out[:window]
        share = draft.confidence[: len(out)]
        spread = (*share, *([share[-1]] * (len(out) - len(share)) if share else ()))
        return Draft(tuple(out), self.name, spread)


class Encoder:
    """Text to tokens in the middle of a text, where some vocabularies would add a space."""

    def __init__(self, vocabulary: TranslatedText) -> None:
        self.vocabulary = vocabulary
        plain = vocabulary.tokenize("a", bos=False, special=False)
        self._adds_space = b"".join(map(vocabulary.piece, plain)).startswith(b" ")
        self._anchor = vocabulary.tokenize("\n", bos=False, special=False)

    def raw(self, token: int) -> bytes:
        """A token's bytes; a control mark as it is written."""
        return self.vocabulary.piece(token) or self.vocabulary.text_of(token).encode()

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Tokens of a text that begins a sequence, or goes on with one."""
        if first:
            return self.vocabulary.tokenize(text)
        if not self._adds_space or not text:
            return self.vocabulary.tokenize(text, bos=False)
        tokens = self.vocabulary.tokenize("\n" + text, bos=False)
        n = len(self._anchor)
        return (
            tokens[n:] if tokens[:n] == self._anchor else self.vocabulary.tokenize(text, bos=False)
        )

    def prefix(self, text: str, safe: int) -> list[int]:
        """The longest run of tokens whose text ends within the first `safe` bytes."""
        kept, at = [], 0
        for token in self.encode(text, first=False):
            at += len(self.raw(token))
            if at > safe:
                break
            kept.append(token)
        return kept


def _whole(raw: bytes) -> str:
    """Text without half a character at its end; broken bytes inside it become marks."""
    for n in range(1, min(4, len(raw) + 1)):
        lead = raw[-n]
        if lead & 0xC0 == 0x80:  # goes on with a character
            continue
        length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        return (raw[:-n] if length > n else raw).decode("utf-8", "replace")
    return raw.decode("utf-8", "replace")

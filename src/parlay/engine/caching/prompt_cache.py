"""Conversations that lost their slot: kept in RAM, the least recently used goes first.

Knows tokens, owners and sizes; what a saved sequence is made of is the target's affair.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from parlay.decoding.span import Saved, common_prefix
from parlay.engine.exact.joints import Joints


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One conversation."""

    owner: str
    tokens: list[int]
    saved: Saved
    n_firm: int = 0  # of the tokens, cached as they would be whoever had read them

    def shared(self, prompt: list[int], owner: str, joints: Joints | None = None) -> int:
        """How much of a prompt it can stand for; what others said is of no use."""
        if owner != self.owner:
            return 0
        n = reusable(common_prefix(self.tokens, prompt), prompt, self.n_firm, joints)
        kept = self.saved.reusable(n)
        return 0 if joints is not None and joints.last(prompt, kept) != kept else kept


def reusable(n_shared: int, prompt: Seq[int], n_firm: int, joints: Joints | None) -> int:
    """Of a prompt's shared tokens those that need not be read again; with joints only what is
    firm, up to one of them."""
    # At least the last token must be read again: its logits begin the answer.
    n = min(n_shared, len(prompt) - 1)
    if joints is None:
        return n
    return joints.last(prompt, min(n, n_firm))


class PromptCache:
    """Bounded in bytes; the oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._token_bytes = 0.0  # of the last one that was kept
        self._kept: list[Kept] = []

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def n_bytes(self) -> int:
        return sum(kept.saved.n_bytes for kept in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def holds(self, n_tokens: int) -> bool:
        """Whether there is room for so many tokens, if everything else went."""
        return self._limit > 0 and n_tokens * self._token_bytes <= self._limit

    def put(self, kept: Kept) -> None:
        """Keep it; older ones go as far as they must, and those it continues."""
        self._token_bytes = kept.saved.n_bytes / max(1, len(kept.tokens))
        self._kept = [old for old in self._kept if not _continues(kept, old)]
        self._kept.append(kept)
        while self.n_bytes > self._limit:
            del self._kept[0]

    def best(
        self, prompt: Seq[int], owner: str, joints: Joints | None = None
    ) -> tuple[Kept | None, int]:
        """The one that shares most with a prompt, and how much that is."""
        wanted = list(prompt)
        shared = [kept.shared(wanted, owner, joints) for kept in self._kept]
        n = max(shared, default=0)
        return (self._kept[shared.index(n)], n) if n else (None, 0)

    def pop(self, kept: Kept) -> None:
        """It gets a slot again."""
        self._kept.remove(kept)


def _continues(new: Kept, old: Kept) -> bool:
    n = len(old.tokens)
    return new.owner == old.owner and new.tokens[:n] == old.tokens

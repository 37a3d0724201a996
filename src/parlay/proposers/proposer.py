"""What every proposer is: asked for drafts of several sequences at once, told where each begins,
goes on and ends.

Knows nothing of verification, and nobody tells it what was accepted: every ask holds the whole
text, and what a proposer keeps of a text is compared with that by their common prefix. A proposer
that was not told something drafts badly at worst.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from parlay.decoding.constraint import Constraint
from parlay.decoding.draft import Draft
from parlay.decoding.sampling import Sampling

# Told, for each sequence that could have one more token, how sure the proposer is of every token
# that it has drafted for it: for which of them is the next one worth its cost?
Worth = Callable[[Mapping[int, Sequence[float]]], Collection[int]]

GREEDY = Sampling()


@dataclass(slots=True)  # not frozen: that takes three times as long, for every sequence and round
class Ask:
    """One sequence that wants a draft."""

    seq_id: int
    tokens: Sequence[int]  # every committed token; the same list grows from round to round
    window: int  # draft at most this many
    # A proposer that draws from a distribution draws as the target will.
    sampling: Sampling = GREEDY
    position: int = 0  # place in the answer of the first drafted token
    n_prompt: int = 0  # tokens before the answer
    expected: Sequence[int] = ()  # the answer the client expects; the same object every round
    constraint: Constraint | None = None  # a grammar that the answer obeys
    owner: str = ""  # whose request it is
    n_ahead: int = 0  # of the tokens, the last ones: drafted by another, not committed


class Proposer(ABC):
    """Proposes tokens cheaply. It must be able to draft; whatever else it has no use for, it leaves
    as it is here."""

    name: str
    free = False  # no model behind it: it is asked before anybody chooses
    continues = False  # whether it can draft on from what another one drafted

    @abstractmethod
    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        """One draft for each ask, in order; empty where there is nothing to say. Whoever drafts
        step by step asks `worth` before each further token; without it, whole windows are wanted.
        """

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        """A sequence begins in this slot with these tokens. Of the slot's last one the target's
        cache kept the first `n_kept`; nothing else that was said of it holds."""

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        """The target reads this prompt, or verifies this draft of the text. On a device that takes
        nobody's time: what the next draft needs can be prepared. Of a window of 0 none will be
        asked for."""

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Tokens of a text that it has to read before its first draft token, the last one among
        them."""
        return 1

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        """tokens[keep : keep + gone] were removed from the sequence."""

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence ended with these tokens."""

    def close(self) -> None:
        """Free what is held."""

"""A draft: the tokens proposed for one round, and how sure the proposer was of each.

Knows nothing of where the tokens came from beyond the proposer's name.
"""

from __future__ import annotations

from dataclasses import dataclass

JOINED = "+"  # between the names of those who made one draft, one behind the other


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one round; its length is the window."""

    tokens: tuple[int, ...]
    proposer: str
    # One per token: the proposer's estimate that it is right, given that those before it are;
    # 1 where nothing else may come.
    confidence: tuple[float, ...] = ()

    def first(self, n: int) -> Draft:
        """As if no more than so many tokens had been proposed."""
        if len(self.tokens) <= n:
            return self
        return Draft(self.tokens[:n], self.proposer, self.confidence[:n])


NO_DRAFT = Draft((), "none")

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


@dataclass(frozen=True, slots=True)
class Ready:
    """What a proposer has for a text before it is asked."""

    n_tokens: int = 0  # of a draft
    n_ahead: int = 0  # drafted ahead since it was last looked at, of use or not
    ahead_s: float = 0.0  # what those took
    proposer: str = ""  # whose it is; empty: there is one only
    read_s: float = 0.0  # since the last look, reading a prompt beside the target

    def of(self, proposer: str) -> int:
        """Tokens that are ready if this proposer is asked."""
        return self.n_tokens if self.proposer in ("", proposer) else 0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a text has shown of a free proposer in rounds that nobody searched."""

    proposer: str
    n_right: int  # tokens in a row
    wrong: bool  # and then it went on in another way
    # Of the last of those tokens, as many as are known, and of the one that was wrong.
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """A draft that was made to be compared with the text, not to be verified; the text is there."""

    proposer: str
    n_right: int  # leading tokens that came
    confidence: tuple[float, ...]  # of all that were drafted


NO_DRAFT = Draft((), "none")
NOTHING_READY = Ready()

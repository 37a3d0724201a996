"""A round: one target pass for one sequence, as the controller and the counts see it.

Holds numbers only, never text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Fallback(str, Enum):
    """Why a round decoded plainly in a request that could have speculated."""

    REQUEST = "request"
    POLICY = "policy"
    GRAMMAR = "grammar"
    REASONING = "reasoning"
    PROMPT_HEAVY = "prompt_heavy"
    MEMORY = "memory"
    VOCAB = "vocab"
    LOW_ACCEPTANCE = "low_acceptance"
    UNPROFITABLE = "unprofitable"
    DRAFTER_LOADING = "drafter_loading"
    DRAFT_ERROR = "draft_error"
    NO_DRAFT = "no_draft"  # the proposer was asked and had nothing to say
    EXACT = "exact"  # the window would have left the shapes that are exact

    @property
    def is_choice(self) -> bool:
        """Whether a plain round was what somebody wanted, a request or who looks at time."""
        return self in (Fallback.REQUEST, Fallback.UNPROFITABLE)


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the wall time of one step went; shared by every sequence in it."""

    draft_s: float = 0.0
    verify_s: float = 0.0  # inside llama.cpp, the target's pass
    overhead_s: float = 0.0  # everything else

    @property
    def total_s(self) -> float:
        return self.draft_s + self.verify_s + self.overhead_s


WAITS = "waits"  # a plain round in the shape of drafts: the next one is near


@dataclass(slots=True)  # so many fields: a frozen one takes three times as long, every round
class Round:
    """One finished round of one sequence; nobody changes it, but for `exact` when it is told."""

    seq_id: int
    proposer: str  # the proposer's name, or "none"
    window: int  # what the controller asked for
    n_drafted: int
    n_accepted: int
    n_generated: int
    confidence: tuple[float, ...]  # of the drafted tokens
    n_rows: int  # rows of this sequence in the target's pass
    n_sequences: int  # sequences that shared the pass
    n_pass_rows: int  # rows of all of them, prefill and padding included
    n_context: int  # tokens in the target's cache before the pass
    timing: Timing
    fallback: Fallback | None = None
    n_dropped: int = 0  # drafted, but not worth a row in the pass
    # Leading tokens of every free proposer's offer, taken or not, that the round generated.
    agreed: Mapping[str, int] = field(default_factory=dict)
    exact: bool = True  # whether the pass kept to shapes that equal single passes bit for bit
    expected_gain: float | None = None  # what the controller expected of it, over plain decoding
    reason: str = ""  # why it chose so, in its own words; WAITS where padding made it slower
    position: int = 0  # tokens generated before it
    n_padding: int = 0  # rows of the pass that only gave it its shape
    outside_s: float = 0.0  # what its proposers took outside rounds since its last one
    reads_prompt: bool = False  # the pass read somebody's prompt too: its time is that prompt's
    answer: int = 0  # tells its answer from others that had the slot

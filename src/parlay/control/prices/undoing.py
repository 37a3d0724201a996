"""What it costs to take a rejected draft back, and when it must be paid.

Knows tokens and seconds, no model. Most caches forget rejected tokens for nothing. A recurrent
state does so as far as there are snapshots of it; beyond them it is put back from a copy, and what
held is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# One rejection moves the price by so much, and is not believed to have cost more than so many times
# as much as it should have.
_RATE, _LARGEST_SURPRISE = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Undoing:
    """Drafts lose up to `free` of their last tokens for nothing, and more for `seconds`."""

    free: int | None = None  # None: any number
    seconds: float = 0.0

    def must_hold(self, window: int) -> int:
        """How many of a draft's first tokens must be right lest taking it back costs something."""
        return 0 if self.free is None else max(0, window - self.free)

    def worst_s(self, window: int) -> float:
        """If all of a draft is wrong."""
        return self.seconds if self.must_hold(window) else 0.0

    def is_paid(self, n_drafted: int, n_accepted: int) -> bool:
        return n_accepted < self.must_hold(n_drafted)

    def after(self, seconds: float) -> Undoing:
        """The price when one that had to be paid took so long."""
        believed = min(max(seconds, 0.0), _LARGEST_SURPRISE * self.seconds)
        return replace(self, seconds=self.seconds + _RATE * (believed - self.seconds))


FOR_NOTHING = Undoing()

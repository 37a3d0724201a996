"""What a draft model costs: a token, catching up, a whole block.

Knows prices only.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlay.control.prices.curve import MAX_ROWS, Curve, surprise

# One observation moves its pace by so much.
_PACE_RATE = 0.10
# A drafter whose shape must stay steady catches up token by token as far as this.
_SINGLE_STEPS = 4
# A block drafter lets at most so many tokens of a sequence wait.
_WAITING = 64


@dataclass(slots=True)
class DrafterCost:
    """What a draft model costs; `pace` follows what its drafts were seen to take."""

    curve: Curve
    single_steps: bool  # its shape is kept steady: it catches up in passes of one token
    pace: float = 1.0
    # Of a drafter that drafts whole blocks: a block by its rows. The curve is of catching up then.
    block: Curve | None = None
    longest: int | None = None  # tokens of its longest draft; None: as many as wanted

    def step_s(self, n_sequences: int = 1) -> float:
        """One more token for each of so many sequences."""
        if self.block is not None:
            few, widest = 2, max(3, 1 + (self.longest or 7))
            rows = [min(n * n_sequences, MAX_ROWS) for n in (few, widest)]
            more = self.block.steady[rows[1]] - self.block.steady[rows[0]]
            return self.pace * max(more / (widest - few), 1e-9)
        return self.pace * self.curve.steady[n_sequences]

    def catch_up_s(self, n_missing: int, n_sequences: int = 1) -> float:
        """Until the first drafted token, when so many tokens are not in its cache yet."""
        n, curve = min(n_missing, MAX_ROWS), self.curve
        if self.block is not None:
            # Most of a long text was read while the target read it.
            behind = curve.steady[max(n_sequences, min(n, _WAITING * n_sequences, MAX_ROWS))]
            return self.pace * (behind + self.block.steady[min(2 * n_sequences, MAX_ROWS)])
        if not self.single_steps:
            return self.pace * curve.steady[max(n, n_sequences)]
        n_steps = -(-n // n_sequences)
        if n_steps <= _SINGLE_STEPS:
            return self.pace * n_steps * curve.steady[n_sequences]
        there, back = curve.changed[n - n_sequences], curve.changed[n_sequences]
        return self.pace * (there + back + curve.settling_s)

    def draft_s(self, n_drafted: int, n_missing: int = 1, n_sequences: int = 1) -> float:
        """A whole draft."""
        if n_drafted == 0:
            return 0.0
        return self.catch_up_s(n_missing, n_sequences) + (n_drafted - 1) * self.step_s(n_sequences)

    def observe(self, expected_s: float, seconds: float) -> None:
        """A draft that should have taken `expected_s` took `seconds`."""
        self.pace *= 1.0 + _PACE_RATE * (surprise(seconds, expected_s) - 1.0)

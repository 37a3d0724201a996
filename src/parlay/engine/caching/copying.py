"""What it takes to copy a conversation to RAM and back, against reading it again: all observed.

Knows seconds and tokens, neither caches nor texts. On a CPU a copy is a memcpy; out of a GPU's
memory it can take longer than to read the text once more.
"""

from __future__ import annotations

# Copies that are made while somebody waits may take this share of reading the text again; those
# made while nobody does, and brought back later, this share for both ways.
_LIGHT, _WORTH = 0.1, 0.5
# Others that answer meanwhile make reading look slower than it is: the fastest counts, and fades.
_FADES = 1.02
_KEPT = 0.7  # of the average of earlier copies
_FORGIVEN = 0.97  # of a copy's price, whenever one is not made for it: it may have been bad luck


class Copying:
    """Seconds per token of three things; what was never seen is None."""

    def __init__(self, *, from_device: bool = False) -> None:
        """`from_device`: the cache is not in RAM, so that nothing is taken to be light unseen."""
        self._away_s: float | None = None if from_device else 0.0
        self._back_s: float | None = None
        self._read_s: float | None = None

    def light(self) -> bool:
        """Whether a copy may be made while somebody waits for the slot."""
        if self._away_s is None or self._read_s is None:
            return self._away_s == 0.0
        if self._away_s <= _LIGHT * self._read_s:
            return True
        self._away_s *= _FORGIVEN
        return False

    @property
    def worth(self) -> bool:
        """Whether a copy is worth making while nobody waits."""
        if self._away_s is None or self._read_s is None:
            return True
        back_s = self._away_s if self._back_s is None else self._back_s
        return self._away_s + back_s <= _WORTH * self._read_s

    def spares(self, n_copied: int, n_spared: int) -> bool:
        """Whether to bring so many tokens back is quicker than to read so many of them."""
        if self._back_s is None or self._read_s is None:
            return True
        return self._back_s * n_copied < self._read_s * n_spared

    def reads_within(self, n_tokens: int, seconds: float) -> bool:
        """Whether so many tokens of a prompt take no longer than that, as far as it was seen."""
        return self._read_s is not None and n_tokens * self._read_s <= seconds

    def saw_copy(self, n_tokens: int, seconds: float) -> None:
        """A conversation of so many tokens was copied to RAM."""
        self._away_s = _averaged(self._away_s, seconds / max(1, n_tokens))

    def saw_return(self, n_tokens: int, seconds: float) -> None:
        """One came back into a slot."""
        self._back_s = _averaged(self._back_s, seconds / max(1, n_tokens))

    def saw_reading(self, n_tokens: int, seconds: float) -> None:
        """A prompt was read, maybe beside others."""
        each = seconds / max(1, n_tokens)
        self._read_s = each if self._read_s is None else min(each, _FADES * self._read_s)


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else _KEPT * before + (1 - _KEPT) * now

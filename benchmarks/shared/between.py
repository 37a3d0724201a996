"""Between two passes of the target: how long a draft model computes what the next one waits for.

Knows times only. Its passes may be made on a thread of their own while Python goes on: whatever is
done meanwhile takes no time of the round, if the pass is waited for anyway.
"""

from __future__ import annotations


class Between:
    """From the end of one pass of the target to the next one."""

    def __init__(self) -> None:
        self.inside_s = 0.0  # before the last pass of the target
        self._since = 0.0
        self._passes: list[tuple[float, float]] = []  # of the draft model, one after the other
        self._awaited = False

    def drafted(self, began: float, ended: float) -> None:
        """A pass of the draft model, on any thread."""
        self._passes.append((began, ended))

    def wait(self) -> None:
        """The draft model is asked for something: all it computes before the next pass of the
        target is waited for, what it is in the middle of included."""
        self._awaited = True

    def verified(self, began: float, ended: float) -> None:
        """A pass of the target."""
        parts = [min(end, began) - max(begin, self._since) for begin, end in self._passes]
        self.inside_s = sum(part for part in parts if part > 0.0) if self._awaited else 0.0
        self._since, self._passes, self._awaited = ended, [], False

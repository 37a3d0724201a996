"""Between two passes of the target: how long a draft model computes what the next one waits for.

Knows times only. Its passes may be made on a thread of their own while Python goes on: whatever is
done meanwhile takes no time of the round, if the pass is waited for anyway.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds in which neither model computed, where the next pass waited for a draft model."""

    before_s: float  # until the draft model's first pass
    amid_s: float  # between its passes
    after_s: float  # from its last one to the target's
    n_passes: int  # of the draft model


class Between:
    """From the end of one pass of the target to the next one."""

    def __init__(self) -> None:
        self.inside_s = 0.0  # before the last pass of the target
        self.gaps: Gaps | None = None  # None: nothing was waited for
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
        cut = [(max(begin, self._since), min(end, began)) for begin, end in self._passes]
        waited = [(begin, end) for begin, end in cut if end > begin] if self._awaited else []
        self.inside_s = sum(end - begin for begin, end in waited)
        self.gaps = _gaps(self._since, waited, began) if waited and self._since else None
        self._since, self._passes, self._awaited = ended, [], False


def _gaps(since: float, passes: list[tuple[float, float]], until: float) -> Gaps:
    first, last = passes[0][0], passes[-1][1]
    amid_s = last - first - sum(end - begin for begin, end in passes)
    return Gaps(first - since, amid_s, until - last, len(passes))

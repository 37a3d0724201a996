"""Which passes of a context a GPU records: each shape that has come a few times, once.

llama.cpp records every shape that comes twice in a row and forgets the last one for it. To record a
pass takes about as long as the pass, and to repeat a recording saves a small part of one, so that
pays for shapes that come often only. Here each has a recording of its own, which is there when the
shape comes back. Knows shapes, nothing of ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.llama.hacks import recordings
from parlay.llama.library import log

# Passes of a shape that are launched before its recording is begun, which llama.cpp does in the
# second pass then; none in a text's first page, where a start times passes.
_PATIENCE = 2
_MOST_SHAPES = 256  # whose passes are counted
_PAGE = 256  # llama.cpp's attention looks at so many tokens more at a time
_TOKEN = 1  # as good as any
N_CELLS = 16  # that trying takes

Decode = Callable[[Sequence[Span]], object]


class Recorded(Protocol):
    """One recording, as far as it can be seen."""

    instance: int  # 0: nothing is recorded
    compared: int  # the number of the graph that it was last compared with
    warm: int  # whether it was equal


class Shelf(Protocol):
    """The recordings of a context, by shape."""

    def choose(self, shape: Hashable | None) -> None:
        """The next passes have this shape; None: they are not recorded."""

    def current(self) -> Sequence[Recorded]:
        """Those that the next pass is compared with."""

    def close(self) -> None:
        """Free all."""


class Recorder:
    """Of one context; its owner tells every pass's spans before it is made."""

    def __init__(self, kept: Shelf, *, unified: bool = False) -> None:
        """`unified`: one cache for all sequences, so that it does not matter whose a pass is."""
        self.kept = kept
        self._unified = unified
        self._last: Hashable = None  # the recording that was chosen
        self._n_passes: dict[Hashable, int] = {}  # by shape; the last one comes last

    def before(self, spans: Sequence[Span]) -> None:
        """A pass over these comes next."""
        shape = self._shape(spans)
        if shape == self._last:  # as a drafter's every step is
            return
        n = self._n_passes[shape] = self._n_passes.pop(shape, 0) + 1
        chosen = shape if n > _PATIENCE or shape[0] == 0 else None
        if chosen != self._last:
            self.kept.choose(chosen)
            self._last = chosen
        if len(self._n_passes) > _MOST_SHAPES:
            del self._n_passes[next(iter(self._n_passes))]

    def _shape(self, spans: Sequence[Span]) -> tuple[object, ...]:
        """The page comes first."""
        if len(spans) == 1:
            span = spans[0]
            n = len(span.tokens)
            return (span.start + n - 1) // _PAGE, n, span.n_logits, self._of(span)
        page = max([span.start + len(span.tokens) - 1 for span in spans]) // _PAGE
        return page, *[(len(span.tokens), span.n_logits, self._of(span)) for span in spans]

    def _of(self, span: Span) -> int:
        return 0 if self._unified else span.seq_id

    def close(self) -> None:
        """Before the context is freed, and while nothing runs."""
        self.kept.close()


def make_recorder(handle: int, decode: Decode, *, unified: bool) -> Recorder | None:
    """Of a context that has made a few passes; None where recordings cannot be had, or a trial of
    them fails."""
    found = recordings.find(handle)
    if found is None:
        return None
    try:
        return recorder_of(found, decode, unified=unified)
    except BaseException as error:
        found.close()
        if not isinstance(error, DecodeError):
            raise
        log.info("recordings of passes are left to llama.cpp: %s", error)
        return None


def recorder_of(kept: Shelf, decode: Decode, *, unified: bool = False) -> Recorder | None:
    """None where recordings do not do what they should, which a few passes tell. A sequence 0 that
    is empty is used and left for its owner to clear."""
    at = 0

    def run(n: int, rows: int = 1) -> None:
        nonlocal at
        for _ in range(n):
            decode([Span(0, at, [_TOKEN] * rows, 1)])
            at += rows

    def seen(name: str) -> set[int]:
        return {getattr(recording, name) for recording in kept.current()}

    kept.choose("one row")
    run(3)
    single = seen("instance")
    kept.choose(None)
    before = seen("compared")
    run(2)
    launches = seen("compared") == before
    kept.choose("two rows")
    run(3, rows=2)
    double = seen("instance")
    kept.choose("one row")
    before = seen("compared")
    run(1)
    new = [recording for recording in kept.current() if recording.compared not in before]
    repeats = bool(new) and all(r.warm and r.instance in single for r in new)
    if not (any(single) and any(double - single) and launches and repeats):
        kept.close()  # nothing is recorded here, or not as it should be
        return None
    kept.choose(None)
    return Recorder(kept, unified=unified)

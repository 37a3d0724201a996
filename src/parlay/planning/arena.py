"""Where tensors of one pass lie: the peak of a buffer shared by tensors that come and go.

Follows ggml's graph allocator (best fit, in place where an operation allows it); knows no models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A tensor of the pass, made by one operation from others."""

    n_bytes: int
    sources: tuple[Node, ...] = ()
    in_place: bool = False  # may overwrite its first source that nobody else needs
    kept: bool = False  # read after the pass


class Tape:
    """The operations of a pass in the order they run."""

    def __init__(self) -> None:
        self._inputs: list[Node] = []
        self._nodes: list[Node] = []

    def input(self, n_bytes: int) -> Node:
        """A tensor filled before the pass; all of them have a place from the start."""
        self._inputs.append(Node(n_bytes))
        return self._inputs[-1]

    def op(self, n_bytes: int, *sources: Node, in_place: bool = False, kept: bool = False) -> Node:
        """Add an operation. A view of a tensor is that tensor."""
        self._nodes.append(Node(n_bytes, sources, in_place, kept))
        return self._nodes[-1]

    def peak(self, alignment: int) -> int:
        """Bytes the buffer needs."""
        return _Run(self._inputs, self._nodes, alignment).peak


class _Run:
    """One walk over the tape, placing and freeing."""

    def __init__(self, inputs: list[Node], nodes: list[Node], alignment: int) -> None:
        self._arena = Arena(alignment)
        self._uses = Counter(source for node in nodes for source in node.sources)
        self._places: dict[Node, int] = {}
        for node in inputs:
            self._places[node] = self._arena.take(node.n_bytes)
        for node in nodes:
            self._run(node)
        self.peak = self._arena.peak

    def _run(self, node: Node) -> None:
        heir = self._overwritten(node)
        if heir is not None:
            self._places[node] = self._places.pop(heir)
            self._uses[heir] = 0
        elif node.n_bytes:
            self._places[node] = self._arena.take(node.n_bytes)
        for source in node.sources:
            self._uses[source] -= 1
            if self._uses[source] == 0 and not source.kept and source in self._places:
                self._arena.give(self._places.pop(source), source.n_bytes)

    def _overwritten(self, node: Node) -> Node | None:
        if not node.in_place:
            return None
        return next(
            (
                source
                for source in node.sources
                if self._uses[source] == 1
                and not source.kept
                and source.n_bytes == node.n_bytes
                and source in self._places
            ),
            None,
        )


class Arena:
    """A buffer without end; `peak` is how much of it was ever in use."""

    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._free: list[tuple[int, int]] = [(0, _ENDLESS)]  # (offset, size), by offset
        self.peak = 0

    def take(self, n_bytes: int) -> int:
        """Place so many bytes in the smallest gap that holds them, else at the end."""
        size = self._padded(n_bytes)
        gaps = [(n, -at) for at, n in self._free[:-1] if n >= size]
        at = -min(gaps)[1] if gaps else self._free[-1][0]
        i = next(i for i, (offset, _) in enumerate(self._free) if offset == at)
        left = self._free[i][1] - size
        self._free[i : i + 1] = [(at + size, left)] if left else []
        self.peak = max(self.peak, at + size)
        return at

    def give(self, at: int, n_bytes: int) -> None:
        """Free what was taken, joining neighbours."""
        self._free.append((at, self._padded(n_bytes)))
        joined: list[tuple[int, int]] = []
        for offset, size in sorted(self._free):
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((offset, size))
        self._free = joined

    def _padded(self, n_bytes: int) -> int:
        return -(-n_bytes // self._alignment) * self._alignment

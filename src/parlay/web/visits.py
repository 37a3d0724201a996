"""Requests at the door: counted from their first header until they wait for an answer elsewhere.

So that nobody's body is read, parsed or cut into tokens while there is no place for its answer.
Also whose key a request showed. Knows nothing of bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


@dataclass(slots=True, eq=False)
class Visit:
    """One request on its way in."""

    door: Door
    owner: str
    counted: bool = True

    def settle(self) -> None:
        """It waits elsewhere now, or is over; its place at the door is free."""
        if self.counted:
            self.counted = False
            self.door.n_coming -= 1


class Door:
    """One server's."""

    def __init__(self) -> None:
        self.n_coming = 0

    @contextmanager
    def visit(self, owner: str) -> Iterator[None]:
        """A request, from its headers to its end."""
        self.n_coming += 1
        visit = Visit(self, owner)
        token = _current.set(visit)
        try:
            yield
        finally:
            _current.reset(token)
            visit.settle()


def settle() -> str:
    """The request being answered here has found its place; returns whose it is."""
    visit = _current.get()
    if visit is None:
        return ""
    visit.settle()
    return visit.owner

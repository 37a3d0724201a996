"""Requests on their way in: counted from the first header until they wait for an answer elsewhere.

So that nobody's body is read, parsed or cut into tokens while there is no place for its answer.
Also whose key a request showed. Knows nothing of bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_current: ContextVar[Entrant | None] = ContextVar("entrant", default=None)


@dataclass(slots=True, eq=False)
class Entrant:
    """One request on its way in."""

    admission: Admission
    owner: str
    counted: bool = True

    def settle(self) -> None:
        """It waits elsewhere now, or is over; its place is free."""
        if self.counted:
            self.counted = False
            self.admission.n_coming -= 1


class Admission:
    """One server's."""

    def __init__(self) -> None:
        self.n_coming = 0

    @contextmanager
    def enter(self, owner: str) -> Iterator[None]:
        """A request, from its headers to its end."""
        self.n_coming += 1
        entrant = Entrant(self, owner)
        token = _current.set(entrant)
        try:
            yield
        finally:
            _current.reset(token)
            entrant.settle()


def settle() -> str:
    """The request being answered here has found its place; returns whose it is."""
    entrant = _current.get()
    if entrant is None:
        return ""
    entrant.settle()
    return entrant.owner

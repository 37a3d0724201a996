"""Requests under way, each in a task of the loop: when draining ends, all are given up at once.

Knows tasks; what is asked in them, and how it is told, is the exchange's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parlay.front import errors as failures


class UnderWay:
    """Who waits for an engine now."""

    def __init__(self) -> None:
        self.given_up = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait that ends with `shutting_down` where requests are given up, and not as if the
        client had gone."""
        if self.given_up:
            raise _shutting_down()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.given_up:
                raise
            raise _shutting_down() from None
        finally:
            self._tasks.discard(task)

    def give_up(self) -> None:
        self.given_up = True
        for task in self._tasks:
            task.cancel()


def _shutting_down() -> failures.Failure:
    return failures.unavailable("the server is shutting down", "shutting_down")

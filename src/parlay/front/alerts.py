"""Alerts: a log line, a metric and, where wanted, a webhook, once when a trouble begins; and work
that is begun anew should it end, and told meanwhile.

Knows kinds, sentences and tasks; who watches for troubles, and what the work is, is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx

log = logging.getLogger("parlay.alerts")
Work = Callable[[], Coroutine[Any, Any, None]]
_WEBHOOK_TIMEOUT_S = 5.0
_FIRST_S, _LONGEST_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Alert:
    """A trouble that goes on."""

    kind: str
    message: str
    since: float  # seconds since the epoch

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "since": round(self.since, 3)}


class Alerts:
    """What is wrong now, and how often it has been."""

    def __init__(self, webhook: str | None = None) -> None:
        self.webhook = webhook
        self.active: dict[str, Alert] = {}
        self.n_raised: Counter[str] = Counter()
        self._sending: set[asyncio.Task[None]] = set()

    def set(self, kind: str, message: str | None) -> None:
        """Begin a trouble, or end it with None; what goes on already is not told again."""
        if message is None:
            if self.active.pop(kind, None) is not None:
                log.warning("over: %s", kind)
        elif kind not in self.active:
            alert = Alert(kind, message, time.time())
            self.active[kind] = alert
            self.n_raised[kind] += 1
            log.warning("%s: %s", kind, message)
            if self.webhook is not None:
                task = asyncio.get_running_loop().create_task(_send(self.webhook, alert))
                self._sending.add(task)  # the loop itself keeps no reference
                task.add_done_callback(self._sending.discard)


async def _send(url: str, alert: Alert) -> None:
    try:
        async with httpx.AsyncClient(timeout=_WEBHOOK_TIMEOUT_S) as client:
            await client.post(url, json=alert.as_dict())
    except httpx.HTTPError as error:
        log.warning("the alert webhook did not answer: %s", type(error).__name__)


async def keep_running(name: str, work: Work, alerts: Alerts, first_s: float = _FIRST_S) -> None:
    """Run it for ever; each time it ends at once, the next begins later. What one kind of work
    tells is not over when another goes on."""
    wait_s, kind = first_s, f"task: {name}"
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await work()
            problem = "ended"
        except Exception as error:
            log.exception("%s failed", name)
            problem = f"failed ({type(error).__name__})"
        if asyncio.get_running_loop().time() - began > _LONGEST_S:
            wait_s = first_s
        alerts.set(kind, f"{name} {problem} and begins anew in {wait_s:g} s")
        await asyncio.sleep(wait_s)
        alerts.set(kind, None)
        wait_s = min(2 * wait_s, _LONGEST_S)

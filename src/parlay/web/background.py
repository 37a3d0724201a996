"""Work that must go on as long as a server does: begun anew should it end, and told meanwhile.

Knows tasks and alerts, not what the work is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from parlay.web.alerts import Alerts

log = logging.getLogger("parlay.server")
Work = Callable[[], Coroutine[Any, Any, None]]
_FIRST_S, _LONGEST_S = 1.0, 60.0


async def keep_running(name: str, work: Work, alerts: Alerts, first_s: float = _FIRST_S) -> None:
    """Run it for ever; each time it ends at once, the next begins later."""
    wait_s = first_s
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
        kind = f"task: {name}"  # what one of them tells is not over when another goes on
        alerts.set(kind, f"{name} {problem} and begins anew in {wait_s:g} s")
        await asyncio.sleep(wait_s)
        alerts.set(kind, None)
        wait_s = min(2 * wait_s, _LONGEST_S)

"""How a server's live figures look in a terminal: the same as on its page.

Knows snapshots as docs/reference/page.md describes them; text from a server is never
read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Snapshot = Mapping[str, Any]
_BARS = " ▁▂▃▄▅▆▇█"
_DASH = "-"
_WIDTH = 24


def screen(snapshot: Snapshot, course: Sequence[float], route: str = "all") -> RenderableType:
    """Everything, one above the other. `course`: tokens per second of the last ticks."""
    group = chosen(snapshot, route)
    parts: list[RenderableType] = [_head(snapshot, route), _tiles(group, course)]
    parts += [_details(group), _machine(snapshot)]
    parts += [Text(f"! {a['kind']}: {a['message']}", style="bold red") for a in snapshot["alerts"]]
    return Panel(Group(*parts), title="parlay top", border_style="dim")


def chosen(snapshot: Snapshot, route: str) -> Mapping[str, Any]:
    """The figures of one route, or of all; a route without requests has none yet."""
    groups: Sequence[Mapping[str, Any]] = snapshot["groups"]
    found = next((g for g in groups if g["route"] == route), None)
    return found if found is not None else {"now": {}, "recent": {}, "requests": 0, "generated": 0}


def _head(snapshot: Snapshot, route: str) -> Text:
    proposers = " + ".join(snapshot["proposers"]) or "no proposer"
    where = "" if route == "all" else f", route {route}"
    line = f"{snapshot['model']}, {snapshot['mode']}, {proposers}{where}"
    seen = f"up {_span(snapshot['uptime_s'])}, {snapshot['answered']} answered"
    return Text.assemble((line, "bold"), f"   {seen}, {snapshot['viewers']} watching\n")


def _tiles(group: Mapping[str, Any], course: Sequence[float]) -> Table:
    now, recent = group["now"], group["recent"]
    gain = recent.get("speedup")
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(t, style="dim") for t in ("tokens/s", "speed-up", "accepted", "a pass")))
    table.add_row(
        Text(f"{now.get('tokens_per_s', 0.0):.1f}  {spark(course)}", style="bold"),
        Text(_times(gain), style="bold green" if gain and gain >= 1 else "bold"),
        Text(_percent(recent.get("token_acceptance") if recent.get("drafted") else None)),
        Text(f"{recent['acceptance_length']:.2f}" if recent.get("rounds") else _DASH),
    )
    return table


def _details(group: Mapping[str, Any]) -> Table:
    recent = group["recent"]
    table = Table.grid(padding=(0, 2))
    table.add_row()
    shares = recent.get("acceptance_by_position", [])
    for j, share in enumerate(shares[:8], 1):
        table.add_row(Text(f"position {j}", "dim"), _bar(share, "blue"), _percent(share))
    tokens = recent.get("generated", 0)
    if tokens:
        parts = {name: recent[f"{name}_ms"] / tokens for name in ("draft", "verify", "overhead")}
        total = sum(parts.values()) or 1.0
        for name, ms in parts.items():
            table.add_row(Text(name, "dim"), _bar(ms / total, "cyan"), f"{ms:.2f} ms a token")
    fallbacks = recent.get("fallbacks", {})
    for reason, n in sorted(fallbacks.items(), key=lambda item: -item[1]):
        share = n / recent["rounds"]
        table.add_row(Text(f"plain, {reason}", "dim"), _bar(share, "yellow"), f"{n} rounds")
    return table


def _machine(snapshot: Snapshot) -> Table:
    slots, memory = snapshot["slots"], snapshot["memory"]
    busy = [slot for slot in slots if slot["busy"]]
    table = Table.grid(padding=(0, 2))
    table.add_row()
    queue = f"{len(busy)} of {len(slots)} busy, {snapshot['queue']['waiting']} waiting"
    table.add_row(Text("slots", "dim"), _bar(len(busy) / max(1, len(slots)), "green"), queue)
    planned, used = memory["planned_bytes"], memory["used_bytes"]
    share = used / planned if planned else 0.0
    against = f"{_size(used)} of {_size(planned)} planned ({memory['place']})"
    table.add_row(Text("memory", "dim"), _bar(share, "magenta"), against)
    return table


def spark(values: Sequence[float]) -> str:
    """A course in one line."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return ""
    return "".join(_BARS[round(max(0.0, v) / highest * (len(_BARS) - 1))] for v in values)


def _bar(share: float, style: str) -> Text:
    n = round(_WIDTH * min(1.0, max(0.0, share)))
    return Text.assemble(("█" * n, style), ("░" * (_WIDTH - n), "dim"))


def _times(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return _DASH if value is None else f"{100 * value:.0f} %"


def _size(n_bytes: int | None) -> str:
    return "?" if n_bytes is None else f"{n_bytes / (1 << 30):.2f} GiB"


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"

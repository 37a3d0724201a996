"""`parlay ps`: what a server does now, in a terminal, over ssh for instance.

Knows the live routes of docs/reference/page.md; text from a server is never read as markup.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from parlay.cli.common import described
from parlay.errors import BadRequest

EXAMPLE = """
Example: parlay ps

Example: parlay ps http://server:8080 --watch

The key, where one is needed, is taken from PARLAY_API_KEY. Ctrl-C ends --watch.
"""
_COURSE = 60  # ticks
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 24

Snapshot = Mapping[str, Any]


class Unreachable(BadRequest):
    """The server does not answer, or not with live figures."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ps", help=described("What a server does now.", EXAMPLE))(ps)


def ps(
    url: Annotated[str, typer.Argument(help="Of a parlay server.")] = "http://127.0.0.1:8080",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it.")] = False,
    route: Annotated[str, typer.Option(help="Only the requests of one route.")] = "all",
    api_key: Annotated[
        str | None, typer.Option(envvar="PARLAY_API_KEY", help="Where the server asks for one.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Snapshots as JSON, one a line.")
    ] = False,
) -> None:
    """Look once, or watch."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    try:
        client = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT)
        if client.base_url.scheme not in ("http", "https"):
            raise httpx.InvalidURL("no scheme")
    except (httpx.InvalidURL, UnicodeError):
        raise BadRequest(f"{url!r:.80} is no address; try http://127.0.0.1:8080") from None
    with client:
        if not watch:
            snapshot = _snapshot(client)
            if json_output:
                typer.echo(json.dumps(snapshot))
            else:
                Console().print(screen(snapshot, (), route))
        elif json_output:
            for kind, data in events(client):
                if kind == "snapshot":
                    typer.echo(json.dumps(data))
        else:
            _watch(client, route)


def _watch(client: httpx.Client, route: str) -> None:
    """Until Ctrl-C; a server that goes away is waited for."""
    course: deque[float] = deque(maxlen=_COURSE)
    wait_s = _FIRST_WAIT_S
    _snapshot(client)  # a wrong address or key ends it at once
    with Live(Text("waiting for the first figures"), auto_refresh=False) as live:
        while True:
            try:
                for shown in screens(client, course, route):
                    wait_s = _FIRST_WAIT_S
                    live.update(shown, refresh=True)
                lost = "the server ended the stream"
            except Unreachable as error:
                lost = error.message
            live.update(Text(f"{lost}; trying again in {wait_s:g} s"), refresh=True)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def screens(client: httpx.Client, course: deque[float], route: str) -> Iterator[RenderableType]:
    """What is to be shown, as the server tells it."""
    for kind, data in events(client):
        if kind == "history":
            points = [g["points"] for g in data["groups"] if g["route"] == route]
            course.clear()
            course.extend(point["tokens_per_s"] for point in (points[0] if points else ()))
        elif kind == "snapshot":
            course.append(_group(data, route)["now"].get("tokens_per_s", 0.0))
            yield screen(data, course, route)


def _snapshot(client: httpx.Client) -> dict[str, Any]:
    try:
        response = client.get("/live")
        _check(response)
        found = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise _unreachable(client, error) from None
    if not isinstance(found, dict) or "groups" not in found:
        raise Unreachable("this server has no live figures; is it a parlay server?")
    return found


def events(client: httpx.Client) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and content of everything the stream tells."""
    try:
        with client.stream("GET", "/live/stream") as response:
            _check(response)
            kind = "message"
            for line in response.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))
    except (httpx.HTTPError, ValueError) as error:
        raise _unreachable(client, error) from None


def _check(response: httpx.Response) -> None:
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise Unreachable("the server asks for a key; give it in PARLAY_API_KEY or --api-key")
    if response.status_code == 403:
        raise Unreachable("others' requests are shown to admins: use a key of server.admin_keys")
    if response.status_code != httpx.codes.OK:
        raise Unreachable(f"the server answered {response.status_code}; is it a parlay server?")


def _unreachable(client: httpx.Client, error: Exception) -> Unreachable:
    kind = type(error).__name__
    return Unreachable(f"no live figures from {client.base_url} ({kind}); is the server running?")


# -- how it looks: the same figures as on the page ------------------------------------------------


def screen(snapshot: Snapshot, course: Sequence[float], route: str = "all") -> RenderableType:
    """Everything, one above the other. `course`: tokens per second of the last ticks."""
    group = _group(snapshot, route)
    parts: list[RenderableType] = [_head(snapshot, route), _tiles(group, course)]
    parts += [_details(group), _machine(snapshot)]
    parts += [Text(f"! {a['kind']}: {a['message']}", style="bold red") for a in snapshot["alerts"]]
    return Panel(Group(*parts), title="parlay ps", border_style="dim")


def _group(snapshot: Snapshot, route: str) -> Mapping[str, Any]:
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
        Text(f"{recent['acceptance_length']:.2f}" if recent.get("rounds") else "-"),
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
    return "-" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _size(n_bytes: int | None) -> str:
    return "?" if n_bytes is None else f"{n_bytes / (1 << 30):.2f} GiB"


def _span(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"

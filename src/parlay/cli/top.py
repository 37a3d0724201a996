"""`parlay top`: a server's live figures in a terminal, over ssh for instance.

Knows the live routes of docs/reference/page.md; what they look like is another module's business.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from parlay.cli.show_top import chosen, screen
from parlay.errors import BadRequest

EXAMPLE = """
Example: parlay top http://127.0.0.1:8080

Example: parlay top http://server:8080 --once --json

The key, where one is needed, is best given in PARLAY_API_KEY. Ctrl-C ends it.
"""
_COURSE = 60  # ticks
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)


class Unreachable(BadRequest):
    """The server does not answer, or not with live figures."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("top", help="Watch a server: its live figures.", epilog=EXAMPLE)(top)


def top(
    url: Annotated[str, typer.Argument(help="Of a parlay server.")] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str | None, typer.Option(envvar="PARLAY_API_KEY", help="Where the server asks for one.")
    ] = None,
    route: Annotated[str, typer.Option(help="Only the requests of one route.")] = "all",
    once: Annotated[bool, typer.Option("--once", help="Show one snapshot and end.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Snapshots as JSON, one a line.")
    ] = False,
) -> None:
    """Watch."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    try:
        client = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT)
        if client.base_url.scheme not in ("http", "https"):
            raise httpx.InvalidURL("no scheme")
    except (httpx.InvalidURL, UnicodeError):
        raise BadRequest(f"{url!r:.80} is no address; try http://127.0.0.1:8080") from None
    with client:
        if once:
            _show_once(_snapshot(client), route, json_output)
        elif json_output:
            for kind, data in _events(client):
                if kind == "snapshot":
                    typer.echo(json.dumps(data))
        else:
            _watch(client, route)


def _show_once(snapshot: dict[str, Any], route: str, json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps(snapshot))
    else:
        Console().print(screen(snapshot, (), route))


def _watch(client: httpx.Client, route: str) -> None:
    """Until Ctrl-C; a server that goes away is waited for."""
    course: deque[float] = deque(maxlen=_COURSE)
    wait_s = _FIRST_WAIT_S
    _snapshot(client)  # a wrong address or key ends it at once
    with Live(Text("waiting for the first figures"), auto_refresh=False) as live:
        while True:
            try:
                for kind, data in _events(client):
                    wait_s = _FIRST_WAIT_S
                    _take(kind, data, course, route, live.update)
                lost = "the server ended the stream"
            except Unreachable as error:
                lost = error.message
            live.update(Text(f"{lost}; trying again in {wait_s:g} s"), refresh=True)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _take(
    kind: str, data: dict[str, Any], course: deque[float], route: str, show: Callable[..., None]
) -> None:
    if kind == "history":
        points = [g["points"] for g in data["groups"] if g["route"] == route]
        course.clear()
        course.extend(point["tokens_per_s"] for point in (points[0] if points else ()))
    elif kind == "snapshot":
        course.append(chosen(data, route)["now"].get("tokens_per_s", 0.0))
        show(screen(data, course, route), refresh=True)


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


def _events(client: httpx.Client) -> Iterator[tuple[str, dict[str, Any]]]:
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
    if response.status_code != httpx.codes.OK:
        raise Unreachable(f"the server answered {response.status_code}; is it a parlay server?")


def _unreachable(client: httpx.Client, error: Exception) -> Unreachable:
    kind = type(error).__name__
    return Unreachable(f"no live figures from {client.base_url} ({kind}); is the server running?")

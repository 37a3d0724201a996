"""The page at `/` and its files: plain HTML, CSS and modules from the package, plotly from its own.

Knows files and headers, no figures. The policy allows nothing inline: scripts and styles are files
of this server, and text can never become either.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from parlay import __version__
from parlay.front.errors import Failure

router = APIRouter(include_in_schema=False)

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Plotly writes its rules into an empty style element, which has the hash of an empty text.
_EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY}; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# Its styles for maps carry an id and are not written where an element has that id already.
_STYLE_ID = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')


@router.get("/")
async def page() -> Response:
    ids = await asyncio.to_thread(_style_ids)
    marks = "".join(f'<meta name="plotly-style" id="{name}">' for name in ids)
    html = _file("index.html").decode()
    html = html.replace("<!-- plotly -->", marks).replace("<!-- version -->", __version__)
    return Response(html, headers=_HEADERS, media_type=_TYPES[".html"])


@router.get("/page/plotly.min.js")
async def plotly(request: Request) -> Response:
    headers = {**_HEADERS, "Cache-Control": "max-age=86400"}
    script = await asyncio.to_thread(_plotly)
    if "gzip" in request.headers.get("accept-encoding", ""):
        script = await asyncio.to_thread(_zipped)
        headers["Content-Encoding"] = "gzip"
    return Response(script, headers=headers, media_type=_TYPES[".js"])


@router.get("/page/{name}")
async def asset(name: str) -> Response:
    if name not in _names():
        raise Failure(404, "the page has no such file", code="not_found")
    suffix = name[name.rindex(".") :]
    return Response(_file(name), headers=_HEADERS, media_type=_TYPES[suffix])


@cache
def _names() -> frozenset[str]:
    """What there is: a name from outside never becomes a path."""
    folder = resources.files("parlay.front") / "page"
    return frozenset(entry.name for entry in folder.iterdir() if entry.is_file())


@cache
def _file(name: str) -> bytes:
    return (resources.files("parlay.front") / "page" / name).read_bytes()


def _plotly() -> bytes:
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def _zipped() -> bytes:
    """A quarter of the size, for phones; made once, when first asked for."""
    return gzip.compress(_plotly(), 6, mtime=0)


@cache
def _style_ids() -> tuple[str, ...]:
    return tuple(sorted({found.decode() for found in _STYLE_ID.findall(_plotly())}))

"""The shell of a page: one file, no network, nothing that was not escaped.

Knows HTML and CSS, no results. Scripts run by their hash only, so that text can never become one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

# Okabe and Ito's palette: told apart by all kinds of colour vision, in this order.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")


def escape(value: object) -> str:
    """Text for HTML, attributes included."""
    return html.escape(str(value), quote=True)


def embed(value: Any) -> str:
    """JSON for inside a script element: no character in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def page(
    title: str, body: str, scripts: Sequence[str] = (), data: Any = None, css: str = ""
) -> str:
    """A whole document. `data` is read by scripts from the element with id "data"."""
    policy = _policy(scripts)
    css = (resources.files("parlay.bench") / "data" / "page.css").read_text("utf-8") + css
    inline = "".join(f"<script>{script}</script>\n" for script in scripts)
    embedded = f'<script type="application/json" id="data">{embed(data)}</script>\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n"
        f"{embedded if data is not None else ''}{inline}</body>\n</html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    # Styles are inline in plots; they cannot run anything.
    return (
        f"default-src 'none'; script-src {hashes or chr(39) + 'none' + chr(39)};"
        " style-src 'unsafe-inline'; img-src data: blob:"
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> str:
    """An HTML table of escaped cells; `numbers` are the columns set to the right."""

    def cell(tag: str, index: int, value: object) -> str:
        mark = ' class="n"' if index in numbers else ""
        return f"<{tag}{mark}>{escape(value)}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(heads))
    lines = "".join(
        "<tr>" + "".join(cell("td", i, v) for i, v in enumerate(row)) + "</tr>\n" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}</tbody></table></div>"
    )

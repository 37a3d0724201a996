"""Keeps people out of results: finds and removes paths, addresses and names of hosts.

Pure text; knows no record beyond strings inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

# What no figure needs and nobody wants published. Each with the word used in a refusal.
LEAKS: Final = (
    ("a web or network address", re.compile(r"\b[a-z][a-z0-9+.-]*://", re.I)),
    (
        "a path",
        re.compile(r"(?:^|[\s\"'=(:,])(?:~|\.{0,2})/[\w.-]+/[\w./-]*|\b[A-Za-z]:[\\/]|\\\\\w"),
    ),
    ("a mail address", re.compile(r"[\w.+-]+@[\w-]+\.\w+")),
    ("a network address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d+|\blocalhost\b", re.I)),
    ("HTML", re.compile(r"<[/!a-z]", re.I)),
)
_HIDDEN: Final = "(removed)"
_TOKENS: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]*://\S+|(?:~|\.{0,2})/[\w.-]+/[\w./-]*|\b[A-Za-z]:[\\/]\S+|\\\\\S+"
    r"|[\w.+-]+@[\w-]+\.\w+|\b(?:\d{1,3}\.){3}\d{1,3}:\d+|\blocalhost(?::\d+)?",
    re.I,
)
_TAG: Final = re.compile(r"<(?=[/!a-z])", re.I)


def leak(text: str) -> str | None:
    """What kind of thing this text gives away; None if nothing is found."""
    return next((what for what, pattern in LEAKS if pattern.search(text)), None)


def scrub(text: str) -> str:
    """The text without such things; what looks like a tag is made to look like none."""
    return _TAG.sub("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", _TOKENS.sub(_HIDDEN, text))


def scrub_all(value: Any) -> Any:
    """The same inside JSON values; keys stay."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [scrub_all(item) for item in value]
    if isinstance(value, dict):
        return {key: scrub_all(item) for key, item in value.items()}
    return value


def leaks(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every place inside JSON values that gives something away: (place, what)."""
    if isinstance(value, str):
        found = leak(value)
        if found:
            yield where, found
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaks(item, f"{where}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaks(str(key), f"{where}.{key}"[:80])
            yield from leaks(item, f"{where}.{key}"[:80])

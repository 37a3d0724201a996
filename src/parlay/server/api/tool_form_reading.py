"""Reads the form of tool calls off a template: it writes one, and the marks around it are the form.

Forms that are known are taken from their table, for what they know better; any other is put
together from what stands around the name and the arguments. Knows no model by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parlay.errors import BadRequest
from parlay.server.api.tool_formats import FORMATS, LLAMA, ToolFormat

NAME, KEY, VALUE = "probe_function", "probe_key", "probe value"
_CALL = {"name": NAME, "arguments": {KEY: VALUE}}
CONVERSATION: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call12345", "type": "function", "function": _CALL}],
    },
    {"role": "tool", "tool_call_id": "call12345", "name": NAME, "content": "!"},
)
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "?",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}},
    },
}
_MARK = r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,40}\]"
_OBJECT = re.compile(
    rf'(?P<open>{_MARK})\s*(?P<list>\[)?\{{"name": "{NAME}", "(?P<key>\w+)": '
    rf'\{{"{KEY}": "{VALUE}"\}}[^{{}}]*\}}\]?\s*(?P<close>{_MARK})?'
)
_NAMED = re.compile(
    rf'(?P<open>{_MARK}){NAME}(?P<middle>{_MARK})\{{"{KEY}": "{VALUE}"\}}(?P<close>{_MARK})?'
)
_TAGGED = re.compile(
    rf'(?P<begin><[^<>\s]{{1,60}}>)?\s*<(?P<tag>[^\s<>="]{{1,40}}) name="{NAME}">\s*'
    rf'<(?P<arg>[^\s<>="]{{1,40}}) name="{KEY}"(?P<typed> string="true")?>{VALUE}</(?P=arg)>\s*'
    rf"</(?P=tag)>\s*(?P<end></[^<>\s]{{1,60}}>)?"
)


def format_shown(render: Callable[..., str]) -> ToolFormat | None:
    """The form in which a template writes an earlier call; None: it writes none."""
    shown = _written(render)
    known = (form for form in FORMATS if all(mark in shown for mark in form.shown))
    tagged = _tagged(shown)
    return tagged or next(known, None) or _object(shown) or _named(shown)


def format_mentioned(mentions: Callable[[str], bool]) -> ToolFormat | None:
    """The form whose marks stand in a template that writes no call when it is asked to."""
    marked = (form for form in FORMATS if form is not LLAMA)  # its marks are in every schema
    return next((form for form in marked if all(map(mentions, form.shown))), None)


def _written(render: Callable[..., str]) -> str:
    """What a template makes of a call. Instructions before it may show several forms: not those."""
    try:
        text = render(CONVERSATION, tools=[TOOL])
        before = render(CONVERSATION[:1], tools=[TOOL])
    except BadRequest:  # some refuse conversations that others ask for
        return ""
    pairs = enumerate(zip(text, before, strict=False))
    n_same = next((i for i, (a, b) in pairs if a != b), len(before))
    opened = max(text.rfind("<", 0, n_same), text.rfind("[", 0, n_same))
    if opened >= 0 and not re.search(r"[>\]]", text[opened:n_same]):
        n_same = opened  # two marks that begin alike
    return text[n_same:] if NAME in text[n_same:] else ""


def _object(shown: str) -> ToolFormat | None:
    found = _OBJECT.search(shown)
    if found is None:
        return None
    return ToolFormat(
        "object",
        "json",
        (),
        open=found["open"],
        close=_closing(found["open"], found["close"]),
        listed=found["list"] is not None,
        arguments=found["key"],
    )


def _named(shown: str) -> ToolFormat | None:
    found = _NAMED.search(shown)
    if found is None:
        return None
    close = found["close"] or ""
    return ToolFormat("named", "named", (), open=found["open"], middle=found["middle"], close=close)


def _tagged(shown: str) -> ToolFormat | None:
    """Every argument in a tag with its name."""
    found = _TAGGED.search(shown)
    if found is None:
        return None
    tag, arg, end = found["tag"], found["arg"], found["end"] or ""
    around = bool(end) and found["begin"] is not None and end[2:] == found["begin"][1:]
    return ToolFormat(
        "tagged",
        "tagged",
        (),
        open=f'<{tag} name="',
        middle='">',
        close=f"</{tag}>",
        begin=found["begin"] if around else "",
        end=end if around else "",
        key_open=f'<{arg} name="',
        key_close='">',
        value_close=f"</{arg}>",
        typed=found["typed"] is not None,
    )


def _closing(opened: str, close: str | None) -> str:
    """The mark after a call, if it is the other half of the one before it."""
    word = re.sub(r"\W", "", opened).lower()
    other = re.sub(r"\W", "", close or "").lower()
    return close or "" if other and (word in other or other in word) else ""

"""How one model's template writes: the form of its tool calls, the marks of its thinking.

Read off the template by rendering it, once, when the model is loaded. Knows no model by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parlay.ask import CallForm
from parlay.chat.forms import FALLBACK, FORMATS, LLAMA, marks_of
from parlay.decoding.reasoning import FORMS, THINK, Marks
from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary

_ASK = {"role": "user", "content": "?"}
_REPLY = {"role": "assistant", "content": "!"}
# Variables with which templates switch thinking off.
SWITCHES = ("enable_thinking", "thinking")
EFFORTS = ("reasoning_effort", "thinking_effort")


class Template(Protocol):
    """A conversation as its model was trained to read it."""

    def mentions(self, text: str) -> bool:
        """Whether a text stands in the template itself."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. Further keywords reach the template as they are."""


@dataclass(frozen=True, slots=True)
class Style:
    """What is known of a template."""

    form: CallForm = FALLBACK
    marks: Marks = THINK
    can_think: bool = False
    knows_tools: bool = False  # it writes what tools there are
    switches: tuple[str, ...] = ()  # variables that switch thinking off
    efforts: tuple[str, ...] = ()  # variables that say how much to think
    verbosity: bool = False
    later_system: bool = True  # a system message may stand further down
    same_twice: bool = True  # two messages of one role may follow each other
    control: Mapping[str, int] = field(default_factory=dict)  # texts that are one control token

    def shown(self, *, tools: bool) -> frozenset[int]:
        """Control tokens that count as text in an answer."""
        marks = (self.marks.open, self.marks.close, *(marks_of(self.form) if tools else ()))
        return frozenset(
            token for word, token in self.control.items() if any(word in mark for mark in marks)
        )


def style_of(template: Template | None, vocabulary: Vocabulary) -> Style:
    """Look at a template from all sides."""
    if template is None:
        return Style()
    form = form_shown(template.render) or form_mentioned(template.mentions) or FALLBACK
    marks = next((m for m in FORMS if template.mentions(m.close) and _opens(template, m)), THINK)
    switches = tuple(name for name in SWITCHES if _acts(template, name))
    words = {word for word in vocabulary.control_words() if word}
    texts = (marks.open, marks.close, *marks_of(form))
    wanted = {word for word in words if any(word in text for text in texts)}
    return Style(
        form=form,
        marks=marks,
        can_think=bool(switches) or form.kind == "channels" or _begins(template, marks),
        knows_tools=_rendered(template, _ASK, tools=[TOOL]) != _rendered(template, _ASK),
        switches=switches,
        efforts=tuple(name for name in EFFORTS if template.mentions(name)),
        verbosity=template.mentions("verbosity"),
        later_system=_takes(template, _ASK, _REPLY, {"role": "system", "content": "!"}, _ASK),
        same_twice=_takes(template, _ASK, _ASK),
        control={word: _token(vocabulary, word) for word in wanted},
    )


def _token(vocabulary: Vocabulary, word: str) -> int:
    return vocabulary.tokenize(word, bos=False)[0]


def _opens(template: Template, marks: Marks) -> bool:
    return template.mentions(marks.open.rstrip("\n")) or template.mentions(
        marks.open.split("\n")[0]
    )


def _begins(template: Template, marks: Marks) -> bool:
    return marks.open in _rendered(template, _ASK)


def _acts(template: Template, switch: str) -> bool:
    """Whether a variable makes another prompt of the same conversation."""
    try:
        options: list[dict[str, Any]] = [{switch: False}, {switch: True}]
        off, on = (template.render((_ASK,), **option) for option in options)
        return off != on
    except BadRequest:  # some templates refuse so short a conversation
        return False


def _takes(template: Template, *messages: Mapping[str, str]) -> bool:
    return bool(_rendered(template, *messages)) or not _rendered(template, _ASK)


def _rendered(template: Template, *messages: Mapping[str, str], **options: Any) -> str:
    try:
        return template.render(messages, **options)
    except BadRequest:
        return ""


# -- the form of calls ----------------------------------------------------------------------------

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


def form_shown(render: Callable[..., str]) -> CallForm | None:
    """The form in which a template writes an earlier call; None: it writes none."""
    shown = _written(render)
    known = (form for form in FORMATS if all(mark in shown for mark in form.shown))
    tagged = _tagged(shown)
    return tagged or next(known, None) or _object(shown) or _named(shown)


def form_mentioned(mentions: Callable[[str], bool]) -> CallForm | None:
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


def _object(shown: str) -> CallForm | None:
    found = _OBJECT.search(shown)
    if found is None:
        return None
    return CallForm(
        name="object",
        kind="json",
        open=found["open"],
        close=_closing(found["open"], found["close"]),
        listed=found["list"] is not None,
        arguments=found["key"],
    )


def _named(shown: str) -> CallForm | None:
    found = _NAMED.search(shown)
    if found is None:
        return None
    close = found["close"] or ""
    return CallForm(
        name="named", kind="named", open=found["open"], middle=found["middle"], close=close
    )


def _tagged(shown: str) -> CallForm | None:
    """Every argument in a tag with its name."""
    found = _TAGGED.search(shown)
    if found is None:
        return None
    tag, arg, end = found["tag"], found["arg"], found["end"] or ""
    around = bool(end) and found["begin"] is not None and end[2:] == found["begin"][1:]
    return CallForm(
        name="tagged",
        kind="tagged",
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

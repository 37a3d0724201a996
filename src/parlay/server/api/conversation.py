"""Conversations become prompts: messages and tools through the model's own template.

Knows templates and tokens; knows neither sampling nor the worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.server.api import tools
from parlay.server.api.control_words import NO_WORDS, ControlWords, Part
from parlay.server.api.infill import infill_tokens
from parlay.server.api.template_style import style_of
from parlay.server.api.tools import ToolFunction
from parlay.web.schema import ChatRequest, InfillFile, Message, NamedTool, Tool
from parlay.web.unknown import Told


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target will read, and what it means for the answer."""

    tokens: tuple[int, ...]
    thinking: bool = False  # the prompt's end opened the thinking
    reasoning: bool = False  # the answer will, or may, start with thinking


class Conversation:
    """One model's way to read conversations."""

    def __init__(self, model: Model) -> None:
        self.vocabulary = model.vocabulary
        self._words = ControlWords(model.vocabulary.control_words())
        self._template = model.chat_template()
        self.style = style_of(self._template, model.vocabulary)

    def prompt(self, body: ChatRequest, *, parse_special: bool = False) -> Prompt:
        """Render a conversation and cut it into tokens.

        `parse_special`: control words that a client wrote are marks, as the template's own are.
        """
        extra, parts = self._read(body, parse_special)
        end, style = parts[-1][0], self.style
        thinking = end.rstrip().endswith(style.marks.open.rstrip())
        wants = all(extra.get(name, True) for name in style.switches)
        tokens = self.vocabulary.tokenize_parts(parts)
        # Most templates write the beginning-of-text mark themselves; it must not come twice.
        if tokens[:2] == [self.vocabulary.bos] * 2:
            tokens = tokens[1:]
        return Prompt(tuple(tokens), thinking, thinking or (style.can_think and wants))

    def text(self, body: ChatRequest) -> str:
        """A conversation as the template writes it."""
        return "".join(text for text, _ in self._read(body, parse_special=False)[1])

    def _read(self, body: ChatRequest, parse_special: bool) -> tuple[dict[str, Any], list[Part]]:
        extra = {**self._reasoning(body), **_template_options(body.chat_template_kwargs or {})}
        hidden = (NO_WORDS if parse_special else self._words).hidden()
        messages = [hidden.hide(message) for message in self._messages(body.messages)]
        text = self._render(messages, hidden.hide(offered(body)), hidden.hide(extra))
        return extra, hidden.parts(text)

    def plain(self, prompt: str | list[int]) -> Prompt:
        """A prompt as it is."""
        if isinstance(prompt, str):
            return Prompt(tuple(self.vocabulary.tokenize(prompt)))
        if any(not 0 <= token < self.vocabulary.size for token in prompt):
            raise BadRequest(f"prompt holds a token outside 0 to {self.vocabulary.size - 1}")
        return Prompt(tuple(prompt))

    def gap(self, before: str | list[int], after: str, files: Sequence[InfillFile] = ()) -> Prompt:
        """What stands around a gap that is to be filled."""
        if not isinstance(before, str):
            raise BadRequest("suffix needs a prompt that is text")
        named = [(file.filename, file.text) for file in files]
        return Prompt(infill_tokens(self.vocabulary, before, after, named))

    def continuation(self, text: str) -> tuple[int, ...]:
        """Text that goes on from another, such as an answer that is expected."""
        return tuple(self.vocabulary.continuation(text))

    def _render(
        self, messages: list[dict[str, Any]], offered: list[dict[str, Any]], extra: dict[str, Any]
    ) -> str:
        if self._template is None:
            raise BadRequest("this model has no chat template; use /v1/completions")
        if not offered:
            return self._template.render(messages, **extra)
        text = self._template.render(messages, tools=offered, **extra)
        if text != self._template.render(messages, **extra):
            return text
        # The template knows no tools: explain them in words, and write earlier calls out.
        system = {"role": "system", "content": tools.instruction(offered)}
        return self._template.render([system, *map(tools.spelled, messages)], **extra)

    def _reasoning(self, body: ChatRequest) -> dict[str, Any]:
        """What a template that knows it is told about how much to think, and to say."""
        style, effort = self.style, body.reasoning_effort
        off = effort == "none" or body.reasoning_budget == 0
        found: dict[str, Any] = dict.fromkeys(style.switches, False) if off else {}
        if effort is not None and effort != "none":
            found |= dict.fromkeys(style.efforts, effort) | dict.fromkeys(style.switches, True)
        if body.verbosity is not None and style.verbosity:
            found["verbosity"] = body.verbosity
        return found

    def told(self, body: ChatRequest) -> tuple[Told, ...]:
        """Fields that this model's template does not know."""
        style = self.style
        lost = []
        if body.reasoning_effort is not None and not (style.efforts or style.switches):
            lost.append("reasoning_effort")
        if body.verbosity is not None and not style.verbosity:
            lost.append("verbosity")
        return tuple(Told(name, f"this model's chat template knows no {name}") for name in lost)

    def _messages(self, given: Sequence[Message]) -> list[dict[str, Any]]:
        """As this template takes them: some take a system message at the beginning only, and some
        no two turns of one role in a row."""
        found: list[dict[str, Any]] = []
        for message in map(_plain, given):
            last = found[-1] if found else None
            leads = all(one["role"] == "system" for one in found)
            if message["role"] == "system" and not leads and not self.style.later_system:
                message["role"] = "user"
            joins = message["role"] == "system" or not self.style.same_twice
            if last is not None and joins and _alike(last, message):
                last["content"] = f"{last['content']}\n\n{message['content']}"
            else:
                found.append(message)
        return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Two turns of one role that hold nothing but text."""
    plain = all(message.keys() <= {"role", "content"} for message in (one, other))
    return plain and one["role"] == other["role"]


def offered(body: ChatRequest) -> list[dict[str, Any]]:
    """The tools the model may see, in the template's form."""
    if not body.tools or body.tool_choice == "none":
        return []
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    found = [_shown(tool) for tool in body.tools if named in (None, tool.function.name)]
    if not found:
        raise BadRequest(f"tool_choice names {named!r}, which is not among tools")
    return found


def functions_of(body: ChatRequest) -> tuple[ToolFunction, ...]:
    """The tools the model may call."""
    names = {tool["function"]["name"] for tool in offered(body)}
    return tuple(
        ToolFunction(tool.function.name, tool.function.parameters or {}, bool(tool.function.strict))
        for tool in body.tools or ()
        if tool.function.name in names
    )


def _shown(tool: Tool) -> dict[str, Any]:
    """What the model reads of a tool: nothing that is meant for the server."""
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = tool.function.parameters or {}
    return {"type": "function", "function": function}


def _template_options(given: Mapping[str, Any]) -> dict[str, Any]:
    own = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"} & given.keys()
    if own:
        raise BadRequest(f"chat_template_kwargs may not set {min(own)}")
    if not all(name.isidentifier() for name in given):
        raise BadRequest("chat_template_kwargs must have names as keys")
    return dict(given)


def _plain(message: Message) -> dict[str, Any]:
    """A message as templates expect it: content is one text, call arguments are objects."""
    unread = {"annotations", "refusal", *(message.model_extra or {})}
    found = message.model_dump(exclude_none=True, exclude=unread)
    found["role"] = "system" if message.role == "developer" else message.role
    if isinstance(message.content, list):
        found["content"] = "".join(part.text or part.refusal for part in message.content)
    found.setdefault("content", message.refusal or "")
    for call in found.get("tool_calls", ()):
        call["function"]["arguments"] = _as_object(call["function"]["arguments"])
    return found


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments

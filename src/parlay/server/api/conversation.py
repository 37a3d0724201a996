"""Conversations become prompts: messages and tools through the model's own template.

Knows templates and tokens; knows neither sampling nor the worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlay.decoding.reasoning import OPEN
from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.server.api import tools
from parlay.server.api.control_words import NO_WORDS, ControlWords
from parlay.web.schema import ChatRequest, Message, NamedTool, Tool

_PROBE = ({"role": "user", "content": "?"},)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target will read, and what it means for the answer."""

    tokens: tuple[int, ...]
    thinking: bool = False  # the prompt's end opened the thinking
    reasoning: bool = False  # the answer will, or may, start with thinking


class Conversation:
    """One model's way to read conversations."""

    def __init__(self, model: Model) -> None:
        self._vocabulary = model.vocabulary
        self._words = ControlWords(model.vocabulary.control_words())
        self._template = model.chat_template()
        self.can_think = self._probe_thinking()

    def prompt(self, body: ChatRequest, *, parse_special: bool = False) -> Prompt:
        """Render a conversation and cut it into tokens.

        `parse_special`: control words that a client wrote are marks, as the template's own are.
        """
        extra = _template_options(body.chat_template_kwargs or {})
        hidden = (NO_WORDS if parse_special else self._words).hidden()
        messages = [hidden.hide(_plain(message)) for message in body.messages]
        text = self._render(messages, hidden.hide(offered(body)), hidden.hide(extra))
        thinking = text.rstrip().endswith(OPEN)
        wants = bool(extra.get("enable_thinking", True))
        tokens = self._vocabulary.tokenize_parts(hidden.parts(text))
        # Most templates write the beginning-of-text mark themselves; it must not come twice.
        if tokens[:2] == [self._vocabulary.bos] * 2:
            tokens = tokens[1:]
        return Prompt(tuple(tokens), thinking, thinking or (self.can_think and wants))

    def plain(self, prompt: str | list[int] | list[str]) -> Prompt:
        """A prompt as it is."""
        if isinstance(prompt, str):
            return Prompt(tuple(self._vocabulary.tokenize(prompt)))
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return Prompt(tuple(self._vocabulary.tokenize(prompt[0])))
        tokens = [token for token in prompt if isinstance(token, int)]
        if len(tokens) != len(prompt):
            raise BadRequest("prompt is a list of several texts; send one request for each")
        if any(not 0 <= token < self._vocabulary.size for token in tokens):
            raise BadRequest(f"prompt holds a token outside 0 to {self._vocabulary.size - 1}")
        return Prompt(tuple(tokens))

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
        # The template knows no tools: explain them in words.
        system = {"role": "system", "content": tools.instruction(offered)}
        return self._template.render([system, *messages], **extra)

    def _probe_thinking(self) -> bool:
        """Whether the template has a switch for thinking: it then writes another prompt."""
        if self._template is None:
            return False
        try:
            plain = self._template.render(_PROBE)
            return OPEN in plain or plain != self._template.render(_PROBE, enable_thinking=False)
        except BadRequest:  # some templates refuse so short a conversation
            return False


def offered(body: ChatRequest) -> list[dict[str, Any]]:
    """The tools the model may see, in the template's form."""
    if not body.tools or body.tool_choice == "none":
        return []
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    found = [_shown(tool) for tool in body.tools if named in (None, tool.function.name)]
    if not found:
        raise BadRequest(f"tool_choice names {named!r}, which is not among tools")
    return found


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

"""Conversations become prompts: messages and tools through the model's own template, into tokens.

Knows templates and tokens; knows neither sampling nor the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from parlay.ask import Ask, Gap, Remark, ToolFunction
from parlay.chat.control_words import NO_WORDS, ControlWords, Part
from parlay.chat.style import Template, style_of
from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary

# For templates that know no tools: the Hermes instruction in our own words.
_INSTRUCTION = (
    "You can call these functions. To call one, answer with nothing but\n"
    '<tool_call>\n{"name": FUNCTION, "arguments": OBJECT}\n</tool_call>\n'
    "Functions, as JSON:\n"
)
# What templates may read of a message; all else is the client's own.
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_OWN = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target will read, and what it means for the answer."""

    tokens: tuple[int, ...]
    thinking: bool = False  # the prompt's end opened the thinking
    reasoning: bool = False  # the answer will, or may, start with thinking


class Conversation:
    """One model's way to read conversations."""

    def __init__(self, vocabulary: Vocabulary, template: Template | None) -> None:
        self.vocabulary = vocabulary
        self._template = template
        self._words = ControlWords(vocabulary.control_words())
        self.style = style_of(template, vocabulary)

    def prompt(self, ask: Ask, *, trusted: bool = False) -> Prompt:
        """A conversation, rendered once and cut into tokens; it may be longer than fits. `trusted`:
        control words that a client wrote are marks, as the template's own are."""
        options = self._options(ask)
        parts = self._read(ask, options, NO_WORDS if trusted else self._words)
        style = self.style
        thinking = parts[-1][0].rstrip().endswith(style.marks.open.rstrip())
        wants = all(options.get(name, True) for name in style.switches)
        tokens = self.vocabulary.tokenize_parts(parts)
        # Most templates write the beginning-of-text mark themselves; it must not come twice.
        if tokens[:2] == [self.vocabulary.bos] * 2:
            tokens = tokens[1:]
        return Prompt(tuple(tokens), thinking, thinking or (style.can_think and wants))

    def text(self, ask: Ask) -> str:
        """A conversation as the template writes it."""
        return "".join(text for text, _ in self._read(ask, self._options(ask), self._words))

    def _read(self, ask: Ask, options: dict[str, Any], words: ControlWords) -> list[Part]:
        """Rendered, in parts; each with whether control words in it are marks."""
        if self._template is None:
            raise BadRequest("this model has no chat template; use /v1/completions")
        messages = self._fitted([plain(message) for message in ask.messages or ()])
        hidden = words.hidden()
        tools = [hidden.hide(_shown(tool)) for tool in offered(ask)]
        messages = [hidden.hide(message) for message in messages]
        options = hidden.hide(options)
        if not tools:
            text = self._template.render(messages, **options)
        elif self.style.knows_tools:
            text = self._template.render(messages, tools=tools, **options)
        else:  # explain them in words, and write earlier calls out
            first = {"role": "system", "content": _instruction(tools)}
            text = self._template.render([first, *map(_spelled, messages)], **options)
        return hidden.parts(text)

    def plain(self, given: str | Sequence[int]) -> Prompt:
        """A prompt as it is."""
        if isinstance(given, str):
            return Prompt(tuple(self.vocabulary.tokenize(given)))
        if any(not 0 <= token < self.vocabulary.size for token in given):
            raise BadRequest(f"prompt holds a token outside 0 to {self.vocabulary.size - 1}")
        return Prompt(tuple(given))

    def gap(self, gap: Gap) -> Prompt:
        """What stands around a gap that is to be filled, between the model's marks for that."""
        marks, vocabulary = self.vocabulary.infill, self.vocabulary
        if marks is None:
            raise BadRequest(
                "this model has no marks for filling in the middle: suffix and /infill need a model"
                " that was trained for it"
            )

        def text(given: str) -> list[int]:
            return vocabulary.tokenize(given, bos=False, special=False)

        found = [vocabulary.bos] if vocabulary.adds_bos else []
        for name, content in gap.files:
            if marks.file is None:
                raise BadRequest("this model has no mark between files; leave input_extra out")
            found += [marks.file, *text(f"{name}\n{content}\n")]
        found += [marks.before, *text(gap.before), marks.after, *text(gap.after), marks.middle]
        return Prompt((*found, *text(gap.begun)))

    def remarks(self, ask: Ask) -> tuple[Remark, ...]:
        """Fields that this model's template does not know."""
        style, lost = self.style, []
        if ask.reasoning_effort is not None and not (style.efforts or style.switches):
            lost.append("reasoning_effort")
        if ask.verbosity is not None and not style.verbosity:
            lost.append("verbosity")
        return tuple(Remark(name, f"this model's chat template knows no {name}") for name in lost)

    def _options(self, ask: Ask) -> dict[str, Any]:
        """What a template that knows it is told about how much to think, and to say."""
        style, effort = self.style, ask.reasoning_effort
        off = effort == "none" or ask.reasoning_budget == 0
        found: dict[str, Any] = dict.fromkeys(style.switches, False) if off else {}
        if effort is not None and effort != "none":
            found |= dict.fromkeys(style.efforts, effort) | dict.fromkeys(style.switches, True)
        if ask.verbosity is not None and style.verbosity:
            found["verbosity"] = ask.verbosity
        given = ask.template_options
        if own := _OWN & given.keys():
            raise BadRequest(f"chat_template_kwargs may not set {min(own)}")
        if not all(name.isidentifier() for name in given):
            raise BadRequest("chat_template_kwargs must have names as keys")
        return {**found, **given}

    def _fitted(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As this template takes them: some take a system message at the beginning only, and some
        no two turns of one role in a row."""
        found: list[dict[str, Any]] = []
        for message in messages:
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


def offered(ask: Ask) -> tuple[ToolFunction, ...]:
    """The functions that the model may see, and call."""
    if not ask.tools or ask.tool_choice == "none":
        return ()
    found = tuple(tool for tool in ask.tools if ask.tool_named in (None, tool.name))
    if not found:
        raise BadRequest(f"tool_choice names {ask.tool_named!r}, which is not among tools")
    return found


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: content is one text, call arguments are objects."""
    found = {key: message[key] for key in _KEYS if message.get(key) is not None}
    role = found.get("role")
    if not isinstance(role, str):
        raise BadRequest("a message has no role; give user, assistant, system or tool")
    found["role"] = "system" if role == "developer" else role
    content = found.get("content", "")
    if not isinstance(content, str):
        content = "".join(map(_part, content))
    found["content"] = content or str(message.get("refusal") or "")
    if "tool_calls" in found:
        found["tool_calls"] = [_call(call) for call in found["tool_calls"]]
    return found


def _part(part: Any) -> str:
    text = part.get("text") or part.get("refusal") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and isinstance(text, str | None):
        return text or ""
    raise BadRequest("a message's content is text, or a list of parts with text")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        with suppress(ValueError):  # what is no object the template writes as it is
            arguments = json.loads(arguments)
    known = {"id": call.get("id") or "", "type": "function"}
    return {**known, "function": {"name": function["name"], "arguments": arguments}}


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Two turns of one role that hold nothing but text."""
    bare = all(message.keys() <= {"role", "content"} for message in (one, other))
    return bare and one["role"] == other["role"]


def _shown(tool: ToolFunction) -> dict[str, Any]:
    """What the model reads of a tool: nothing that is meant for the server."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.parameters}}


def _instruction(tools: Sequence[dict[str, Any]]) -> str:
    """A system message that explains the tools."""
    return _INSTRUCTION + "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools)


def _spelled(message: dict[str, Any]) -> dict[str, Any]:
    """A turn with its calls in its text, as the instruction asks for them."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    texts = [json.dumps(call, ensure_ascii=False) for call in calls]
    parts = [message["content"], *(f"<tool_call>\n{text}\n</tool_call>" for text in texts)]
    return {"role": message["role"], "content": "\n".join(part for part in parts if part)}

"""Anthropic's messages: their bodies, and the same in chat's words.

Knows both formats; knows neither HTTP nor who answers. The answer is `messages_writer`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parlay.ask import Ask, Remark
from parlay.front.doors.door import Asked, Visit, new_id
from parlay.front.doors.messages_writer import MessageWriter
from parlay.front.doors.translation import Translated, chat_of, passed_on, without_none
from parlay.front.errors import Failure
from parlay.front.schema import MAX_STOPS, Body, Count, Listed, Readable

_EFFORTS = {"xhigh": "high", "max": "high"}  # Anthropic's, as templates know them


class CacheControl(Body):
    """Taken without effect: every prompt is reused as far as it is the same."""

    type: str = "ephemeral"
    ttl: str | None = None


class Block(Body):
    """A part of a message."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None  # of thinking that only its author can read
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Annotated[str | Listed[Block] | None, Readable] = None
    is_error: bool | None = None
    citations: list[Any] | None = None
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None


class Turn(Body):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Listed[Block], Readable]


class AnthropicTool(Body):
    """A tool: a function of the client's, or one that only its vendor runs."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # a call is told once it is whole


class AnthropicChoice(Body):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether, and how long, the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: str | None = None


class OutputFormat(Body):
    """JSON of one schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class OutputConfig(Body):
    """The answer's form, and how much trouble to take."""

    effort: str | None = Field(None, max_length=32)
    format: OutputFormat | None = None


class CountRequest(Body):
    """POST /v1/messages/count_tokens"""

    model: str = Field("", max_length=512)
    messages: Listed[Turn] = Field(min_length=1, max_length=10_000)
    system: str | Listed[Block] | None = None
    tools: Listed[AnthropicTool] | None = Field(None, max_length=1024)
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages"""

    max_tokens: Count
    stream: bool = False
    stop_sequences: Listed[str] | None = Field(None, max_length=MAX_STOPS)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


class MessagesDoor:
    path = "/v1/messages"
    summary = "Anthropic's messages"
    body = MessagesRequest

    def ask(self, body: MessagesRequest, visit: Visit) -> Asked:
        chat = to_chat(body)
        request = chat_of(chat.chat)
        ask = Ask(door="messages", id=new_id("msg", "_"), **request.asked())
        return Asked(
            ask,
            request.stream,
            lambda accepted, model: MessageWriter(ask.id, model, accepted.n_prompt[0]),
            chat.remarks,
            chat.unknown,
            length=("max_tokens", body.max_tokens),
        )


def to_chat(body: CountRequest) -> Translated:
    """The same request as a chat completion."""
    ours, unknown = passed_on(body)
    tools, remarks = _tools(body.tools or [])
    chat = {
        "model": body.model,
        "messages": _messages(body),
        "tools": tools or None,
        **_choice(body.tool_choice, tools),
        **_reasoning(body),
        "response_format": _format(body.output_config),
    }
    if isinstance(body, MessagesRequest):
        chat |= {
            "max_tokens": body.max_tokens,
            "stream": body.stream,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    return Translated(without_none(chat) | ours, remarks, unknown)


def _messages(body: CountRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if body.system:
        found.append({"role": "system", "content": _text(body.system)})
    for turn in body.messages:
        if turn.role == "assistant":
            found.append(_assistant(turn.content))
        else:
            found += _user(turn)
    return found


def _user(turn: Turn) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, before what the user says with them."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": _result(block)}
        for block in turn.content
        if block.type == "tool_result"
    ]
    rest = [block for block in turn.content if block.type != "tool_result"]
    said = [{"role": turn.role, "content": _text(rest)}] if rest else []
    return [*results, *said]


def _assistant(content: str | list[Block]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    calls = [
        {
            "id": block.id or "",
            "type": "function",
            "function": {"name": block.name or "", "arguments": block.input or {}},
        }
        for block in content
        if block.type == "tool_use"
    ]
    thought = "".join(block.thinking or "" for block in content if block.type == "thinking")
    hidden = ("tool_use", "thinking", "redacted_thinking")
    said = _text([block for block in content if block.type not in hidden])
    message = {"content": said, "reasoning_content": thought or None, "tool_calls": calls or None}
    return {"role": "assistant", **without_none(message)}


def _result(block: Block) -> str:
    text = _text(block.content or "")
    return f"Error: {text}" if block.is_error and not text.lower().startswith("error") else text


def _text(content: str | list[Block]) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text":
            message = f"a content block of type {block.type!r:.40} cannot be read here; send text"
            raise Failure(400, message, param="messages")
    return "\n".join(block.text or "" for block in content)


def _tools(given: list[AnthropicTool]) -> tuple[list[dict[str, Any]], tuple[Remark, ...]]:
    own = [tool for tool in given if tool.type in (None, "custom")]
    tools = [
        {
            "type": "function",
            "function": without_none(
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema or {},
                    "strict": tool.strict,
                }
            ),
        }
        for tool in own
    ]
    return tools, tuple(left_out(str(tool.type)) for tool in given if tool not in own)


def left_out(kind: str) -> Remark:
    """A tool that runs at its vendor's only."""
    return Remark(
        "tools", f"a tool of type {kind[:60]} does not run here; the model is not offered it"
    )


def _choice(choice: AnthropicChoice | None, tools: list[dict[str, Any]]) -> dict[str, Any]:
    if choice is None:
        return {}
    kinds: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
    named = {"type": "function", "function": {"name": choice.name or ""}}
    found = {"tool_choice": kinds.get(choice.type, named)} if tools or choice.type == "tool" else {}
    return found | ({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {})


def _reasoning(body: CountRequest) -> dict[str, Any]:
    effort = body.output_config.effort if body.output_config else None
    found: dict[str, Any] = {}
    if effort is not None:
        found["reasoning_effort"] = _EFFORTS.get(effort, effort)
    if body.thinking is not None and body.thinking.type == "disabled":
        found["reasoning_budget"] = 0
    elif body.thinking is not None and body.thinking.budget_tokens is not None:
        found["reasoning_budget"] = body.thinking.budget_tokens
    return found


def _format(config: OutputConfig | None) -> dict[str, Any] | None:
    if config is None or config.format is None:
        return None
    schema = {"name": "answer", "schema": config.format.schema_}
    return {"type": "json_schema", "json_schema": schema}

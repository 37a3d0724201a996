"""OpenAI's Responses: bodies, the same in chat's words, and responses that may be gone on from.

Knows both formats; knows neither HTTP nor who answers. The answer is `responses_writer`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from parlay.ask import Accepted, Ask, Remark
from parlay.front.doors.door import Asked, Visit, new_id
from parlay.front.doors.messages import left_out
from parlay.front.doors.responses_writer import ResponseWriter
from parlay.front.doors.translation import Translated, as_json, chat_of, passed_on, without_none
from parlay.front.errors import Failure
from parlay.front.schema import (
    MAX_TOP_LOGPROBS,
    Body,
    Count,
    Listed,
    Readable,
    StreamOptions,
)

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
# A tool that takes free text is offered as a function with one text.
_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "temperature",
    "top_p",
    "truncation",
    "user",
)


class Part(Body):
    """A part of an item: text."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Item(Body):
    """One item of the input: a message, a call, a result, or a thought."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Annotated[str | Listed[Part] | None, Readable] = None
    phase: str | None = None
    name: str | None = None
    namespace: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Annotated[str | Listed[Part] | dict[str, Any] | None, Readable] = None
    summary: Listed[Part] | None = None
    encrypted_content: str | None = None


class ResponseTool(Body):
    """A tool: a function of the client's, or one that only its vendor runs."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None  # of a tool that takes free text
    tools: list[dict[str, Any]] | None = None  # of a group
    defer_loading: bool | None = None


class ResponseChoice(Body):
    """The tool that must be called, or those that may be."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]] | None = None


class TextFormat(Body):
    """text, any JSON object, or JSON of one schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """The answer's form."""

    format: TextFormat | None = None
    verbosity: str | None = Field(None, max_length=32)


class ReasoningConfig(Body):
    """How much the model thinks; thoughts are told whole, a summary is not made."""

    effort: str | None = Field(None, max_length=32)
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(Body):
    """POST /v1/responses"""

    model: str = Field("", max_length=512)
    input: str | Listed[Item] = Field(max_length=1 << 28)
    instructions: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: Count | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Listed[ResponseTool] | None = Field(None, max_length=1024)
    tool_choice: Literal["none", "auto", "required"] | ResponseChoice | None = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Listed[str] | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    store: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, Any] | None = None
    background: Literal[False] | None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: int | None = None  # of tools that run at the vendor's

    @model_validator(mode="after")
    def _has_input(self) -> ResponsesRequest:
        if not self.input:
            raise ValueError("input is empty")
        return self


class ResponsesDoor:
    path = "/v1/responses"
    summary = "OpenAI's responses"
    body = ResponsesRequest

    def ask(self, body: ResponsesRequest, visit: Visit) -> Asked:
        stored = visit.stored
        before = _before(visit, body.previous_response_id)
        chat = to_chat(body, before)
        request = chat_of(chat.chat)
        ask = Ask(door="responses", id=new_id("resp", "_"), **request.asked())
        keeps = bool(stored.size) and body.store is not False
        remarks = chat.remarks
        if body.store and not keeps:
            remarks = (Remark("store", "nothing is kept here (ignored)"), *remarks)

        def keep(writer: ResponseWriter) -> None:
            if keeps:
                turns = [*before, *messages_of(body.input), writer.message()]
                stored.put(visit.key, turns, writer.response)

        def writer(accepted: Accepted, model: str) -> ResponseWriter:
            base = {**echo(body), "id": ask.id, "model": model, "store": keeps}
            base["temperature"] = accepted.temperature
            return ResponseWriter(base, chat.custom_tools, keep)

        length = ("max_output_tokens", body.max_output_tokens)
        return Asked(ask, request.stream, writer, remarks, chat.unknown, length=length)


def _before(visit: Visit, response_id: str | None) -> list[dict[str, Any]]:
    """The conversation that a response goes on from."""
    if response_id is None:
        return []
    found = visit.stored.turns(visit.key, response_id)
    if found is not None:
        return found
    message = f"the response {response_id[:60]!r} is not known here; send the whole conversation"
    if not visit.stored.size:
        message = "previous_response_id needs server.stored_responses; send the whole conversation"
    raise Failure(400, message, code="previous_response_not_found", param="previous_response_id")


def echo(body: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    given = body.model_dump(include=set(_ECHOED))
    choice = body.tool_choice
    chosen = choice if choice is None or isinstance(choice, str) else choice.model_dump()
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    reasoning = body.reasoning
    return given | {
        "metadata": body.metadata or {},
        "truncation": body.truncation or "disabled",
        "tool_choice": chosen or "auto",
        "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        "text": {"format": {"type": "text"}} | text,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
    }


def to_chat(body: ResponsesRequest, before: Iterable[dict[str, Any]] = ()) -> Translated:
    """The same request as a chat completion; `before`: the turns of an earlier response."""
    ours, unknown = passed_on(body)
    tools, custom, remarks = _tools(body.tools or [])
    wants_figures = "message.output_text.logprobs" in (body.include or ())
    text = body.text or TextConfig()
    chat = {
        "model": body.model,
        "messages": [*_instructions(body), *before, *messages_of(body.input)],
        "tools": tools or None,
        **_choice(body.tool_choice, tools),
        "parallel_tool_calls": None if body.parallel_tool_calls else False,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": wants_figures or None,
        "top_logprobs": body.top_logprobs if wants_figures else None,
        "response_format": _format(text.format),
        "verbosity": text.verbosity,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "metadata": _tags(body.metadata),
    }
    if body.truncation == "auto":
        remarks += (Remark("truncation", "a conversation that is too long is refused, never cut"),)
    return Translated(without_none(chat) | ours, remarks, unknown, custom)


def messages_of(given: str | list[Item]) -> list[dict[str, Any]]:
    """Items as messages: what an assistant thought, said and called in one go is one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[dict[str, Any]] = []
    for item in given:
        if item.type == "message":
            _add_message(found, item)
        elif item.type == "reasoning":
            _assistant(found)["reasoning_content"] = _thought(item)
        elif item.type in _CALLS:
            _assistant(found).setdefault("tool_calls", []).append(_call(item))
        elif item.type in _RESULTS:
            found.append(_result(item))
        elif not item.type.endswith(("_call", "_call_output")):  # what a vendor's tool did
            message = f"an input item of type {item.type!r:.40} cannot be read here; leave it out"
            raise Failure(400, message, param="input")
    return found


def _add_message(found: list[dict[str, Any]], item: Item) -> None:
    text = _text(item.content)
    if item.role != "assistant":
        found.append({"role": item.role or "user", "content": text})
        return
    last = _assistant(found)
    last["content"] = "\n".join(filter(None, (last.get("content"), text)))


def _assistant(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's turn that is going on, or a new one."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant"})
    return found[-1]


def _call(item: Item) -> dict[str, Any]:
    arguments: Any = item.arguments or "{}"
    if item.type == "custom_tool_call":
        arguments = {"input": item.input or ""}
    function = {"name": item.name or "", "arguments": arguments}
    return {"id": item.call_id or "", "type": "function", "function": function}


def _result(item: Item) -> dict[str, Any]:
    output = item.output
    text = as_json(output) if isinstance(output, dict) else _text(output)
    return {"role": "tool", "tool_call_id": item.call_id or "", "content": text}


def _thought(item: Item) -> str:
    return _text(item.content) or _text(item.summary)


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in (*_TEXTS, "refusal"):
            message = f"a part of type {part.type!r:.40} cannot be read here; send text"
            raise Failure(400, message, param="input")
    return "".join(part.text or part.refusal or "" for part in content)


def _instructions(body: ResponsesRequest) -> list[dict[str, Any]]:
    return [{"role": "system", "content": body.instructions}] if body.instructions else []


def _tools(
    given: list[ResponseTool],
) -> tuple[list[dict[str, Any]], frozenset[str], tuple[Remark, ...]]:
    tools, custom, remarks = [], set(), []
    for tool in given:
        if tool.type not in ("function", "custom"):
            remarks.append(left_out(tool.type))
            continue
        parameters = tool.parameters or {}
        if tool.type == "custom":
            custom.add(tool.name)
            parameters = _FREE_TEXT
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        function |= {"parameters": parameters, "strict": tool.strict}
        tools.append({"type": "function", "function": without_none(function)})
    return tools, frozenset(custom), tuple(remarks)


def _choice(
    choice: Literal["none", "auto", "required"] | ResponseChoice | None,
    tools: list[dict[str, Any]],
) -> dict[str, Any]:
    if not isinstance(choice, ResponseChoice):
        return {"tool_choice": choice if tools or choice == "required" else None}
    if choice.type in ("function", "custom"):
        named = {"type": "function", "function": {"name": choice.name or ""}}
        return {"tool_choice": named}
    if choice.type != "allowed_tools":
        message = f"tool_choice of type {choice.type!r:.40} names a tool that does not run here"
        raise Failure(400, message, param="tool_choice")
    allowed = {tool.get("name") for tool in choice.tools or ()}
    kept = [tool for tool in tools if tool["function"]["name"] in allowed]
    return {"tools": kept or None, "tool_choice": choice.mode if kept else None}


def _format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.schema_ or {}}}


def _tags(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    return None if metadata is None else {name: str(value) for name, value in metadata.items()}

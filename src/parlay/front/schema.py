"""What clients may send: OpenAI's bodies, llama.cpp's samplers, and `speculation`.

Knows no models. A field that is not known is kept apart and told (`web/unknown.py`); fields that
can have no effect here (see `Harmless`) are taken and documented: none is dropped in silence.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from parlay.ask import Form, Samplers, Speculation, ToolFunction
from parlay.errors import BadRequest

MAX_STOPS = 16
MAX_STOP = 1000  # characters of one
MAX_BIASES = 1024
MAX_TOKENS = 1 << 20  # of a list that is sent
MAX_TOP_LOGPROBS = 20
Item = TypeVar("Item")
# The first mistake is told and no other: a million of them would take gigabytes to list.
Listed = Annotated[list[Item], Field(fail_fast=True)]
Tokens = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(fail_fast=True, max_length=MAX_TOKENS)
]
Count = Annotated[int, Field(ge=1, le=1 << 30)]


class Body(BaseModel):
    """A request's body. What it does not know is told, not fatal; numbers are finite."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: object) -> object:
        """Many clients write every field they know, with null for those that were not set."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class Own(BaseModel):
    """A body nobody but us defines: what it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, allow_inf_nan=False)


class SpeculationOptions(Own):
    """How one request bets; what is absent is the deployment's choice."""

    draft: str | None = Field(None, description="Proposers with commas between, or none.")
    window: int | None = Field(None, ge=0, le=64)
    policy: str | None = Field(None, description="speculate, plain, auto, or a route's name.")
    mode: Literal["exact", "faithful"] | None = None


class StreamOptions(Body):
    """What a stream tells besides text."""

    include_usage: bool = False
    include_obfuscation: bool = False  # no effect: nothing is padded
    include_origins: bool = Field(False, description="Where each token came from.")


class JsonSchema(Body):
    """A schema for the answer."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """text, any JSON object, or JSON of one schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # llama.cpp's short form

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError("json_schema is missing")
        return self


class Prediction(Body):
    """The text a client expects, as in OpenAI's interface: drafted from, never believed."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class Harmless(Body):
    """Fields that other clients send and that change nothing in what is generated here."""

    user: str | None = None
    metadata: dict[str, str] | None = Field(None, description="`tag` chooses a route.")
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: Literal[True] | None = None
    timings_per_token: bool | None = None


class Options(Harmless):
    """What chat and plain completions share."""

    model: str = Field("", max_length=512)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=128)
    stop: str | Listed[str] | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64, description="Negative: at random.")
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, lt=1 << 31)
    min_p: float = Field(0.0, ge=0, le=1)
    typical_p: float = Field(1.0, ge=0, le=1)
    repeat_penalty: float = Field(1.0, ge=1e-3, le=100, alias="repetition_penalty")
    presence_penalty: float = Field(0.0, ge=-100, le=100)
    frequency_penalty: float = Field(0.0, ge=-100, le=100)
    penalty_last_n: int = Field(64, ge=0, lt=1 << 31, alias="repeat_last_n")
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = Field(None, max_length=1 << 20, description="GBNF.")
    json_schema: dict[str, Any] | None = None
    prediction: Prediction | None = Field(None, description="The answer you expect.")
    speculation: bool | SpeculationOptions | None = None
    context_full: Literal["stop", "slide"] | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings")
        if any(len(stop) > MAX_STOP for stop in stops):
            raise ValueError(f"a stop string has at most {MAX_STOP} characters")
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"at most {MAX_BIASES} tokens can be biased")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _biases(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for token in value or {}:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise ValueError(f"{token!r:.40} is not a token id")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(given)

    @property
    def n_answer(self) -> int | None:
        """How many tokens the answer may have."""
        return None

    def asked(self) -> dict[str, Any]:
        """What an `Ask` of any door takes over from its body."""
        return {
            "model": self.model,
            "tag": (self.metadata or {}).get("tag"),
            "samplers": self._samplers(),
            "seed": self.seed if self.seed is not None and self.seed >= 0 else None,
            "stop": self.stops,
            "max_tokens": self.n_answer,
            "n": self.n,
            "prediction": self.prediction.text if self.prediction else "",
            "context_full": self.context_full,
            "speculation": self._speculation(),
            "form": self._form(),
            "memory": self.prompt_cache_key or "",
            "origins": bool(self.stream_options and self.stream_options.include_origins),
        }

    def _samplers(self) -> Samplers:
        given = {name: getattr(self, name) for name in _SAMPLERS & self.model_fields_set}
        if "top_k" in given:
            given["top_k"] = max(0, given["top_k"])
        bias = {int(k): v for k, v in (self.logit_bias or {}).items()} or None
        return Samplers(**given, logit_bias=bias)

    def _speculation(self) -> Speculation | None:
        wish = self.speculation
        if wish is None or isinstance(wish, bool):
            return None if wish is None else Speculation(enabled=wish)
        return Speculation(**wish.model_dump())

    def _form(self) -> Form | None:
        """What the answer is to keep to, said in one of four ways."""
        form, wanted = self.response_format, list[Form]()
        if form is not None and form.type == "json_object":
            wanted.append(Form(json_schema=form.schema_ or {"type": "object"}))
        if form is not None and form.type == "json_schema":
            schema = form.json_schema.schema_ if form.json_schema else form.schema_ or {}
            wanted.append(Form(json_schema=schema))
        if self.json_schema is not None:
            wanted.append(Form(json_schema=self.json_schema))
        if self.grammar:
            wanted.append(Form(gbnf=self.grammar))
        if len(wanted) > 1:
            raise BadRequest("give one of response_format, json_schema and grammar, not several")
        return wanted[0] if wanted else None


_SAMPLERS = frozenset(Samplers.__struct_fields__) - {"logit_bias"}
_UNREADABLE = (
    ("image", "a picture"),
    ("audio", "a sound"),
    ("video", "a film"),
    ("file", "a file"),
    ("document", "a document"),
)


def readable(parts: object) -> object:
    """Say by name what cannot be read, before the shapes of parts are compared."""
    for part in parts if isinstance(parts, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        named = [name for mark, name in _UNREADABLE if isinstance(kind, str) and mark in kind]
        if named:
            raise ValueError(f"{named[0]} cannot be read here: this model reads text")
    return parts


Readable = BeforeValidator(readable)


class TextPart(Body):
    """A part of a message; only text can be read."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class FunctionCall(Body):
    """A call the assistant made in an earlier turn."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Body):
    """One call of a message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None

    def plain(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": self.type, "function": function}


class Message(Body):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | Listed[TextPart] | None, Readable] = None
    name: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None

    def plain(self) -> dict[str, Any]:
        """What a prompter reads of it: its content is one text."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or part.refusal for part in content)
        calls = [call.plain() for call in self.tool_calls or ()]
        found = {
            "role": self.role,
            "content": content or self.refusal or "",
            "name": self.name,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        return {name: value for name, value in found.items() if value is not None}


class Function(Body):
    """A function the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default_factory=dict)
    strict: bool | None = None

    def asked(self) -> ToolFunction:
        return ToolFunction(
            self.name, self.parameters or {}, self.description, strict=bool(self.strict)
        )


class Tool(Body):
    """One tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Options):
    """POST /v1/chat/completions"""

    messages: Listed[Message] = Field(min_length=1, max_length=10_000)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Listed[Tool] | None = Field(None, max_length=256)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: Literal["none", "auto"] = "auto"
    reasoning_effort: str | None = Field(
        None, max_length=32, description="For templates that know it; none: no thinking."
    )
    reasoning_budget: int | None = Field(
        None,
        ge=-1,
        le=1 << 30,
        alias="thinking_budget_tokens",
        description="Tokens of thinking, at most; 0: none, -1: as many as there are.",
    )
    verbosity: str | None = Field(None, max_length=32, description="For templates that know it.")

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        named = isinstance(self.tool_choice, NamedTool) or self.tool_choice == "required"
        if named and not self.tools:
            raise ValueError("tool_choice asks for a call, but tools is empty")
        return self

    @property
    def n_answer(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def asked(self) -> dict[str, Any]:
        choice = self.tool_choice
        named = choice.function.name if isinstance(choice, NamedTool) else None
        return super().asked() | {
            "messages": tuple(message.plain() for message in self.messages),
            "tools": tuple(tool.function.asked() for tool in self.tools or ()),
            "tool_choice": "required" if isinstance(choice, NamedTool) else choice or "auto",
            "tool_named": named,
            "parallel_tool_calls": self.parallel_tool_calls,
            "template_options": self.chat_template_kwargs or {},
            "reasoning_effort": self.reasoning_effort,
            "reasoning_budget": self.reasoning_budget,
            "verbosity": self.verbosity,
            "split_reasoning": self.reasoning_format == "auto",
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }


class CompletionRequest(Options):
    """POST /v1/completions"""

    prompt: str | Tokens | Listed[str] | Listed[Tokens] = Field(
        description="One text or list of tokens, or several of them."
    )
    max_tokens: Count | None = Field(None, alias="n_predict")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: Literal[False] = False
    suffix: str | None = Field(None, description="What follows the gap, for models with marks.")
    best_of: Literal[1] | None = None

    @property
    def n_answer(self) -> int | None:
        return self.max_tokens or 16  # OpenAI's default for this route


class InfillFile(Body):
    """Another file the model may look at."""

    filename: str = Field("file", max_length=4096)
    text: str


class InfillRequest(Options):
    """POST /infill"""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Listed[InfillFile] | None = Field(None, max_length=1024)
    prompt: str = Field("", description="Already written in the gap.")
    n: Literal[1] = 1
    n_predict: Count | None = Field(None, alias="max_tokens")

    @property
    def n_answer(self) -> int | None:
        return self.n_predict


class TemplateRequest(Body):
    """POST /apply-template"""

    messages: Listed[Message] = Field(min_length=1, max_length=10_000)
    tools: Listed[Tool] | None = Field(None, max_length=1024)
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = Field(None, max_length=32)


class TokenizeRequest(Own):
    """POST /tokenize"""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class SlotRequest(Own):
    """POST /slots/{id}?action=save|restore|erase"""

    filename: str = Field("", max_length=128)


class DetokenizeRequest(Own):
    """POST /detokenize"""

    tokens: Tokens

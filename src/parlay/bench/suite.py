"""Prompt suites: the built-in ones and a user's own JSONL file, checked line by line, and hashed.

It does not know who answers the prompts, nor any chat template, and it does not count tokens.

One JSON object per line, blank lines skipped:

    {"id": "code-01", "category": "code", "messages": [...], "max_tokens": 256, "tools": [...]}
    {"prompt": "the same as one user message"}
    {"prompt": "...", "json_schema": {...}, "prediction": "the answer that is expected"}

Only `messages` or `prompt` is required. `id` defaults to the line number in the file.
"""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from parlay.errors import BadRequest
from parlay.reading.bounds import Printable

# name -> version; any edit of a prompt raises it
BUILT_IN = {"core-12": 1, "core-60": 1, "structured-24": 1, "edits-16": 1}
TEMPERATURE = 0.0
N_CONTEXT = 4096
MAX_TOKENS = 256

MAX_PROMPTS = 10_000
MAX_LINE_BYTES = 1_000_000
MAX_FILE_BYTES = 64_000_000
MAX_LABEL = 64

EXAMPLE = '{"prompt": "..."}'


@dataclass(frozen=True)
class Prompt:
    """One request, in the shape of the OpenAI chat API."""

    id: str
    category: str
    messages: tuple[dict[str, Any], ...]
    max_tokens: int = MAX_TOKENS
    tools: tuple[dict[str, Any], ...] = ()
    json_schema: dict[str, Any] | None = None  # what the answer must keep to
    prediction: str | None = None  # the answer that is expected


@dataclass(frozen=True)
class Suite:
    """Prompts in file order. A user's own file has no version; the hash tells those apart."""

    name: str
    version: int | None
    sha256: str
    prompts: tuple[Prompt, ...]
    temperature: float = TEMPERATURE
    n_context: int = N_CONTEXT


def load_suite(name_or_path: str) -> Suite:
    """Load a built-in suite by its name, or a JSONL file by its path. A built-in name wins."""
    source = _one_line(name_or_path, 200)
    try:
        with _open(name_or_path) as stream:
            prompts = _read(stream, source)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"give a JSONL file or one of {', '.join(BUILT_IN)}"
        raise BadRequest(f"suite {source}: {_one_line(reason)}; {hint}") from error
    name = _one_line(Path(name_or_path).stem, MAX_LABEL)
    return Suite(name, BUILT_IN.get(name_or_path), suite_hash(prompts), prompts)


def suite_hash(prompts: Iterable[Prompt]) -> str:
    """SHA-256 over sorted keys, defaults filled in, no whitespace: the layout does not matter."""
    rows = [_hashed(prompt) for prompt in prompts]
    return hashlib.sha256(_canonical(rows).encode()).hexdigest()


def _hashed(prompt: Prompt) -> dict[str, Any]:
    """A field that is not there leaves the hashes of older suites as they are. The order of a
    schema's properties is that of the answer, so it counts."""
    row = {name: value for name, value in asdict(prompt).items() if value is not None}
    if prompt.json_schema is not None:
        row["json_schema"] = json.dumps(prompt.json_schema, separators=(",", ":"))
    return row


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# ---- reading


def _open(name_or_path: str) -> AbstractContextManager[BinaryIO]:
    if name_or_path in BUILT_IN:
        file = resources.files("parlay.bench") / "suites" / f"{name_or_path}.jsonl"
        return cast(BinaryIO, file.open("rb"))
    return Path(name_or_path).expanduser().open("rb")


def _read(stream: BinaryIO, source: str) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, line in _lines(stream, source):
        if len(prompts) == MAX_PROMPTS:
            raise _refusal(source, number, f"over {MAX_PROMPTS:,} prompts; split the file")
        prompt = _parse(line, source, number)
        first = line_of.setdefault(prompt.id, number)
        if first != number:
            what = f"id '{prompt.id}' is already on line {first}; give each prompt its own"
            raise _refusal(source, number, what)
        prompts.append(prompt)
    if not prompts:
        raise BadRequest(f"suite {source}: no prompts; write one per line, such as {EXAMPLE}")
    return tuple(prompts)


def _lines(stream: BinaryIO, source: str) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; never holds more than one line."""
    n_bytes = 0
    for number in count(1):
        line = stream.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        n_bytes += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise _refusal(source, number, f"over {MAX_LINE_BYTES:,} bytes; shorten the prompt")
        if n_bytes > MAX_FILE_BYTES:
            raise _refusal(source, number, f"file over {MAX_FILE_BYTES:,} bytes; split the file")
        text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
        if text:
            yield number, text


def _parse(line: bytes, source: str, number: int) -> Prompt:
    try:
        row = _Line.model_validate_json(line)
        prompt = _prompt(row, default_id=str(number))
        _canonical(asdict(prompt))  # refuses NaN and Infinity, which JSON does not have
    except ValidationError as error:
        raise _refusal(source, number, _explain(error.errors()[0])) from error
    except ValueError as error:
        raise _refusal(source, number, "NaN or Infinity; write a finite number") from error
    return prompt


def _prompt(row: "_Line", default_id: str) -> Prompt:
    messages: tuple[dict[str, Any], ...] = ({"role": "user", "content": row.prompt},)
    if row.messages is not None:
        messages = tuple(message.model_dump(exclude_unset=True) for message in row.messages)
    tools = tuple(tool.model_dump(exclude_unset=True) for tool in row.tools or ())
    return Prompt(
        row.id or default_id,
        row.category,
        messages,
        row.max_tokens,
        tools,
        row.json_schema,
        row.prediction,
    )


# ---- errors


def _refusal(source: str, number: int, what: str) -> BadRequest:
    return BadRequest(f"{source} line {number}: {what}")


def _explain(error: ErrorDetails) -> str:
    """What is wrong with a line and what to write instead, from the first thing found wrong."""
    field = _one_line(".".join(map(str, error["loc"])))
    if error["type"] == "json_invalid":
        where = error["ctx"]["error"].replace(" at line 1 column", " at column")
        return f"not JSON ({_one_line(where)}); write one object per line, such as {EXAMPLE}"
    if error["type"] == "extra_forbidden":
        return f"unknown field {field}; remove it"
    if error["type"] == "missing":
        return f"field {field} is missing; add it"
    message = _one_line(error["msg"])
    return f"{field}: {message}" if field else message


def _one_line(text: str, limit: int = 120) -> str:
    """Text from outside, made safe for one line of an error or a record."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


# ---- the shape of a line


Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), Printable]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Function(_Strict):
    name: Label
    arguments: str  # JSON as text, as the API has it


class _ToolCall(_Strict):
    id: Label
    type: Literal["function"]
    function: _Function


class _ToolFunction(BaseModel):
    """A JSON Schema follows in `parameters`; it is handed on as it is."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: Label


class _Tool(_Strict):
    type: Literal["function"]
    function: _ToolFunction


class _Message(_Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: Label | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: Label | None = None

    @model_validator(mode="after")
    def _check(self) -> "_Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("message", "only an assistant message may have tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("message", "a tool message needs its tool_call_id")
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("message", "give the message a content")
        return self


class _Line(_Strict):
    id: Label | None = None
    category: Label = "own"
    prompt: str | None = None
    messages: list[_Message] | None = None
    max_tokens: int = Field(default=MAX_TOKENS, ge=1, le=N_CONTEXT)
    tools: list[_Tool] | None = None
    json_schema: dict[str, Any] | None = None  # handed on as it is
    prediction: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "_Line":
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("line", "give either prompt or messages")
        if self.prompt is not None and not self.prompt.strip():
            raise PydanticCustomError("line", "the prompt is empty; write one or remove the line")
        if self.messages is not None:
            _check_turns(self.messages)
        if self.json_schema is not None and self.tools:
            raise PydanticCustomError("line", "give one of json_schema and tools, not both")
        return self


def _check_turns(messages: list[_Message]) -> None:
    if not messages:
        raise PydanticCustomError("line", "messages is empty; add a user message")
    if messages[-1].role not in ("user", "tool"):
        what = "the last message must be from user or tool, since the model answers it"
        raise PydanticCustomError("line", what)

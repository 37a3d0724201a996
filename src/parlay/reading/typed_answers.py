"""What an answer of another format than chat's tells: Anthropic's messages, OpenAI's responses.

Both name the kind of every event in `type`. Pure; nothing that is read is trusted.
"""

from __future__ import annotations

from typing import Any

from parlay.reading import answers
from parlay.reading.answers import AnswerEvent

ENDS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_DELTAS = ("text", "thinking", "partial_json")


def is_typed(chunk: dict[str, Any]) -> bool:
    """Whether it is an event, or a whole answer, of one of these formats."""
    return "choices" not in chunk and ("type" in chunk or chunk.get("object") == "response")


def event_of(chunk: dict[str, Any]) -> AnswerEvent:
    """What an event says; a whole answer is read like its only one."""
    response = answers.mapping(chunk.get("response"))
    whole = response or chunk
    usage = answers.mapping(whole.get("usage"))
    cached = answers.mapping(usage.get("input_tokens_details")).get("cached_tokens")
    read = answers.count(usage.get("cache_read_input_tokens"))
    n_prompt = answers.count(usage.get("input_tokens"))
    decode_s, told = answers.told(whole)
    return AnswerEvent(
        text=_text(chunk),
        finish_reason=_reason(chunk, response),
        n_tokens=answers.count(usage.get("output_tokens")) or None,
        n_first=answers.first_of(whole),
        n_prompt=None if n_prompt is None else n_prompt + (read or 0),
        n_cached=answers.count(cached) if read is None else read,
        server_decode_s=decode_s,
        speculation=told,
        error=answers.error_of(whole),
    )


def _reason(chunk: dict[str, Any], response: dict[str, Any]) -> str | None:
    delta = answers.mapping(chunk.get("delta"))
    stop = answers.string(delta.get("stop_reason")) or answers.string(chunk.get("stop_reason"))
    status = answers.string((response or chunk).get("status"))
    return stop or (status if status in ("completed", "incomplete") else None)


def _text(chunk: dict[str, Any]) -> str:
    """Everything the model wrote, its thinking and its calls included."""
    delta = chunk.get("delta")
    if isinstance(delta, str):
        return delta
    if isinstance(delta, dict):
        return "".join(answers.string(delta.get(name)) or "" for name in _DELTAS)
    blocks = answers.listed(chunk.get("content")) or [
        part
        for item in answers.listed(chunk.get("output"))
        for part in (answers.listed(answers.mapping(item).get("content")) or [item])
    ]
    return "".join(_block(answers.mapping(block)) for block in blocks)


def _block(block: dict[str, Any]) -> str:
    names = ("text", "thinking", "arguments")
    return "".join(answers.string(block.get(name)) or "" for name in names)

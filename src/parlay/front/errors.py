"""One table from exceptions to answers, mid-stream included, in OpenAI's form.

Nothing about files, hosts or code leaves through here: messages are ours, one line each.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.ask import Refused
from parlay.refusals import refusal

LEFT = 499  # the status of a request whose client went away
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Where a route's prompt stands in its body; elsewhere in `messages`.
_PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input", "/infill": "input_prefix"}


@dataclass(eq=False)
class Failure(Exception):
    """An answer that is an error."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def anthropic(self) -> dict[str, Any]:
        """The same in Anthropic's form."""
        kind = _ANTHROPIC.get(self.status, "api_error" if self.status >= 500 else self.kind)
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def body_for(self, path: str) -> dict[str, Any]:
        """In the format of the route that was asked."""
        return self.anthropic if path.startswith("/v1/messages") else self.body

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def busy(retry_after: int) -> Failure:
    message = f"the queue is full; try again in {retry_after} s"
    return Failure(429, message, "rate_limit_error", "queue_full", retry_after=retry_after)


def unavailable(message: str, code: str) -> Failure:
    return Failure(503, message, "server_error", code, retry_after=5)


def timed_out(seconds: float) -> Failure:
    message = f"no token came within the time limit of {seconds:g} s; try again later"
    return Failure(504, message, "server_error", "timeout", retry_after=5)


def of_refused(refused: Refused, path: str = "") -> Failure:
    """What a backend refused, on the route that was asked."""
    param = refused.param
    if param is None and refused.code == "context_length_exceeded":
        param = _PROMPTS.get(path, "messages")
    r = refused
    return Failure(r.status, r.message, r.kind, r.code, param, r.retry_after)


def of(error: Exception, path: str = "") -> Failure:
    """What a client sees of an exception on the route that was asked."""
    if isinstance(error, Failure):
        return error
    return of_refused(refusal(error), path)


def of_validation(problems: Sequence[Mapping[str, Any]], known: Sequence[str]) -> Failure:
    """The first thing wrong with a body, by name."""
    # Of a value that may be of several types, the try that got furthest says most.
    field = problems[0]["loc"][:2]
    first = max((p for p in problems if p["loc"][:2] == field), key=lambda p: len(p["loc"]))
    if first["type"] == "json_invalid":
        return Failure(400, "the body is not valid JSON", code="invalid_json")
    if first["loc"] == ("body",) and first["type"] != "value_error":
        message = "send one JSON object, with Content-Type: application/json"
        return Failure(400, message, code="invalid_json")
    place = [str(part) for part in first["loc"] if part != "body" and not _is_branch(part)]
    where = ".".join(place) or "body"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Failure(400, f"unknown field {where[:100]}{hint}", param=where[:100])
    reason = str(first["msg"]).removeprefix("Value error, ")[:300]
    if not place:  # of the body as a whole
        return Failure(400, reason)
    return Failure(400, f"{where[:200]}: {reason}", param=where[:200])


def _is_branch(part: object) -> bool:
    """A place may name which of several types was tried: that is no field, fields are small."""
    tried = isinstance(part, str) and (part in ("str", "int", "float", "bool") or "[" in part)
    return tried or (isinstance(part, str) and part[:1].isupper())

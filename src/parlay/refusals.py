"""One table from Parlay's own errors to what a client may read of them.

Knows no HTTP beyond its status numbers: nothing about files, hosts or code leaves through here.
"""

from __future__ import annotations

from parlay.ask import Refused
from parlay.errors import BadRequest, Closed, ParlayError, PromptTooLong


class Declined(ParlayError):
    """Something other than an answer was asked for and is refused."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


SHUTTING_DOWN = Refused(
    503, "the server is shutting down", "server_error", "shutting_down", retry_after=5
)


def refusal(error: Exception) -> Refused:
    """What is told of an exception; of one that nobody foresaw only that there was one."""
    if isinstance(error, Declined):
        return error.refused
    if isinstance(error, PromptTooLong):
        return Refused(400, error.message, code="context_length_exceeded")
    if isinstance(error, BadRequest):
        return Refused(400, error.message)
    if isinstance(error, Closed):
        return SHUTTING_DOWN
    if isinstance(error, RecursionError):
        return Refused(400, "the body is nested too deeply; flatten it", code="invalid_json")
    if isinstance(error, ParlayError):
        return Refused(500, "the model could not finish this answer", "server_error", "decode")
    return Refused(500, "internal error; the server's log has the details", "server_error")


def timed_out(seconds: float) -> Refused:
    message = f"no token came within the time limit of {seconds:g} s; try again later"
    return Refused(504, message, "server_error", "timeout", retry_after=5)

"""HEAD: answered like GET, without the body; monitors and load balancers ask so who is there.

Knows ASGI; what the answers say is not its business.
"""

from __future__ import annotations

from starlette.types import Message, Scope, Send

_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """The request for GET, and a way to answer that ends with the headers: a stream, to which
    nobody listens then, stops of itself."""
    ended = False

    async def headers_only(message: Message) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:
            ended = True
            await send(_END)

    return {**scope, "method": "GET"}, headers_only

"""Who may ask and how much: keys, the bind address, the size of a body.

Knows ASGI and nothing of models.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Callable
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parlay.deployment import Deployment, DeploymentError
from parlay.web.failures import Failure

OPEN_PATHS = frozenset({"/health", "/v1/health", "/"})
# The page's own files (what it shows needs a key), and reports, whose names nobody can guess.
OPEN_FOLDERS = ("/page/", "/live/bench/report/")
UNAUTHORISED = Failure(
    401, "give a valid API key as Authorization: Bearer KEY", code="invalid_api_key"
)
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


class Keys:
    """The keys that open the server; none at all: everyone who can reach it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def of(cls, deployment: Deployment) -> Keys:
        server = deployment.server
        found = [key.get_secret_value() for key in server.api_keys]
        if server.api_keys_file is not None:
            found += _read_keys(Path(server.api_keys_file))
        return cls(tuple(key.strip() for key in found if key.strip()))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def opens(self, authorization: str) -> bool:
        """Compared with every key in constant time, so that timing tells nothing."""
        scheme, _, given = authorization.partition(" ")
        key = given.strip().encode() if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        return not self._keys or any(matches)


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        raise DeploymentError(f"server.api_keys_file: {path} cannot be read") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise DeploymentError(f"server.api_keys_file: {path} holds no key; write one a line")
    return keys


def check_bind(deployment: Deployment, keys: Keys) -> None:
    """Refuse to serve the whole network by accident."""
    server = deployment.server
    if keys or is_loopback(server.host) or server.allow_public_without_key:
        return
    raise DeploymentError(
        f"server.host {server.host} can be reached from outside and no API key is set; set"
        " server.api_keys_file, bind to 127.0.0.1, or say --allow-public-without-key"
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL_NAMES


class Gate:
    """ASGI middleware: keys and body size, before anything is parsed."""

    def __init__(self, app: ASGIApp, keys: Callable[[], Keys], max_body: Callable[[], int]) -> None:
        self._app = app
        self._keys = keys
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"authorization", b"").decode("latin-1")
        if not _is_open(scope["path"]) and not self._keys().opens(given):
            await refuse(send, UNAUTHORISED)
            return
        limit = self._max_body()
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            await refuse(send, _too_large(limit))
            return
        await self._app(scope, _counted(receive, limit), send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def _too_large(limit: int) -> Failure:
    return Failure(413, f"the body is larger than {limit} bytes", code="body_too_large")


def _counted(receive: Receive, limit: int) -> Receive:
    left = limit

    async def counting() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:  # more came than the headers said
            raise HTTPException(413, _too_large(limit).message)
        return message

    return counting


async def refuse(send: Send, failure: Failure) -> None:
    """Answer without the application; the rest of the body is not read."""
    body = json.dumps(failure.body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

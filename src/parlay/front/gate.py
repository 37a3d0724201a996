"""Who may ask and how much: keys, hosts and origins, the kind and size of a body, the queue.

Knows ASGI and nothing of models. Whoever is refused here has cost neither parsing nor a place.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parlay.deployment import Deployment, DeploymentError
from parlay.front.bodies import NOT_JSON
from parlay.front.browsers import browsers, is_loopback
from parlay.front.connections import LINGER_S, Patience
from parlay.front.errors import Failure

OPEN_PATHS = frozenset({"/health", "/v1/health", "/"})
OPEN_FOLDER = "/page/"  # the page's own files: what it shows needs a key
ADMIN_FOLDER = "/live"  # everybody's requests
UNAUTHORISED = Failure(
    401,
    "give a valid API key as Authorization: Bearer KEY (or x-api-key: KEY)",
    code="invalid_api_key",
)
_NO_ADMIN = Failure(
    403,
    "what others ask is shown to admins: use a key of server.admin_keys"
    " (without any keys: ask from this machine)",
    code="admin_only",
)
_READ_S = 60.0  # a body takes no longer, however slowly it is sent
_TOO_SLOW = Failure(408, "the body did not come in time; send it at once", code="slow_body")


# -- keys ------------------------------------------------------------------------------------------


class Keys:
    """The keys that open the server; none at all: everyone who can reach it."""

    def __init__(self, keys: tuple[str, ...], admins: tuple[str, ...] = ()) -> None:
        self._keys = tuple(key.encode() for key in (*keys, *admins))
        self._admins = tuple(key.encode() for key in admins)

    @classmethod
    def of(cls, deployment: Deployment) -> Keys:
        server = deployment.server
        found = _plain(server.api_keys)
        if server.api_keys_file is not None:
            found += _read_keys(Path(server.api_keys_file))
        return cls(tuple(found), tuple(_plain(server.admin_keys)))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def opens(self, authorization: str) -> bool:
        return not self._keys or _is_one_of(authorization, self._keys)

    def is_admin(self, authorization: str) -> bool:
        return _is_one_of(authorization, self._admins)

    def owner(self, authorization: str) -> str:
        """Who asks, by a key that opens: a name that tells nothing of it. Without keys: nobody."""
        if not self._keys:
            return ""
        return hashlib.sha256(authorization.partition(" ")[2].strip().encode()).hexdigest()[:16]


def _is_one_of(authorization: str, keys: tuple[bytes, ...]) -> bool:
    """Compared with every key in constant time, so that timing tells nothing."""
    scheme, _, given = authorization.partition(" ")
    key = given.strip().encode() if scheme.lower() == "bearer" else b""
    matches = [hmac.compare_digest(key, known) for known in keys]
    return any(matches)


def _plain(keys: tuple[SecretStr, ...]) -> list[str]:
    found = [key.get_secret_value().strip() for key in keys]
    return [key for key in found if key]


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DeploymentError(f"server.api_keys_file: {path} cannot be read") from None
    stripped = (line.strip() for line in lines)
    keys = [line for line in stripped if line and not line.startswith("#")]
    if not keys:
        raise DeploymentError(f"server.api_keys_file: {path} holds no key; write one a line")
    return keys


def check_bind(deployment: Deployment, keys: Keys, bound: str | None = None) -> None:
    """Refuse to serve the whole network by accident. `bound`: the address taken already."""
    server = deployment.server
    host = server.host if bound is None else bound
    if keys or is_loopback(host) or server.allow_public_without_key:
        return
    raise DeploymentError(
        f"server.host {host} can be reached from outside and no API key is set; set"
        " server.api_keys_file, bind to 127.0.0.1, or say --allow-public-without-key"
    )


def checked_keys(deployment: Deployment, bound: str | None = None) -> Keys:
    """Its keys; refused where it would serve the whole network without one."""
    keys = Keys.of(deployment)
    check_bind(deployment, keys, bound)
    return keys


def given_key(headers: Mapping[bytes, bytes]) -> str:
    """What a client shows: Anthropic's header is read as OpenAI's."""
    own = headers.get(b"x-api-key")
    given = headers.get(b"authorization", b"" if own is None else b"Bearer " + own)
    return given.decode("latin-1")


# -- on their way in -------------------------------------------------------------------------------

_entrant: ContextVar[_Entrant | None] = ContextVar("entrant", default=None)


class Coming:
    """Requests from their first header until they are counted elsewhere: so that nobody's body is
    read, parsed or cut into tokens while there is no place for its answer."""

    def __init__(self) -> None:
        self.n = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        self.n += 1
        entrant = _Entrant(self)
        token = _entrant.set(entrant)
        try:
            yield
        finally:
            _entrant.reset(token)
            entrant.settle()


@dataclass(slots=True, eq=False)
class _Entrant:
    coming: Coming
    counted: bool = True

    def settle(self) -> None:
        if self.counted:
            self.counted = False
            self.coming.n -= 1


def settle() -> None:
    """The request that is answered here is counted elsewhere from now on."""
    entrant = _entrant.get()
    if entrant is not None:
        entrant.settle()


# -- the gate --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware: all that can be said of a request before its body is parsed."""

    app: ASGIApp
    deployment: Callable[[], Deployment]
    keys: Callable[[], Keys]
    coming: Coming
    full: Callable[[], Failure | None]
    refused: Callable[[str, Failure], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = as_get(scope, send)
        with Patience(send, self.deployment().server.stall_s) as patience:
            await self._pass(scope, receive, patience.send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], dict(scope["headers"])
        limit = int(self.deployment().server.max_body_mb * 1e6)
        failure = self._refusal(scope, headers, limit)
        if failure is None and _has_body(headers):
            failure = self.full()
        if failure is not None:
            await self._refuse(send, failure, path, receive if _has_body(headers) else None)
        elif not _has_body(headers):
            await self.app(scope, receive, send)
        else:
            with self.coming.enter():
                await self._read(scope, receive, send, limit)

    async def _read(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Pass a whole body on."""
        try:
            body = await asyncio.wait_for(_body(receive, limit), _READ_S)
        except _TooLarge:  # more came than the headers said
            settle()  # what is still sent keeps nobody out
            await self._refuse(send, _too_large(limit), scope["path"], receive)
        except (_Gone, asyncio.TimeoutError):
            await self._refuse(send, _TOO_SLOW, scope["path"])
        else:
            await self.app(scope, _replayed(body, receive), send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], limit: int) -> Failure | None:
        keys, path, server = self.keys(), scope["path"], self.deployment().server
        rules = browsers(server.host, server.allowed_hosts, server.cors_origins)
        # Where keys are asked for, a page that got here by a false name has none.
        failure = rules.refusal(headers, named=not keys)
        if failure is not None:
            return failure
        key = given_key(headers)
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        if not is_open and not keys.opens(key):
            return UNAUTHORISED
        if path.startswith(ADMIN_FOLDER) and not self._is_admin(scope, keys, key):
            return _NO_ADMIN
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            return _too_large(limit)
        return NOT_JSON if _has_body(headers) and not _is_json(headers) else None

    def _is_admin(self, scope: Scope, keys: Keys, key: str) -> bool:
        client = scope.get("client")
        return keys.is_admin(key) if keys else client is None or is_loopback(client[0])

    async def _refuse(
        self, send: Send, failure: Failure, path: str, receive: Receive | None = None
    ) -> None:
        """Without the application; strangers are turned away without a word in the log. The rest
        of a body, where there is one, is thrown away: to hang up on who still sends would reset
        the answer away."""
        if failure.status not in (401, 403):
            self.refused(path, failure)
        body = json.dumps(failure.body_for(path)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *((name.lower().encode(), value.encode()) for name, value in failure.headers.items()),
        ]
        await send({"type": "http.response.start", "status": failure.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if receive is not None:
            await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """HEAD is answered like GET, with its headers only: a stream, to which nobody listens then,
    stops of itself."""
    ended = False

    async def headers_only(message: Message) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:
            ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return {**scope, "method": "GET"}, headers_only


# -- bodies as bytes -------------------------------------------------------------------------------


class _TooLarge(Exception):
    """More came than is allowed."""


class _Gone(Exception):
    """The client left."""


async def _body(receive: Receive, limit: int) -> bytes:
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        found += message.get("body", b"")
        if len(found) > limit:
            raise _TooLarge
        if not message.get("more_body", False):
            return bytes(found)


async def _drain(receive: Receive) -> None:
    """What still comes of a body that nobody wants, until nothing comes for a while."""
    loop = asyncio.get_running_loop()
    until, more = loop.time() + _READ_S, True
    with suppress(asyncio.TimeoutError):
        while more and loop.time() < until:
            more = (await asyncio.wait_for(receive(), LINGER_S)).get("more_body", False)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, for whoever reads it next; then whatever comes."""
    waiting = True

    async def again() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _is_json(headers: dict[bytes, bytes]) -> bool:
    """Forms and plain text are what a page may send anywhere without being asked."""
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def _too_large(limit: int) -> Failure:
    return Failure(413, f"the body is larger than {limit} bytes", code="body_too_large")

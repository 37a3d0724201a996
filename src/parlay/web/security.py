"""Who may ask and how much: keys, the bind address, the size of a body.

Knows ASGI and nothing of models.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from parlay.deployment import Deployment, DeploymentError
from parlay.front.bodies import NOT_JSON
from parlay.front.errors import Failure
from parlay.web import bodies
from parlay.web.admission import Admission, settle
from parlay.web.browsers import Browsers, is_loopback
from parlay.web.connections import LINGER_S, Patience
from parlay.web.head_requests import as_get
from parlay.web.supervisor_link import SupervisorLink

OPEN_PATHS = frozenset({"/health", "/v1/health", "/"})
# The page's own files (what it shows needs a key), and reports, whose names nobody can guess.
OPEN_FOLDERS = ("/page/", "/live/bench/report/")
UNAUTHORISED = Failure(
    401,
    "give a valid API key as Authorization: Bearer KEY (or x-api-key: KEY)",
    code="invalid_api_key",
)
_TOO_SLOW = Failure(408, "the body did not come in time; send it at once", code="slow_body")


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

    def owner(self, authorization: str) -> str:
        """Who asks, by a key that opens: a name that tells nothing of it. Without keys: nobody."""
        if not self._keys:
            return ""
        return hashlib.sha256(authorization.partition(" ")[2].strip().encode()).hexdigest()[:16]


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


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware: hosts, origins, keys, the kind and size of a body, before it is parsed."""

    app: ASGIApp
    keys: Callable[[], Keys]
    max_body: Callable[[], int]
    browsers: Callable[[], Browsers]
    full: Callable[[], Failure | None]
    refused: Callable[[str, Failure], None]
    admission: Admission
    stall_s: Callable[[], float]
    supervisor_link: SupervisorLink
    read_once: frozenset[str] = frozenset()  # paths whose routes say themselves what is no JSON

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = as_get(scope, send)
        with Patience(send, self.stall_s()) as patience:
            await self._pass(scope, receive, patience.send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers, limit = scope["path"], dict(scope["headers"]), self.max_body()
        failure = self._refusal(path, headers, limit)
        if failure is None and _has_body(headers):
            failure = self.full()
        if failure is not None:
            await self._refuse(send, failure, path, receive if _has_body(headers) else None)
        elif not _has_body(headers):
            await self.app(scope, receive, send)
        else:
            with self.admission.enter(self.keys().owner(given_key(headers))):
                await self._read(scope, receive, send, limit)

    async def _read(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Pass a sound body on."""
        try:
            body = await bodies.read(receive, limit)
        except bodies.TooLarge:  # more came than the headers said
            settle()  # what is still sent keeps nobody out
            await self._refuse(send, _too_large(limit), scope["path"], receive)
        except bodies.Gone:
            await self._refuse(send, _TOO_SLOW, scope["path"])
        else:
            read_once = scope["path"] in self.read_once
            problem = None if read_once else bodies.problem(body)
            if problem is not None:
                await self._refuse(send, problem, scope["path"])
            else:
                await self._keep(scope, bodies.replay(body, receive), send, body)

    async def _keep(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        """Should the server die before it answers, the next one will."""
        kept = self.supervisor_link.keep(scope, body)
        if kept is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, kept.sending(send))
        finally:
            kept.done()

    def _refusal(self, path: str, headers: dict[bytes, bytes], limit: int) -> Failure | None:
        keys = self.keys()
        # Where keys are asked for, a page that got here by a false name has none.
        failure = self.browsers().refusal(headers, named=not keys)
        if failure is not None:
            return failure
        if not _is_open(path) and not keys.opens(given_key(headers)):
            return UNAUTHORISED
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            return _too_large(limit)
        return NOT_JSON if _has_body(headers) and not _is_json(headers) else None

    async def _refuse(
        self, send: Send, failure: Failure, path: str, receive: Receive | None = None
    ) -> None:
        """Strangers are turned away without a word in the log."""
        if failure.status not in (401, 403):
            self.refused(path, failure)
        await refuse(send, failure, path, receive)


def given_key(headers: Mapping[bytes, bytes]) -> str:
    """What a client shows: Anthropic's header is read as OpenAI's."""
    own = headers.get(b"x-api-key")
    given = headers.get(b"authorization", b"" if own is None else b"Bearer " + own)
    return given.decode("latin-1")


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


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


async def refuse(send: Send, failure: Failure, path: str, receive: Receive | None) -> None:
    """Answer without the application; the rest of a body, where there is one, is thrown away."""
    body = json.dumps(failure.body_for(path)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in failure.headers.items()),
    ]
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if receive is not None:  # hanging up on who still sends would reset the answer away
        await bodies.drain(receive, LINGER_S)
    await send({"type": "http.response.body", "body": b"", "more_body": False})

"""Whose pages may ask: the names a server answers to, and the sites its requests come from.

A browser sends any page's requests to loopback, and a name that points there now (DNS rebinding)
makes them look like the server's own; programs other than browsers are not concerned. Knows headers
only, no keys.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from parlay.front.errors import Failure

_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL_NAMES


class Browsers:
    """The rules for one server."""

    def __init__(self, bound: str, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._any_host = "*" in hosts
        self._any_origin = "*" in origins
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._bound = bound.lower()
        self._public = _is_unspecified(bound)

    def refusal(self, headers: Mapping[bytes, bytes], *, named: bool) -> Failure | None:
        """Why a request is refused. `named`: the name it was sent to matters."""
        host = headers.get(b"host", b"").decode("latin-1").strip().lower()
        if named and host and not self._knows(_without_port(host)):
            return _forbidden(
                f"this server does not answer to the name {host[:100]!r}; add it to"
                " server.allowed_hosts",
                "host_not_allowed",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").strip().lower()
        if origin and not self._any_origin and not self._is_known(origin, host):
            return _forbidden(
                f"pages of {origin[:100]!r} may not ask; add it to server.cors_origins",
                "origin_not_allowed",
            )
        return None

    def _knows(self, host: str) -> bool:
        if self._any_host or host == self._bound or host in self._hosts or is_loopback(host):
            return True
        # Nobody can make an address point elsewhere: only names are rebound.
        return self._public and (_is_address(host) or host == socket.gethostname().lower())

    def _is_known(self, origin: str, host: str) -> bool:
        """The server's own pages, and those of the sites it names."""
        if origin in self._origins:
            return True
        site = _place(origin)  # a proxy may have turned https into http: the scheme says nothing
        return site is not None and site == _place(f"{origin.partition(':')[0]}://{host}")


@functools.lru_cache(maxsize=8)
def browsers(bound: str, hosts: tuple[str, ...], origins: tuple[str, ...]) -> Browsers:
    """The same rules for every request, until the deployment changes them."""
    return Browsers(bound, hosts, origins)


def _forbidden(message: str, code: str) -> Failure:
    return Failure(403, message, code=code)


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() and not name.endswith(":") else host).strip("[]")


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _place(url: str) -> tuple[str, int | None] | None:
    """Host and port; none where there is no host, as in `null` and `file://`."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None

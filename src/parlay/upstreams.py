"""Pools of OpenAI-compatible servers, as the deployment file names them under `upstreams:`.

Knows addresses, names and bounds; asks nobody. The remote backend acts on it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"


class Pool(BaseModel):
    """Servers that answer alike: the same target, all speculating or all plain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME)
    urls: tuple[str, ...] = Field(min_length=1, max_length=4096)
    speculative: bool = False
    model: str | None = None  # what to ask them for; absent: the first they list
    api_key: SecretStr | None = None
    api_key_file: str | None = None
    health: str = Field("/health", pattern=r"^/[^\s?#]*$")
    max_concurrent: int = Field(64, ge=1, le=65536)  # of each server; what is over waits here

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_address(value) for value in values)


def _address(value: str) -> str:
    """The address without a trailing /v1; a password does not belong into it."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("must be an address such as http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("keys do not belong into an address; use api_key_file")
    return value.rstrip("/").removesuffix("/v1").rstrip("/")


def repeated(pools: tuple[Pool, ...]) -> str | None:
    """A name or an address that stands there twice."""
    names = [pool.name for pool in pools]
    urls = [url for pool in pools for url in pool.urls]
    return next((x for found in (names, urls) for x in found if found.count(x) > 1), None)

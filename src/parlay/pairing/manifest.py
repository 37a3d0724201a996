"""The manifest, `pairs.yaml`: which drafter goes with which target.

Two files are read: the user's, then the shipped one. Knows files and YAML, not models.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from parlay import store
from parlay.errors import BadRequest

NAME = "pairs.yaml"
VERSION = 1


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Member(_Entry):
    """One model file of a pair; a drafter without a file, such as suffix, has only a name."""

    name: str
    path: str | None = None  # where it was when it was recorded
    sha256: str | None = None
    bytes: int | None = None
    mtime_ns: int | None = None
    quantisation: str | None = None
    tokenizer: str | None = None  # fingerprint

    @property
    def is_file(self) -> bool:
        return self.sha256 is not None


class Pair(_Entry):
    """A target and its drafter."""

    target: Member
    drafter: Member
    verdict: str
    notes: str = ""

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.drafter.name}"

    def same_files(self, other: Pair) -> bool:
        """Whether both pair the same two files."""
        mine = (self.target.sha256, self.drafter.sha256 or self.drafter.name)
        return mine == (other.target.sha256, other.drafter.sha256 or other.drafter.name)


class Manifest(_Entry):
    """Pairs in order; the first that matches is used."""

    version: int = VERSION
    pairs: tuple[Pair, ...] = ()


def config_folder() -> Path:
    """The user's configuration folder for Parlay; PARLAY_CONFIG moves it."""
    given = os.environ.get("PARLAY_CONFIG")
    return Path(given).expanduser() if given else Path(platformdirs.user_config_dir("parlay"))


def user_manifest() -> Manifest:
    """The user's own, empty if there is none."""
    path = config_folder() / NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Manifest()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}; repair or remove it") from None
    return parse_manifest(text, str(path))


def shipped_manifest() -> Manifest:
    """The one in the package."""
    text = resources.files("parlay.pairing").joinpath(NAME).read_text("utf-8")
    return parse_manifest(text, f"the shipped {NAME}")


def all_pairs() -> tuple[Pair, ...]:
    """The user's pairs first: they override what is shipped."""
    return user_manifest().pairs + shipped_manifest().pairs


def parse_manifest(text: str, source: str) -> Manifest:
    """Check every key and value."""
    try:
        raw: Any = yaml.safe_load(text) or {}
        found = Manifest.model_validate(raw)
    except yaml.YAMLError as error:
        raise BadRequest(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{source}: {where}: {first['msg']}; repair or remove it") from None
    if found.version != VERSION:
        raise BadRequest(f"{source} has version {found.version}, this Parlay reads {VERSION}")
    return found


def save_pair(pair: Pair) -> Path:
    """Put a pair at the front of the user's manifest, in place of an older record of it."""
    path = config_folder() / NAME
    try:
        with store.locked(path):
            others = [known for known in user_manifest().pairs if not known.same_files(pair)]
            return _write(Manifest(pairs=(pair, *others)))
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror})") from None


def _write(manifest: Manifest) -> Path:
    path = config_folder() / NAME
    text = yaml.safe_dump(
        manifest.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True
    )
    try:
        with store.whole(path) as part:
            part.write_text(text, "utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror})") from None
    return path

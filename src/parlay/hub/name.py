"""What a model's name means: a file, the default model, a repository, Ollama's, or a short name.

Reads the name and asks whether such a file exists; looks into no folder and asks no network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from parlay.errors import BadRequest
from parlay.models import DEFAULT_NAMES

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<quantisation>[A-Za-z0-9_.-]+))?(?:/(?P<file>.+))?"
)
_OLLAMA = re.compile(rf"(?P<model>{_WORD}(?:/{_WORD}){{0,2}})(?::(?P<tag>[A-Za-z0-9_.-]+))?")


@dataclass(frozen=True, slots=True)
class DefaultName:
    """The default model."""


@dataclass(frozen=True, slots=True)
class FileName:
    """A file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub, and what of it is wanted."""

    repo: str
    quantisation: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"hf:{self.repo}/{self.file}"
        return self.repo + (f":{self.quantisation}" if self.quantisation else "")


@dataclass(frozen=True, slots=True)
class OllamaName:
    """A model as Ollama names it."""

    model: str
    tag: str = "latest"

    def __str__(self) -> str:
        return f"ollama:{self.model}:{self.tag}"


@dataclass(frozen=True, slots=True)
class ShortName:
    """A model that is already here, by a part of its name."""

    text: str


Name = DefaultName | FileName | HubName | OllamaName | ShortName


def parse_name(text: str, folder: Path | None = None) -> Name:
    """A file that exists goes first, then what looks like a path, then names."""
    if text in DEFAULT_NAMES:
        return DefaultName()
    if text.startswith("hf:"):
        return _hub(text.removeprefix("hf:"))
    if text.startswith("ollama:"):
        return _ollama(text.removeprefix("ollama:"))
    path = (folder or Path()) / Path(text).expanduser()
    if _is_path(text) or path.exists():
        return FileName(path)
    found = _HUB.fullmatch(text)
    if found is not None and found["file"] is None:
        return HubName(found["repo"], found["quantisation"])
    return FileName(path) if "/" in text else ShortName(text)


def is_name(text: str, folder: Path | None = None) -> bool:
    """Whether this stands for something else than a file."""
    return not isinstance(parse_name(text, folder), FileName)


def _is_path(text: str) -> bool:
    return not text or text.lower().endswith(".gguf") or text[0] in "./~\\"


def _hub(text: str) -> HubName:
    found = _HUB.fullmatch(text)
    if found is None:
        raise BadRequest(
            f"hf:{text} names no repository; write hf:org/repo, hf:org/repo:Q4_K_M or"
            " hf:org/repo/file.gguf"
        )
    return HubName(found["repo"], found["quantisation"], found["file"])


def _ollama(text: str) -> OllamaName:
    found = _OLLAMA.fullmatch(text)
    if found is None:
        raise BadRequest(f"ollama:{text} names no model; write ollama:llama3.2 or ollama:name:tag")
    return OllamaName(found["model"], found["tag"] or "latest")

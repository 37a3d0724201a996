"""Where programs keep model files on this machine, and under which names: a list of files.

Reads folders and small manifests; changes nothing anywhere, opens no model.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from parlay.hub.name import HubName
from parlay.hub.variant import is_first_part, quantisation_of, split_of
from parlay.models import default_file

Program = Literal["parlay", "hub", "llama.cpp", "ollama", "lm studio"]
_MAX_FILES = 5000  # of each program
_MAX_MANIFEST = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"
_OLLAMA_HOST, _OLLAMA_OWN = "registry.ollama.ai", "library"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model file with the name it can be asked for by."""

    name: str
    path: Path
    program: Program

    @property
    def aliases(self) -> frozenset[str]:
        """Short names, in lower case."""
        stem = split_of(self.path.name)[0] if self.path.suffix == ".gguf" else ""
        own = self.name.removeprefix("hf:").removeprefix("ollama:").removesuffix(":latest")
        mark = quantisation_of(stem)
        bare = stem[: -len(mark)].rstrip("-._") if mark and stem.upper().endswith(mark) else stem
        repo = own.rpartition("/")[2].partition(":")[0].removesuffix("-GGUF").removesuffix("-gguf")
        found = (self.name, own, stem, f"{stem}.gguf" if stem else "", bare, repo)
        return frozenset(alias.lower() for alias in found if alias)


def everything() -> list[Entry]:
    """What every program left here; one that cannot be read holds nothing."""
    return [*own(), *hub_cache(), *llama_cache(), *ollama(), *lm_studio()]


def own() -> list[Entry]:
    """The default model, if it has been fetched."""
    path = default_file()
    return [Entry("default", path, "parlay")] if path.is_file() else []


# -- the hub's cache --------------------------------------------------------------------------


def hub_folder() -> Path:
    """As huggingface_hub decides: HF_HUB_CACHE, else below HF_HOME."""
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(given)).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(os.path.expandvars(home)) if home else _cache_home() / "huggingface"
    return base.expanduser() / "hub"


def hub_cache(repo: str | None = None) -> list[Entry]:
    """GGUF files of the snapshots, the newest of each repository first."""
    pattern = "models--*" if repo is None else "models--" + repo.replace("/", "--")
    return _bounded(lambda: _hub_files(hub_folder(), pattern))


def _hub_files(folder: Path, pattern: str) -> Iterator[Entry]:
    for repo in sorted(folder.glob(pattern)):
        name = repo.name.removeprefix("models--").replace("--", "/", 1)
        seen: set[str] = set()
        for snapshot in _newest_first(repo):
            for path in sorted(snapshot.rglob("*.gguf")):
                file = path.relative_to(snapshot).as_posix()
                if file not in seen and is_first_part(file) and path.is_file():
                    seen.add(file)
                    yield Entry(hub_name(name, file), path, "hub")


def hub_name(repo: str, file: str) -> str:
    """By its quantisation where the file's name tells it, else by the file."""
    mark = quantisation_of(split_of(file)[0].rsplit("/", 1)[-1])
    return str(HubName(repo, mark)) if mark else str(HubName(repo, file=file))


def _newest_first(repo: Path) -> list[Path]:
    """The snapshot that `main` names, then the others."""
    try:
        main = (repo / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    found = [path for path in (repo / "snapshots").glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != main, -path.stat().st_mtime))


# -- llama.cpp, LM Studio ---------------------------------------------------------------------


def llama_cache() -> list[Entry]:
    """`org_repo_file.gguf` in one folder."""
    given = os.environ.get("LLAMA_CACHE")
    home = _cache_home() if platform.system() != "Darwin" else Path.home() / "Library" / "Caches"
    folder = Path(given).expanduser() if given else home / "llama.cpp"
    return _bounded(lambda: _loose(folder, "*.gguf", "llama.cpp"))


def lm_studio() -> list[Entry]:
    """`publisher/repository/file.gguf`, in the folder of today or of older versions."""
    home = Path.home()
    pointer = home / ".lmstudio-home-pointer"
    folders = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    if (told := _text(pointer)) is not None and told.strip():
        folders.insert(0, Path(told.strip()))
    folders = list(dict.fromkeys(folders))
    return _bounded(
        lambda: (e for f in folders for e in _loose(f / "models", "*/*/*.gguf", "lm studio"))
    )


def _loose(folder: Path, pattern: str, program: Program) -> Iterator[Entry]:
    for path in sorted(folder.glob(pattern)):
        if is_first_part(path.name) and path.is_file():
            yield Entry(split_of(path.name)[0], path, program)


# -- Ollama -----------------------------------------------------------------------------------


def ollama_folders() -> list[Path]:
    """OLLAMA_MODELS, else the user's folder and the one of a system service."""
    if given := os.environ.get("OLLAMA_MODELS"):
        return [Path(given).expanduser()]
    return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def ollama() -> list[Entry]:
    """Blobs by their manifests, `manifests/host/owner/model/tag`."""
    return _bounded(lambda: (e for folder in ollama_folders() for e in _manifests(folder)))


def _manifests(folder: Path) -> Iterator[Entry]:
    for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
        blob = _blob(folder, manifest)
        if blob is not None and blob.is_file():
            host, owner, model, tag = manifest.parts[-4:]
            whole = model if owner == _OLLAMA_OWN else f"{owner}/{model}"
            whole = whole if host == _OLLAMA_HOST else f"{host}/{owner}/{model}"
            yield Entry(f"ollama:{whole}:{tag}", blob, "ollama")


def _blob(folder: Path, manifest: Path) -> Path | None:
    """The file of the layer that holds the weights."""
    try:
        content: Any = json.loads(_text(manifest) or "")
        layers = [layer for layer in content["layers"] if layer["mediaType"] == _MODEL_LAYER]
        algorithm, digest = str(layers[0]["digest"]).split(":")
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return folder / "blobs" / f"{algorithm}-{digest}" if digest.isalnum() else None


# -- shared -----------------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8") if path.stat().st_size <= _MAX_MANIFEST else None
    except (OSError, UnicodeDecodeError):
        return None


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()


def _bounded(entries: Callable[[], Iterator[Entry]]) -> list[Entry]:
    """A folder that may not be read, or goes away meanwhile, ends its list."""
    found: list[Entry] = []
    try:
        found.extend(islice(entries(), _MAX_FILES))
    except OSError:
        return found
    return found

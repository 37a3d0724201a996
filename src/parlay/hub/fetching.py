"""Fetching a variant into the hub's own cache: room on the disk, the download, the sums.

The hub's library downloads, resumes and locks; what it does not check is checked here.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from parlay import store
from parlay.errors import ModelUnavailable
from parlay.hub.place import hub_folder
from parlay.hub.repository import Repository, endpoint, explained
from parlay.hub.variant import RemoteFile, Variant
from parlay.llama.header import read_parts
from parlay.pairing.hashes import sha256_of

Say = Callable[[str], None]
GB = 1e9
_SPARE = 64 << 20
PULLED = "pulled"  # records of what was fetched by us, and may be removed by us


def fetch(repository: Repository, variant: Variant, say: Say) -> Path:
    """The first file's path in the hub's cache; what is there already is not fetched again."""
    missing = [file for file in variant.files if cached(repository.name, file) is None]
    if missing:
        _check_room(repository, variant, sum(file.n_bytes for file in missing))
        licence = repository.licence or "not told"
        say(
            f"Fetching {repository.name} {variant.label}: {variant.n_bytes / GB:.2f} GB,"
            f" licence {licence}"
        )
    paths = [_fetch_file(repository.name, file) for file in variant.files]
    for file, path in zip(variant.files, paths, strict=True):
        if file in missing:
            _check_sum(repository.name, file, path)
            store.save(PULLED, store.fingerprint(str(path)), {"path": str(path)})
    return paths[0]


def cached(repo: str, file: RemoteFile) -> Path | None:
    """The file in the cache, if it is whole."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file.path, cache_dir=hub_folder())
    path = Path(found) if isinstance(found, str) else None
    return path if path is not None and path.stat().st_size == file.n_bytes else None


def _fetch_file(repo: str, file: RemoteFile) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        with explained(repo):
            path = hf_hub_download(repo, file.path, cache_dir=hub_folder(), endpoint=endpoint())
    except OSError as error:
        drop_empty(repo)
        raise _broken(repo, file, error) from None
    except BaseException:  # Ctrl-C too: nothing half is left behind
        drop_empty(repo)
        raise
    return Path(path)


def _broken(repo: str, file: RemoteFile, error: OSError) -> ModelUnavailable:
    if error.errno == errno.ENOSPC:
        return ModelUnavailable(
            f"the disk was full before {file.path} of {repo} was whole; free some room, or set"
            " HF_HUB_CACHE to a larger disk"
        )
    reason = " ".join(str(error).split())[:160]
    return ModelUnavailable(f"{file.path} of {repo} could not be fetched ({reason}); try again")


def _check_room(repository: Repository, variant: Variant, needed: int) -> None:
    folder = hub_folder()
    free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    if needed + _SPARE <= free:
        return
    smaller = [v for v in repository.variants if v.n_bytes + _SPARE <= free]
    advice = f"name a smaller one such as {smaller[-1].label}, " if smaller else ""
    raise ModelUnavailable(
        f"{repository.name} {variant.label} takes {needed / GB:.2f} GB and the disk has"
        f" {free / GB:.2f} GB free; {advice}free some room, or set HF_HUB_CACHE to a larger disk"
    )


def _check_sum(repo: str, file: RemoteFile, path: Path) -> None:
    """The library checks sizes; a file of the right size may still be another."""
    if file.sha256 is None or sha256_of(path) == file.sha256:
        return
    forget(path)
    drop_empty(repo)
    raise ModelUnavailable(
        f"{file.path} of {repo} arrived with another SHA-256 than the hub lists and was removed;"
        " try again, and if it happens again another mirror"
    )


# -- removing ---------------------------------------------------------------------------------


def is_ours(path: Path) -> bool:
    """Whether Parlay fetched this file."""
    return store.load(PULLED, store.fingerprint(str(path))) is not None


def remove(path: Path) -> int:
    """Delete a file that Parlay fetched, every part of it; returns the bytes that went."""
    parts = [header.path for header in read_parts(path)]
    n_bytes = sum(part.stat().st_size for part in parts)
    for part in parts:
        forget(part)
    repo = path.relative_to(hub_folder()).parts[0].removeprefix("models--").replace("--", "/", 1)
    drop_empty(repo)
    return n_bytes


def forget(path: Path) -> None:
    """The name in the snapshot, and the blob behind it unless another name needs it."""
    blob = path.resolve()
    path.unlink(missing_ok=True)
    snapshots = hub_folder() / path.relative_to(hub_folder()).parts[0] / "snapshots"
    if not any(other.resolve() == blob for other in snapshots.rglob("*") if other.is_symlink()):
        blob.unlink(missing_ok=True)
    store.remove(PULLED, store.fingerprint(str(path)))


def drop_empty(repo: str) -> None:
    """Folders of a repository of which nothing is here; others' files are never touched."""
    folder = hub_folder() / ("models--" + repo.replace("/", "--"))
    blobs = folder / "blobs"
    if not folder.is_dir() or (blobs.is_dir() and any(blobs.iterdir())):
        return
    if any(path.is_file() for path in (folder / "snapshots").rglob("*")):
        return
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        shutil.rmtree(hub_folder() / ".locks" / folder.name)

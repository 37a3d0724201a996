"""Slots saved, restored and erased by name, as llama.cpp's server does it.

Knows the engine and one folder; copies are made on the worker's thread, files on another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, cast

from parlay import store
from parlay.ask import Refused
from parlay.deployment import DeploymentError
from parlay.engine.engine import Engine
from parlay.engine.slots import Kept
from parlay.errors import BadRequest
from parlay.llama import library
from parlay.llama.sequence_file import SequenceFile
from parlay.llama.undo import SavedSequence
from parlay.refusals import Declined

T = TypeVar("T")
_MOST_NAME = 128  # bytes


def check_slot_folder(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made; makes none."""
    if not store.can_hold(folder):
        raise _no_folder(folder, "it cannot be made or written to")


def make_slot_folder(folder: Path) -> None:
    """What is saved are conversations: a new folder is its owner's alone."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(folder, error.strerror) from None


def _no_folder(folder: Path, why: str | None) -> DeploymentError:
    return DeploymentError(
        f"server.slot_save_path: {folder} is no folder to save to ({why}); name another"
    )


class SlotFiles:
    """One engine's saved slots. Without a folder nothing is saved, and erasing still works."""

    def __init__(self, engine: Engine, folder: Path | None, most_bytes: int) -> None:
        self._engine = engine
        self._folder = folder
        self._most_bytes = most_bytes
        # Whose a name is, what is there already and the writing are one step: two who save at once
        # under one name, or into the last of the room, come one after the other.
        self._saving = asyncio.Lock()

    async def save(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        """Write what a slot holds."""
        started, path = perf_counter(), self._path(name)
        await asyncio.to_thread(self._check_owner, path, owner)  # before anything is copied
        kept = await self._on_worker(lambda: self._engine.slots.copy(slot, owner))
        saved = cast(SavedSequence, kept.saved)
        made_with, firm_with = await self._on_worker(self._made_with)
        tokens = tuple(kept.tokens)
        file = SequenceFile(made_with, owner, tokens, saved, kept.n_firm, firm_with)
        async with self._saving:
            await asyncio.to_thread(self._check_owner, path, owner)
            n = await asyncio.to_thread(self._write, file, path)
        return {
            "id_slot": slot,
            "filename": name,
            "n_saved": len(kept.tokens),
            "n_written": n,
            "timings": {"save_ms": _ms(started)},
        }

    async def restore(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        """Read a saved conversation into a slot."""
        started, path = perf_counter(), self._path(name)
        self._check_owner(path, owner)
        if not path.exists():
            raise BadRequest(f"nothing was saved as {name}")
        made_with, firm_with = await self._on_worker(self._made_with)
        file = await asyncio.to_thread(SequenceFile.read, path, made_with)
        n_firm = file.n_firm if file.firm_with == firm_with else 0
        kept = Kept(owner, list(file.tokens), file.saved, n_firm)
        await self._on_worker(lambda: self._engine.slots.fill(slot, kept))
        return {
            "id_slot": slot,
            "filename": name,
            "n_restored": len(kept.tokens),
            "n_read": path.stat().st_size,
            "timings": {"restore_ms": _ms(started)},
        }

    async def erase(self, slot: int, owner: str) -> dict[str, Any]:
        """Forget what a slot holds."""
        n = await self._on_worker(lambda: self._engine.slots.erase(slot, owner))
        return {"id_slot": slot, "n_erased": n}

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(work))

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise BadRequest("this server saves no slots; set server.slot_save_path to a folder")
        plain = name and all(c.isalnum() or c in "._-" for c in name) and not name.startswith(".")
        # File systems count bytes, 255 of them, and writing needs some for a name of its own.
        if not plain or len(name.encode()) > _MOST_NAME:
            raise BadRequest(
                f"the filename may have letters, digits and . _ - ({_MOST_NAME} bytes at most)"
            )
        return self._folder / name

    def _check_owner(self, path: Path, owner: str) -> None:
        """Names are everybody's, what is saved under them is not."""
        if path.exists() and SequenceFile.owner_of(path) != owner:
            raise BadRequest(f"{path.name} is another's; choose another name")

    def _write(self, file: SequenceFile, path: Path) -> int:
        """However the folder is by now: it may have been taken away, or be full."""
        try:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            self._check_room(path, file.saved.n_bytes)
            return file.write(path)
        except OSError as error:
            message = f"{path.name} cannot be saved ({error.strerror}); see server.slot_save_path"
            raise Declined(Refused(500, message, "server_error", "slot_save")) from None

    def _check_room(self, path: Path, n_bytes: int) -> None:
        others = [f for f in path.parent.iterdir() if f != path and f.is_file()]
        used = sum(file.stat().st_size for file in others)
        if used + n_bytes > self._most_bytes:
            raise BadRequest(
                f"saved slots take {used >> 20} MB of {self._most_bytes >> 20}; delete some of"
                " them or raise server.slot_save_mb"
            )

    def _made_with(self) -> tuple[str, str]:
        """Without which a state is of no use, and without which it is not exact; asks llama.cpp."""
        engine = self._engine
        identity = store.file_identity(engine.settings.target)
        kinds = engine.target.rollback, engine.target.cache_types
        needed = store.fingerprint(identity, library.version(), *kinds, engine.settings.model)
        return needed, engine.firm_key


def _ms(started: float) -> float:
    return round((perf_counter() - started) * 1e3, 3)

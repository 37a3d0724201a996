"""A saved sequence as a file: a line of JSON, then the bytes of its states.

Knows the form, and tells a damaged or foreign file from a good one; knows nothing of slots.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from parlay.errors import BadRequest
from parlay.llama.undo import SavedSequence, State

_FORM = "parlay-sequence-1"
_LONGEST_HEAD = 64 << 20  # the tokens are in it


@dataclass(frozen=True, slots=True)
class SequenceFile:
    """What is in a file."""

    made_with: str  # model, library and cache types: a state is of use to no other
    owner: str
    tokens: tuple[int, ...]
    saved: SavedSequence
    n_firm: int = 0  # of the tokens, cached as they would be whoever had read them
    firm_with: str = ""  # the settings under which they are

    def write(self, path: Path) -> int:
        """Write it, whole or not at all; how many bytes it took."""
        states = (self.saved.whole, *self.saved.marks)
        head = {
            "form": _FORM,
            "made_with": self.made_with,
            "owner": self.owner,
            "tokens": self.tokens,
            "n_firm": self.n_firm,
            "firm_with": self.firm_with,
            "cuts_anywhere": self.saved.cuts_anywhere,
            "states": [[s.length, s.n_bytes, s.flags] for s in states],
            "digest": _digest(states),
        }
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as out:
            out.write(json.dumps(head).encode() + b"\n")
            for state in states:
                out.write(memoryview(state.data))
        part.replace(path)
        return path.stat().st_size

    @classmethod
    def owner_of(cls, path: Path) -> str:
        """Whose it is, without reading its states."""
        try:
            with path.open("rb") as source:
                return str(json.loads(source.readline(_LONGEST_HEAD))["owner"])
        except (OSError, ValueError, LookupError, TypeError):
            raise BadRequest(f"{path.name} is no saved slot, or a damaged one") from None

    @classmethod
    def read(cls, path: Path, made_with: str) -> SequenceFile:
        """Read one that this model and library wrote."""
        try:
            with path.open("rb") as source:
                return cls._read(source, made_with, path.name)
        except (OSError, ValueError, LookupError, TypeError):
            raise BadRequest(f"{path.name} is no saved slot, or a damaged one") from None

    @classmethod
    def _read(cls, source: BinaryIO, made_with: str, name: str) -> SequenceFile:
        head = json.loads(source.readline(_LONGEST_HEAD))
        if head["form"] != _FORM:
            raise ValueError(head["form"])
        if head["made_with"] != made_with:
            raise BadRequest(f"{name} was saved with another model, library or cache type")
        states = [State(n, _bytes(source, size), flags) for n, size, flags in head["states"]]
        if head["digest"] != _digest(states) or states[0].length != len(head["tokens"]):
            raise ValueError("damaged")
        whole, *marks = states
        saved = SavedSequence(whole, tuple(marks), bool(head["cuts_anywhere"]))
        firm = int(head["n_firm"]), str(head["firm_with"])
        return cls(made_with, str(head["owner"]), tuple(head["tokens"]), saved, *firm)


def _bytes(source: BinaryIO, size: int) -> ctypes.Array[ctypes.c_uint8]:
    data = source.read(size)
    if len(data) != size:
        raise ValueError("cut short")
    return (ctypes.c_uint8 * size).from_buffer_copy(data)


def _digest(states: Iterable[State]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for state in states:
        made.update(memoryview(state.data))
    return made.hexdigest()

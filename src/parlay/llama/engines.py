"""Engines: folders of llama.cpp's libraries, and which of them this process opens.

Looks at files alone; does not know what is in a library (binding.py does). In this order: the one
that was named (`--engine`, PARLAY_ENGINE), one built or fetched on this machine, the one that pip
installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from parlay.errors import EngineError
from parlay.llama.binding import fitting
from parlay.store import cache_folder

NAMED = "PARLAY_ENGINE"
RECORD = "engine.json"  # beside libraries that were built or fetched: what is in there
_LIBRARIES = ("libllama.so", "libllama.dylib", "llama.dll", "libllama.*.so", "xllamacpp*.so")
_PACKAGES = {"xllamacpp": "", "llama_cpp": "lib"}  # and where in them the libraries are
_WHEEL_NEEDS = frozenset({"avx2", "f16c", "fma"})  # xllamacpp's kernels, on x86-64
_GPU_LIBRARIES = ("cuda", "hip", "vulkan", "sycl", "musa")
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # ELF's numbers
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.+)$", re.MULTILINE)
# What a compiler that builds for one CPU makes use of.
_USED = re.compile(r"avx|amx|fma|f16c|bmi|sse|ssse|asimd|sve|i8mm|bf16")


@dataclass(frozen=True, slots=True)
class Engine:
    """A folder of libraries."""

    name: str
    source: str  # named, built, fetched, or installed
    library: Path  # the one that is opened; it brings the others
    needs: frozenset[str] = frozenset()  # of the processor

    @property
    def folder(self) -> Path:
        return self.library.parent

    @property
    def loads_kernels(self) -> bool:
        """Whether kernels for several processors, or devices, lie beside it for ggml to choose."""
        return any(self.folder.glob("libggml-cpu-*"))


def engines_folder() -> Path:
    """Where those are that were built or fetched here."""
    return cache_folder() / "engines"


def find() -> Engine:
    """The one to open; EngineError where there is none, or it cannot be for this machine."""
    given = os.environ.get(NAMED)
    engine = _named(given) if given else next(found(), None)
    if engine is None:
        raise EngineError(
            "no engine: llama.cpp's libraries are not installed; pip install"
            " xllamacpp==2026.10.11549, or compile them by `parlay engine build`"
        )
    check(engine)
    return engine


def hint() -> str:
    """What this machine would gain by another engine, in one line; empty where that is nothing or
    was not measured. Told from files alone; nothing is fetched unasked."""
    with suppress(EngineError):
        if find().name == "xllamacpp" and "avx512f" in cpu_flags():
            return (
                "this processor has AVX-512, which the engine in use leaves alone: others decode"
                " 1.1 to 1.3 times as fast with it and read prompts 1 to 2 times (docs/results.md);"
                " parlay engine fetch brings one (11 MB)"
            )
    return ""


def open_early() -> None:
    """Open one that computes on GPUs: some of their libraries crash when numpy's came first. What
    is wrong with it is told when it is used."""
    with suppress(EngineError, OSError):
        engine = find()
        if any(list(engine.folder.glob(f"*ggml-{kind}*")) for kind in _GPU_LIBRARIES):
            ctypes.CDLL(str(engine.library))


def found() -> Iterator[Engine]:
    """Every engine that is here, the one that would be opened first."""
    yield from _made_here()
    for package, inside in _PACKAGES.items():
        folder = _package(package)
        if folder is not None and (library := _library_in(folder / inside)) is not None:
            is_x86 = platform.machine().lower() in ("x86_64", "amd64")
            needs = _WHEEL_NEEDS if package == "xllamacpp" and is_x86 else frozenset()
            yield Engine(package, "installed", library, needs)


def _named(given: str) -> Engine:
    """By its folder, its library, or its name in the list of those found."""
    for engine in found():
        if given == engine.name:
            return engine
    return at(Path(given).expanduser())


def at(path: Path) -> Engine:
    """The one in a folder, or with this library."""
    library = path if path.is_file() else _library_in(path)
    if library is None:
        names = ", ".join(engine.name for engine in found()) or "none"
        raise EngineError(
            f"no engine {str(path)!r}: name a folder with llama.cpp's libraries, or one of those"
            f" that `parlay engine` lists ({names})"
        )
    return Engine(str(path), "named", library.resolve(), _recorded(library.parent)[1])


def _made_here() -> Iterator[Engine]:
    """Built ones before fetched ones, and of each the newest first; not those for another CPU,
    which a home folder on several machines may hold."""
    folders = engines_folder()
    made = []
    for record in folders.glob(f"*/{RECORD}"):
        source, needs = _recorded(record.parent)
        library = _library_in(record.parent)
        if library is not None and needs <= cpu_flags():
            made.append((source != "built", -record.stat().st_mtime, record.parent.name, library))
    for is_fetched, _, name, library in sorted(made):
        source, needs = _recorded(library.parent)
        yield Engine(name, "fetched" if is_fetched else source, library, needs)


def _recorded(folder: Path) -> tuple[str, frozenset[str]]:
    with suppress(OSError, ValueError, LookupError, TypeError):
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return str(record["source"]), frozenset(map(str, record["needs"]))
    return "named", frozenset()


def _package(name: str) -> Path | None:
    """Where a package is; it is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _library_in(folder: Path) -> Path | None:
    for pattern in _LIBRARIES:
        if made := sorted(folder.glob(pattern)):
            return made[0]
    return None


# -- is it for this machine? -----------------------------------------------------------------


def check(engine: Engine) -> None:
    """Raise EngineError for what would end the process when it is opened, or when it computes."""
    missing = engine.needs - cpu_flags()
    if missing:
        raise EngineError(
            f"the engine {engine.name} is for another processor: this one lacks"
            f" {', '.join(sorted(missing))}; `parlay engine build` makes one for it"
        )
    try:
        with engine.library.open("rb") as file:
            said = _wrong_elf(file)
    except OSError as error:
        said = f"cannot be read ({error.strerror})"
    if said:
        raise EngineError(f"the engine's library {engine.library} {said}; {fitting()}")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this processor can do, as far as compilers make use of it; all that is asked for where
    the system does not say."""
    found = frozenset(flag for flag in cpu_words(cpuinfo) if _USED.match(flag))
    return found or _WHEEL_NEEDS


def cpu_words(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """All that the system tells of the processor's instructions, or else its name."""
    try:
        flags = _FLAGS.search(cpuinfo.read_text("utf-8", "replace"))
    except OSError:
        flags = None
    return flags[1].split() if flags else platform.processor().split()


def _wrong_elf(file: BinaryIO) -> str:
    """Why Linux's loader would refuse a library, or would read beyond its end; empty: neither."""
    head = file.read(64)
    if head[:4] != b"\x7fELF":  # of another system: the loader says what it thinks of it
        return "is no library" if platform.system() == "Linux" else ""
    if len(head) < 64:
        return "is truncated"
    machine = struct.unpack_from("<H", head, 18)[0]
    here = platform.machine()
    if here in _MACHINES.values() and _MACHINES.get(machine) != here:
        return f"is for {_MACHINES.get(machine, 'another kind of processor')}, this is {here}"
    headers, sections = struct.unpack_from("<QQ", head, 32)
    header_size, n_headers, section_size, n_sections = struct.unpack_from("<HHHH", head, 54)
    end = max(headers + header_size * n_headers, sections + section_size * n_sections)
    file.seek(headers)
    table = file.read(header_size * n_headers)
    for at in range(0, len(table) - header_size + 1, header_size):
        offset, in_file = struct.unpack_from("<Q", table, at + 8)[0], table[at + 32 : at + 40]
        end = max(end, offset + int.from_bytes(in_file, "little"))
    return "is truncated: fetch or build it again" if file.seek(0, os.SEEK_END) < end else ""

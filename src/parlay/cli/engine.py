"""`parlay engine`: which of llama.cpp's libraries are here; compile or fetch others.

Knows how engines are made and where they are kept (parlay.llama.engines finds them again); nothing
of models. Nothing is fetched or compiled unless it was asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from parlay.cli.common import Json, described
from parlay.errors import BadRequest, EngineError, ModelUnavailable
from parlay.llama import engines, library
from parlay.llama.cpu import features
from parlay.store import cache_folder

SDIST = "0.3.36"  # of llama-cpp-python, whose sources are the release that the binding knows
# No vision: half the time.
_USUAL = "-DLLAVA_BUILD=OFF"
# Before ggml's kernels for AMX begin they load a record that compilers optimise away (seen with GCC
# 12): the first pass ends the process.
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_STEP = re.compile(r"^\s*\[\s*(\d+)(?:/(\d+)|%)\]")  # of ninja, or of make

NPM = "https://registry.npmjs.org/@node-llama-cpp"
NPM_VERSION = "3.22.1"
# npm's own checksums (SHA-512) of that version, by machine and what it computes on.
_PACKAGES = {
    ("x86_64", "cpu"): (
        "linux-x64",
        "5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==",
    ),
    ("aarch64", "cpu"): (
        "linux-arm64",
        "W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ==",
    ),
    ("x86_64", "vulkan"): (
        "linux-x64-vulkan",
        "bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg==",
    ),
}
_MOST_BYTES = 128 << 20  # of a package
_NPM_LIBRARY = re.compile(r"package/bins/[^/]+/(lib(?:llama|ggml)[^/]*\.so)")

EXAMPLE = """
Example: parlay engine build -- -DGGML_CUDA=on
"""


def register(app: typer.Typer) -> None:
    """Add the verb and its parts."""
    verbs = typer.Typer(
        invoke_without_command=True, help=described("Which builds of llama.cpp are here.", EXAMPLE)
    )
    verbs.callback()(listed)
    verbs.command("build", help="Compile one for this machine; options of CMake after --.")(build)
    verbs.command("fetch", help="Fetch prebuilt kernels for many processors, or for Vulkan.")(fetch)
    app.add_typer(verbs, name="engine")


# -- which there are -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine says of itself, or why it cannot be used."""

    release: str = ""
    kernels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    error: str = ""


def listed(context: typer.Context, json_output: Json = False) -> None:
    """List engines; the first one is used unless another is named."""
    if context.invoked_subcommand is not None:
        return
    found = [(engine, ask(engine)) for engine in _all()]
    if json_output:
        rows = [
            {"name": e.name, "source": e.source, "folder": str(e.folder), **asdict(told)}
            for e, told in found
        ]
        typer.echo(json.dumps(rows))
        return
    if not found:
        raise EngineError("no engine is here: pip install xllamacpp, or parlay engine build")
    used = _used()
    table = Table(box=None, pad_edge=False)
    for title in ("", "engine", "from", "llama.cpp", "kernels", "devices"):
        table.add_column(title)
    for engine, told in found:
        mark = "*" if used == engine.library else ""
        what = (told.error, "", "")
        if not told.error:
            what = (told.release, " ".join(told.kernels), ", ".join(told.devices))
        table.add_row(mark, engine.name, engine.source, *what)
    Console(highlight=False, soft_wrap=True).print(table)


def _all() -> list[engines.Engine]:
    """Those that are found, and before them one that is named and lies elsewhere."""
    found = list(engines.found())
    used = _used()
    if used is not None and used not in [engine.library for engine in found]:
        return [engines.at(used), *found]
    return found


def _used() -> Path | None:
    try:
        return engines.find().library
    except EngineError:
        return None


def ask(engine: engines.Engine) -> Told:
    """In a process of its own: one process opens one engine."""
    done = subprocess.run(
        [sys.executable, "-c", "from parlay.cli.engine import tell; tell()"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, engines.NAMED: str(engine.library)},
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout)
        lists = {name: tuple(told[name]) for name in ("kernels", "devices")}
        return Told(**{**told, **lists})
    except (ValueError, LookupError, TypeError):
        return Told(error=f"ended with code {done.returncode} when it was opened")


def tell() -> None:
    """The far side: one line of JSON."""
    try:
        devices = [d.description for d in library.devices()]
        told = Told(library.version(), tuple(fast_kernels()), tuple(devices))
    except EngineError as error:
        told = Told(error=error.message)
    print(json.dumps(asdict(told)))


def fast_kernels() -> list[str]:
    """What of this processor the kernels make use of."""
    return sorted(name for name in features() if re.match(r"AVX|AMX|NEON|SVE|VSX|RVV|MATMUL", name))


# -- made here -------------------------------------------------------------------------------


def build(
    context: typer.Context,
    options: Annotated[list[str] | None, typer.Argument(help="Options of CMake, after --.")] = None,
) -> None:
    """Compile llama.cpp for this machine: about 3 minutes on 2 cores, longer for a GPU. A build
    that was made before is taken again."""
    given = " ".join([*shlex.split(os.environ.get("CMAKE_ARGS", "")), *(options or [])])
    arguments = " ".join(filter(None, (_USUAL, _amx_arguments(), given)))
    key = _key(arguments)
    wheels = Path(os.environ.get("PARLAY_WHEEL_CACHE") or cache_folder() / "wheels") / key
    wheel = next(wheels.glob("llama_cpp_python-*.whl"), None) or _compiled(arguments, wheels)
    needs = [] if "GGML_NATIVE=OFF" in arguments else sorted(engines.cpu_flags())
    record = {"source": "built", "needs": needs, "options": arguments}
    with _new_folder(key, record) as folder, zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if re.fullmatch(r"llama_cpp/lib/lib[^/]+", name):
                (folder / Path(name).name).write_bytes(packed.read(name))


def _amx_arguments() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text("utf-8", "replace"):
        return ""
    compiler = shlex.split(os.environ.get("CXX", "c++"))  # may be several words: ccache c++
    tried = [*compiler, *_NO_AMX.split(), "-E", "-x", "c++", "/dev/null"]
    if shutil.which(compiler[0]) is None:
        return ""
    if subprocess.run(tried, check=False, capture_output=True).returncode != 0:
        return ""
    c, cxx = (f"{os.environ.get(name, '')} {_NO_AMX}".strip() for name in ("CFLAGS", "CXXFLAGS"))
    return f"-DCMAKE_C_FLAGS='{c}' -DCMAKE_CXX_FLAGS='{cxx}'"


def _key(arguments: str) -> str:
    """Of a build: pip keeps wheels by name and version alone, but one for another CPU, or with
    other options, is another one."""
    cpu = " ".join(sorted(engines.cpu_words()))
    parts = [arguments, cpu, platform.machine(), *platform.libc_ver()]
    return f"{SDIST}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}"


def _compiled(arguments: str, wheels: Path) -> Path:
    names = (*shlex.split(os.environ.get("CXX", ""))[:1], "c++", "g++", "clang++")
    if not any(map(shutil.which, names)):
        raise EngineError(
            "no C++ compiler found: install one (Debian, Ubuntu: apt-get install build-essential"
            " cmake; macOS: xcode-select --install), or parlay engine fetch"
        )
    typer.echo(f"Compiling llama.cpp for this machine, once\n  options: {arguments}", err=True)
    wheels.mkdir(parents=True, exist_ok=True)
    log = wheels / "build.log"
    with tempfile.TemporaryDirectory(dir=wheels.parent, prefix=".build-") as made:
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-cache-dir"]
        command += ["--no-binary", "llama-cpp-python", "--wheel-dir", made]
        process = subprocess.Popen(
            [*command, f"llama-cpp-python=={SDIST}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "CMAKE_ARGS": arguments, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        assert process.stdout is not None
        with log.open("w", encoding="utf-8") as kept:
            _show_progress(process.stdout, kept)
        wheel = next(Path(made).glob("*.whl"), None)
        if process.wait() or wheel is None:
            raise EngineError(f"llama.cpp did not compile: {_first_error(log)}; all of it: {log}")
        return wheel.replace(wheels / wheel.name)


def _show_progress(lines: Any, kept: Any) -> None:
    """A line for every tenth part of what is compiled."""
    shown, started = 0, time.monotonic()
    for line in lines:
        kept.write(line)
        step = _STEP.match(line)
        done = 100 * int(step[1]) // int(step[2] or 100) if step else 0
        if done >= shown + 10:
            shown = done
            typer.echo(f"  {done:3} %  {time.monotonic() - started:.0f} s", err=True)


def _first_error(log: Path) -> str:
    for line in log.read_text("utf-8", "replace").splitlines():
        if re.search(r"CMake Error|(fatal |^| )error: |^ERROR: ", line):
            return line.strip()[:200]
    return "no error was told"


# -- fetched ---------------------------------------------------------------------------------


def fetch(
    devices: Annotated[str, typer.Option(help="What it computes on: cpu or vulkan.")] = "cpu",
) -> None:
    """Fetch the kernels that npm has for node-llama-cpp: for a CPU 11 MB, fourteen sets of them,
    of which the processor takes the fastest."""
    package = _PACKAGES.get((platform.machine(), devices))
    if package is None or platform.system() != "Linux":
        known = ", ".join(f"{d} on {machine}" for machine, d in _PACKAGES)
        raise BadRequest(f"nothing to fetch for {devices} on {platform.machine()}: {known}, Linux")
    name, checksum = package
    folder = f"npm-{NPM_VERSION}" + ("" if devices == "cpu" else f"-{devices}")
    with tempfile.TemporaryFile() as packed:
        _download(f"{NPM}/{name}/-/{name}-{NPM_VERSION}.tgz", checksum, packed)
        with (
            _new_folder(folder, {"source": "fetched", "needs": [], "package": name}) as made,
            tarfile.open(fileobj=packed, mode="r:gz") as files,
        ):
            for member in files:
                wanted = _NPM_LIBRARY.fullmatch(member.name)
                if wanted and member.isfile() and (source := files.extractfile(member)):
                    with (made / wanted[1]).open("wb") as out:
                        shutil.copyfileobj(source, out)


def _download(url: str, checksum: str, into: Any) -> None:
    digest, n_bytes = hashlib.sha512(), 0
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60) as answer:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                digest.update(part)
                into.write(part)
                n_bytes += len(part)
                if n_bytes > _MOST_BYTES:
                    raise ModelUnavailable(f"{url} is larger than it should be; nothing was kept")
    except httpx.HTTPError as error:
        raise ModelUnavailable(f"{url} cannot be fetched: {error}; try again later") from None
    if base64.b64encode(digest.digest()).decode() != checksum:
        raise ModelUnavailable(f"{url} has another checksum than it should; nothing was kept")
    into.seek(0)


# -- both ------------------------------------------------------------------------------------


@contextmanager
def _new_folder(name: str, record: dict[str, Any]) -> Iterator[Path]:
    """A folder for libraries, whole or not at all: it is there once they have been opened."""
    home = engines.engines_folder()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=".part-") as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        yield folder
        (folder / engines.RECORD).write_text(json.dumps(record) + "\n", "utf-8")
        made = engines.at(folder)
        told = ask(made)
        if told.error:
            raise EngineError(f"the engine that was made cannot be used: {told.error}")
        shutil.rmtree(home / name, ignore_errors=True)
        folder.replace(home / name)
    what = f"llama.cpp {told.release}, {' '.join(told.kernels)}, on {', '.join(told.devices)}"
    typer.echo(f"{what}; it is used from now on, unless --engine names another", err=True)
    typer.echo(str(home / name))

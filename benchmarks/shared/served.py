"""Servers as processes for the benchmarks: Parlay's own, and llama.cpp's.

Knows how they start and stop; what is asked of them is the benchmarks' business.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil

from parlay.bench.peer import LlamaServer, PeerSettings

PARLAY = "from parlay.cli.entry import main; main()"


@dataclass(frozen=True, slots=True)
class Subject:
    """Who answers, and with what in the body."""

    name: str
    url: str
    extra: dict[str, Any]
    key: str = ""  # cached prompts are a key's own

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str

    @property
    def parent(self) -> psutil.Process:
        """The process that was started; of `parlay serve` it is the front."""
        return psutil.Process(self.process.pid)

    @property
    def engine(self) -> psutil.Process:
        """The process that answers."""
        return next(iter(self.parent.children()), self.parent)


@contextmanager
def parlay(*arguments: str) -> Iterator[Served]:
    """`parlay serve` with these arguments."""
    with _started([sys.executable, "-c", PARLAY, "serve", *arguments, "--json"]) as (process, line):
        yield Served(process, json.loads(line)["url"].removesuffix("/v1"))


@contextmanager
def llama(settings: PeerSettings, binary: str | Path | None = None) -> Iterator[str]:
    """llama.cpp's own server: the address it answers at. Without a binary, the one in xllamacpp."""
    found = Path(shutil.which(binary) or binary) if binary else None
    with closing(LlamaServer(settings, found)) as server:
        yield server.url


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                code = process.wait()
                said.seek(0)
                sys.exit(f"the server ended with {code}: {said.read()[-2000:].strip()}")
            yield process, line
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def wait_idle(served: Served, limit_s: float = 90.0) -> None:
    """Until nothing is measured in idle moments any more: it would cost a neighbour its cores."""
    process, end = served.engine, time.monotonic() + limit_s
    process.cpu_percent()
    while time.monotonic() < end:
        time.sleep(3.0)
        if process.cpu_percent() < 10.0:
            return


def tell(found: object, out: str | None) -> None:
    """Show a result as JSON, and keep it where a file is named."""
    text = json.dumps(found, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n")

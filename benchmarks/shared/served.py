"""Servers as processes for the benchmarks: Parlay's own, and llama.cpp's by `xllamacpp`.

Knows how they start and stop; what is asked of them is the benchmarks' business.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_S = 300.0

PARLAY = """
import logging, typer
from parlay.cli.serve import serve
logging.basicConfig(level=logging.WARNING)
typer.run(serve)
"""

LLAMA = """
import sys, time, xllamacpp as x
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
p = x.CommonParams()
p.model.path = args["model"]
p.port, p.n_parallel = int(args["port"]), int(args["slots"])
p.n_ctx = int(args["context"]) * p.n_parallel
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(args["threads"])
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.cache_ram_mib, p.fit_params = 0, False
server = x.Server(p)
print("{}", flush=True)
time.sleep(1e9)
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str

    @property
    def parent(self) -> psutil.Process:
        """The process that was started; of `parlay serve` it is the supervisor."""
        return psutil.Process(self.process.pid)

    @property
    def engine(self) -> psutil.Process:
        """The process that answers."""
        return next(iter(self.parent.children()), self.parent)


@contextmanager
def parlay(*arguments: str) -> Iterator[Served]:
    """`parlay serve` with these arguments."""
    with _started([sys.executable, "-c", PARLAY, *arguments, "--json"]) as (process, line):
        yield Served(process, json.loads(line)["url"].removesuffix("/v1"))


@contextmanager
def llama(
    model: Path,
    *,
    port: int,
    slots: int,
    context: int,
    threads: int,
    binary: str | None = None,
    extra: Sequence[str] = (),
) -> Iterator[Served]:
    """llama.cpp's own server on the same file: the one in xllamacpp, or a llama-server binary,
    which takes `extra` arguments."""
    url = f"http://127.0.0.1:{port}"
    if binary:
        command = [
            binary, "-m", str(model), "-c", str(context * slots), "-np", str(slots), "-fa", "on",
            "-ngl", "999", "--cache-ram", "0", "-t", str(threads), "--host", "127.0.0.1",
            "--port", str(port), *extra,
        ]  # fmt: skip
        started = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        try:
            _wait_healthy(url)
            yield Served(started, url)
        finally:
            started.kill()
            started.wait()
        return
    settings = {"model": model, "port": port, "slots": slots, "context": context}
    flat = [str(part) for pair in {**settings, "threads": threads}.items() for part in pair]
    with _started([sys.executable, "-c", LLAMA, *flat]) as (process, _line):
        _wait_healthy(url)
        yield Served(process, url)


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"the server ended with {process.wait()}")
        yield process, line
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _wait_healthy(url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    sys.exit("the server did not come up")


def wait_idle(served: Served, limit_s: float = 90.0) -> None:
    """Until nothing is measured in idle moments any more: it would cost a neighbour its cores."""
    process, end = served.engine, time.monotonic() + limit_s
    process.cpu_percent()
    while time.monotonic() < end:
        time.sleep(3.0)
        if process.cpu_percent() < 10.0:
            return

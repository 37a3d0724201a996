"""llama.cpp's own server as the peer: started with any kind of speculation, ended with us.

Knows how the process is started, from the `xllamacpp` wheel or from a llama-server binary; what it
answers is the endpoint's affair.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from parlay.bench.subject import SubjectError
from parlay.errors import BadRequest
from parlay.reading.bounds import one_line

SPEC_TYPES: Final = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
START_S: Final = 180.0
_WHEEL: Final = [sys.executable, "-m", "parlay.bench.peer"]


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What the server loads. Windows and threads are llama.cpp's own defaults unless given."""

    model: str
    spec_type: str = "none"
    drafter: str | None = None
    n_max: int | None = None
    n_context: int = 4096
    threads: int = 0
    gpu_layers: int = -1
    device: str | None = None
    n_slots: int = 1  # they share the context

    def __post_init__(self) -> None:
        if self.spec_type not in SPEC_TYPES:
            known = ", ".join(SPEC_TYPES)
            raise BadRequest(f"no --spec-type {self.spec_type!r} in llama.cpp; use one of {known}")
        if self.spec_type == "draft-simple" and self.drafter is None:
            raise BadRequest("draft-simple needs a drafter; give --peer-drafter PATH")


class LlamaServer:
    """A running server; close it, or its process stays."""

    def __init__(self, settings: PeerSettings, binary: Path | None = None) -> None:
        """`binary`: a llama-server; None starts the one inside the `xllamacpp` wheel."""
        if binary and not binary.is_file():
            raise BadRequest(f"no llama-server at {binary}; check the path")
        self._address = _kept_address()
        port = self._address.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = _binary_command(binary, settings, port) if binary else _WHEEL
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            if binary is None:
                self._tell(settings, port)
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it; kindly at first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        self._address.close()

    def _tell(self, settings: PeerSettings, port: int) -> None:
        """Settings go through the pipe; it stays open, and its end is the server's end."""
        assert self._process.stdin is not None
        line = json.dumps({**asdict(settings), "port": port}) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SubjectError(f"llama.cpp's server did not start: {self._last_words()}")
            if _healthy(self.url):
                return
            time.sleep(0.1)
        raise SubjectError(f"llama.cpp's server was not ready after {START_S:g} s")

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        wanted = [line for line in lines if "rror" in line] or lines
        return one_line(wanted[-1] if wanted else "no output", 160)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def _kept_address() -> socket.socket:
    """A free port that no other program gets before the server has it: bound, never listened on."""
    kept = socket.socket()
    for option in (socket.SO_REUSEADDR, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR)):
        kept.setsockopt(socket.SOL_SOCKET, option, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


def _binary_command(binary: Path, settings: PeerSettings, port: int) -> list[str]:
    layers = settings.gpu_layers if settings.gpu_layers >= 0 else 999
    flags: dict[str, object] = {
        "-m": settings.model,
        "-c": settings.n_context,
        "-np": settings.n_slots,
        "--host": "127.0.0.1",
        "--port": port,
        "--spec-type": settings.spec_type,
        "--cache-ram": 0,
        "-ngl": layers,
        "-md": settings.drafter,
        "--spec-draft-n-max": settings.n_max,
        "-t": settings.threads or None,
        "--device": settings.device,
    }
    given = [(flag, str(value)) for flag, value in flags.items() if value is not None]
    return [str(binary), *(word for pair in given for word in pair)]


# -- the far side, inside the wheel's process ---------------------------------------------------


def serve() -> None:
    """Read settings from standard input, serve until it ends."""
    settings = json.loads(sys.stdin.readline())
    try:
        import xllamacpp
    except ImportError:
        sys.exit("error: the peer needs the xllamacpp package; pip install xllamacpp")
    server = xllamacpp.Server(_params(xllamacpp, settings))
    print(server.listening_address, flush=True)
    sys.stdin.read()


def _params(x: Any, settings: dict[str, Any]) -> Any:
    params = x.CommonParams()
    params.model.path = settings["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    params.n_ctx = settings["n_context"]
    params.n_parallel = settings["n_slots"]
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.n_gpu_layers = settings["gpu_layers"] if settings["gpu_layers"] >= 0 else 999
    if settings["threads"]:
        params.cpuparams.n_threads = settings["threads"]
        params.cpuparams_batch.n_threads = settings["threads"]
    name = "COMMON_SPECULATIVE_TYPE_" + settings["spec_type"].upper().replace("-", "_")
    params.speculative.types = [x.common_speculative_type[name]]
    if settings["drafter"]:
        params.speculative.draft.mparams.path = settings["drafter"]
    if settings["n_max"] is not None:
        params.speculative.draft.n_max = settings["n_max"]
    return params


if __name__ == "__main__":
    serve()

"""vLLM's servers as processes, started by the commands that `parlay deploy render` prints.

Knows how they start, on one or several nodes of this machine, and how they end; what is asked of
them is the benchmark's business.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import yaml

from parlay.reading import counters

START_S = 400.0
NAME = "target"
# Nothing of a hub is wanted here, and all nodes are on this machine.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
ON_A_CPU = ("--dtype", "float32", "--enforce-eager")


@dataclass(frozen=True)
class Vllm:
    """A server that runs: a process for each node, the one that answers first."""

    url: str
    nodes: tuple[subprocess.Popen[bytes], ...]

    def counters(self) -> counters.Counters:
        return counters.parse(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def worker(self) -> psutil.Process:
        """One that holds a part of the model, on the last node."""
        found = psutil.Process(self.nodes[-1].pid).children(recursive=True)
        return next(p for p in found if "VLLM::Worker" in " ".join(p.cmdline()))

    def version(self) -> str:
        return str(httpx.get(f"{self.url}/version").json()["version"])


def deployment(folder: Path, model: Path, port: int, drafter: str) -> Path:
    """The file of one server, as its owner would write it."""
    path = folder / f"engine-{port}.yaml"
    runtime = {"context_size": 1024, "slots": 8, "gpu_layers": 0, "speculative_window": 3}
    content = {
        "model": {"target": str(model), "alias": [NAME], "drafter": drafter},
        "runtime": runtime,
        "server": {"port": port, "drain_s": 1},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def rendered(path: Path) -> list[str]:
    """vLLM's arguments, as `parlay serve --render` writes them."""
    command = [str(Path(sys.executable).with_name("parlay")), "serve", str(path)]
    command += ["--render", "vllm", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the deployment was not rendered: {done.stderr.strip()}")
    (script,) = json.loads(done.stdout)["files"].values()
    return shlex.split(script[script.index("exec vllm ") :])[2:]


@contextmanager
def started(vllm: Path, path: Path, port: int, layout: Sequence[Sequence[str]]) -> Iterator[Vllm]:
    """A deployment's server, on as many nodes as the layout has lists of further arguments; it may
    not answer yet."""
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    argv = [str(vllm), *rendered(path), *ON_A_CPU]
    with ExitStack() as stack:
        nodes = []
        for rank, more in enumerate(layout):
            log = stack.enter_context(path.with_suffix(f".{rank}.log").open("wb"))
            node = subprocess.Popen(
                [*argv, *more], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            stack.callback(end, node)
            nodes.append(node)
        yield Vllm(f"http://127.0.0.1:{port}", tuple(nodes))


def end(process: subprocess.Popen[bytes]) -> None:
    """It and all it started; a server whose worker died may be gone already."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()


def wait_until_up(server: Vllm) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        ended = [node.returncode for node in server.nodes if node.poll() is not None]
        if ended:
            sys.exit(f"vLLM ended at its start with code {ended[0]}; see --logs")
        try:
            if httpx.get(f"{server.url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit("vLLM did not start in time; see --logs")

"""What all engines ask of a deployment: the model's name, where it answers, how it is spread.

Knows the deployment file; knows no engine's flags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parlay.deployment import Deployment
from parlay.models import DEFAULT_NAMES, MEMBER
from parlay.rendering.launch import RenderError
from parlay.store import cache_folder

Launcher = Literal["native", "ray"]
DEFAULT_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
_BEHIND_GATEWAY = 8000
_CUDA = re.compile(r"CUDA(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Site:
    """Where commands will run: a container sees other addresses than a shell does."""

    host: str  # to listen on
    head: str | None  # address of the first node
    launcher: Launcher = "native"
    in_container: bool = False


def port_of(deployment: Deployment) -> int:
    if deployment.scale.port is not None:
        return deployment.scale.port
    if deployment.engine == "endpoints":
        return _BEHIND_GATEWAY
    if deployment.server.port == 0:
        raise RenderError("server.port is 0, any free one; give a port for others to find")
    return deployment.server.port


def alias_of(deployment: Deployment, target: str) -> tuple[str, ...]:
    """What clients ask for: as our own server would name it."""
    names = deployment.model.alias or (Path(target).name.removesuffix(".gguf") or "model",)
    for name in names:
        if not name.strip() or name.startswith("-"):
            raise RenderError(f"model.alias {name!r} would be taken for an option; rename it")
    return names


def needs_key(deployment: Deployment) -> bool:
    server = deployment.server
    pools = any(pool.api_key or pool.api_key_file for pool in deployment.upstreams)
    return bool(server.api_keys or server.api_keys_file) or pools


def gguf_file(name: str) -> str:
    """A path for an engine that reads GGUF files."""
    if name in DEFAULT_NAMES:
        return str(cache_folder() / "models" / Path(MEMBER).name)
    return name


def repository(name: str, key: str, engine: str) -> str:
    """A model for an engine that reads repositories and folders of safetensors."""
    if name in DEFAULT_NAMES:
        return DEFAULT_REPOSITORY
    if name.endswith(".gguf"):
        raise RenderError(
            f"{engine} does not read {Path(name).name}; name the same model as a repository or a"
            f" folder of safetensors in {key}"
        )
    return name


def folder_of(name: str) -> str | None:
    """The folder to mount, where the name is a path; a repository is fetched."""
    path = Path(name)
    if not path.is_absolute():
        return None
    return str(path.parent if path.suffix else path)


def device_ids(devices: tuple[str, ...]) -> str | None:
    """`0,2` for CUDA0 and CUDA2; None where one is no NVIDIA card."""
    found = [_CUDA.fullmatch(name) for name in devices]
    return ",".join(m[1] for m in found if m) if found and all(found) else None


def check_layout(deployment: Deployment, head: str | None) -> None:
    """Whether the parts fall on the machines evenly."""
    scale = deployment.scale
    parts, nodes = scale.tensor_parallel * scale.pipeline_parallel, scale.nodes
    if nodes > 1 and head is None:
        raise RenderError("scale.nodes is more than 1; give the first one's address in scale.head")
    if scale.data_parallel > 1 and scale.data_parallel % nodes:
        raise RenderError(
            f"scale.data_parallel {scale.data_parallel} does not fall evenly on {nodes} nodes"
        )
    if scale.data_parallel == 1 and parts % nodes:
        raise RenderError(
            f"tensor_parallel x pipeline_parallel is {parts}, which does not fall evenly on"
            f" {nodes} nodes"
        )


def gpus_per_node(deployment: Deployment) -> int:
    """Cards one machine needs; none where every layer stays on the CPU."""
    scale = deployment.scale
    if deployment.runtime.gpu_layers == 0:
        return 0
    every = scale.tensor_parallel * scale.pipeline_parallel * scale.data_parallel
    return max(1, every // scale.nodes)

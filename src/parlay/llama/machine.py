"""A machine in words: its processor, its cores, its GPUs. Never its name or its user.

Knows nothing of models.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

from parlay.llama import library

_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def machine_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Such as `AMD EPYC 7B13, 2 cores` or `Apple M3, 8 cores, Metal`."""
    gpus = [d.description for d in library.devices() if d.kind in ("gpu", "igpu")]
    cores = library.default_threads()
    return ", ".join([_processor(cpuinfo), f"{cores} core{'s' * (cores > 1)}", *gpus])


def _processor(cpuinfo: Path) -> str:
    try:
        found = _MODEL.search(cpuinfo.read_text("utf-8", "replace"))
    except OSError:
        found = None
    return found[1].strip() if found else (platform.processor() or platform.machine())

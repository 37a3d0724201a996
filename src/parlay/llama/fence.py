"""The gate to what reaches into ggml's own memory: hacks/, which may be absent altogether.

Does not know what is behind it. It is open only for engines that all of it was proved on, by the
versions they give; PARLAY_PLAIN_LLAMA=1 shuts it for those, too.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from parlay.llama.library import C

PLAIN = "PARLAY_PLAIN_LLAMA"
PROVED_ON = frozenset({("0.5.0-dev", "0.25.3")})  # of llama.cpp and its ggml, compiled here


def hacks() -> ModuleType | None:
    """The package behind it; None: llama.cpp is used by its own calls alone."""
    if os.environ.get(PLAIN) == "1" or (C.version, C.ggml_version) not in PROVED_ON:
        return None
    try:
        return importlib.import_module("parlay.llama.hacks")
    except ModuleNotFoundError:
        return None

"""Parlay: speculative decoding on llama.cpp that never loses the bet."""

import contextlib as _contextlib

# Some GPU builds of llama.cpp crash at load when numpy's libraries came first. A gateway has none.
with _contextlib.suppress(ModuleNotFoundError):
    import llama_cpp as _first  # noqa: F401

from parlay.decoding.sampling import Sampling
from parlay.errors import ParlayError
from parlay.parlay import Parlay
from parlay.runtime.answer import Answer

__version__ = "0.2.0"
__all__ = ["Answer", "Parlay", "ParlayError", "Sampling", "__version__"]

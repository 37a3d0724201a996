"""Parlay: speculative decoding on llama.cpp that never loses the bet.

What it gives is loaded when it is asked for: a process that needs one part starts without the rest.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from parlay.llama.engines import open_early as _open_early

_open_early()

if _TYPE_CHECKING:
    from parlay.decoding.sampling import Sampling
    from parlay.engine.answer import Answer
    from parlay.errors import ParlayError
    from parlay.parlay import Parlay

__version__ = "0.2.0"
__all__ = ["Answer", "Parlay", "ParlayError", "Sampling", "__version__"]
_HOMES = {
    "Answer": "parlay.engine.answer",
    "Parlay": "parlay.parlay",
    "ParlayError": "parlay.errors",
    "Sampling": "parlay.decoding.sampling",
}


def __getattr__(name: str) -> object:
    """A name of the package, or one of its parts."""
    if name in _HOMES:
        found = globals()[name] = getattr(_import_module(_HOMES[name]), name)
        return found
    try:
        return _import_module(f"parlay.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"parlay.{name}":
            raise
        raise AttributeError(f"module 'parlay' has no attribute {name!r}") from None

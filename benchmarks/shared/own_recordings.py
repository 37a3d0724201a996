"""A command line's choice to leave recordings of passes to llama.cpp, to compare with.

Knows contexts, no script.
"""

from __future__ import annotations

import argparse

from parlay.llama.context import Context


def add_own_recordings(parser: argparse.ArgumentParser) -> None:
    """The option; `heed` it before a model is loaded."""
    told = "recordings of passes are llama.cpp's, not kept by shape"
    parser.add_argument("--own-recordings", action="store_true", help=told)


def heed(args: argparse.Namespace) -> None:
    if args.own_recordings:
        Context._make_recorder = lambda _: None  # type: ignore[assignment, method-assign]

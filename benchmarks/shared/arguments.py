"""The command line of a script, whose docstring is its help.

Knows no script's options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """With the help's lines as they were written."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, a file for the figures (`--json`) among them."""
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args(argv)

"""The command line of a script, whose docstring is its help.

Knows no script's options.
"""

from __future__ import annotations

import argparse


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """With the help's lines as they were written."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )

"""A server as a process of its own, for the tests that send signals: arguments as `parlay serve`.

Knows no test.
"""

from __future__ import annotations

import logging

import typer

from parlay.cli.option_groups import with_groups
from parlay.cli.serve import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    typer.run(with_groups(serve))

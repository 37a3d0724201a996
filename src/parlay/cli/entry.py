"""Where the command line begins: Ctrl-C is no error, not even while its parts are still loaded."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from parlay.cli.main import app_main
    except KeyboardInterrupt:
        sys.exit(130)
    app_main()

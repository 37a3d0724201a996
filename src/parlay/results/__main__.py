"""`python -m parlay.results FOLDER ...`: the validator that CI runs over submissions.

Prints a line for each file; exit code 1 if one is refused. Needs no command line of Parlay's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parlay.results import community


def main(folders: list[str]) -> int:
    verdicts = [v for folder in folders for v in community.validate(Path(folder))]
    for verdict in verdicts:
        print(f"{verdict.file}: {'; '.join(verdict.problems) or 'fine'}")
    n_refused = sum(bool(v.problems) for v in verdicts)
    print(f"{len(verdicts)} submission(s), {n_refused} refused")
    return 1 if n_refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

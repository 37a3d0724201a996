"""What a script found, as a JSON file, where one was named.

Knows no script's figures.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def keep(path: Path | str | None, found: Any) -> None:
    """Dataclasses are written field by field."""
    if path:
        Path(path).write_text(json.dumps(found, indent=1, default=asdict) + "\n", "utf-8")

"""The cost tables that come with the package, those of the controller's replay included.

Knows files by name; how a table is read is the cost table's own affair.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from parlay.control.prices.cost import shipped_costs


def cost_tables() -> dict[str, Path]:
    """By name; those measured for many sequences come first."""
    folder = Path(str(resources.files("parlay.fleet"))) / "data" / "costs"
    return {path.stem: path for path in (*sorted(folder.glob("*.json")), *shipped_costs())}

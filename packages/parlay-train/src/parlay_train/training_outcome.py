"""What came out of a training, whatever the kind of drafter, and where its files go.

Knows no shape and no weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parlay_train.agreement import Agreement
from parlay_train.trainer import Recipe, TrainingProgress


@dataclass(frozen=True)
class TrainingOutcome:
    """How it was trained, and how good that made it."""

    recipe: Recipe
    progress: TrainingProgress
    agreement: dict[str, Agreement]  # on held-out text, by file type

    def as_dict(self) -> dict[str, Any]:
        """The report's JSON form."""
        return {
            "recipe": self.recipe.as_dict(),
            "steps": self.progress.step,
            "epochs": self.progress.epoch,
            "tokens_seen": self.progress.tokens_seen,
            "minutes": round(self.progress.seconds / 60, 3),
            "held_out": {t: found.as_dict() for t, found in self.agreement.items()},
            "looks": [asdict(look) for look in self.progress.looks],
        }

    def save(self, path: Path) -> None:
        """The training's figures as JSON."""
        path.write_text(json.dumps(self.as_dict(), indent=1), "utf-8")


def export_paths(out: Path, file_types: tuple[str, ...]) -> list[Path]:
    """`out` in the first file type, and beside it one file for each further type."""
    return [out, *(out.with_name(f"{out.stem}-{t}{out.suffix}") for t in file_types[1:])]

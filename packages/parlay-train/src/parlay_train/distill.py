"""From a target to a drafter: write text, train on it, export. Every step can be taken up again.

Puts the parts together; knows neither the command line nor how a drafter is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from parlay.errors import BadRequest
from parlay.llama.facts import read_facts
from parlay_train.agreement import Agreement, agreement
from parlay_train.corpus import Corpus
from parlay_train.embedding import Unreadable, projected_embedding
from parlay_train.export import export
from parlay_train.rounding import ROUNDING
from parlay_train.start import Start
from parlay_train.student_shape import StudentShape
from parlay_train.text_batches import Table
from parlay_train.trainer import Recipe, Trainer, Watch, in_time
from parlay_train.training_outcome import TrainingOutcome, export_paths

# Looked at in training; more would only cost time.
HELD_OUT_TOKENS = 100_000
SEEN_TOKENS = 50_000


@dataclass(frozen=True)
class Trained(TrainingOutcome):
    """A small model of its own."""

    shape: StudentShape
    seen: Agreement  # on text it was trained on: the gap says whether more text would help
    start: str  # what the weights were before the first step
    before: Agreement | None = None  # of the drafter that was started from, on held-out text

    def as_dict(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "parameters": self.shape.n_params,
            "layer_parameters": self.shape.n_body,
            "bytes_per_token": {t: self.shape.bytes_per_token(t) for t in self.agreement},
            "start": self.start,
            "before": None if self.before is None else self.before.as_dict(),
            "seen": self.seen.as_dict(),
            **super().as_dict(),
        }


def train(
    target: Path,
    corpus: Path,
    shape: StudentShape,
    recipe: Recipe,
    device: str,
    checkpoint: Path,
    watch: Watch,
    say: Callable[[str], None],
    begin: Start | None = None,
) -> tuple[Trainer, Trained]:
    """Train a drafter on what was written, from its checkpoint if there is one, else from
    `begin`, whose shape it then has."""
    text = Corpus(corpus)
    if not text.paths:
        raise BadRequest(f"{corpus} holds no written text yet")
    trainer = Trainer(
        shape,
        recipe,
        Table(text, "train", device),
        Table(text, "held_out", device, greedy=True, limit=HELD_OUT_TOKENS),
        device,
    )
    start, before = "a checkpoint", None
    if trainer.resume(checkpoint):
        say(f"going on from step {trainer.progress.step}")
    elif begin:
        start, before = _take(trainer, begin, say)
    else:
        start = _start(trainer, target, say)
    trainer.recipe = in_time(recipe, trainer.progress)
    if trainer.done < 1:
        trainer.run(checkpoint, watch)
    seen = Table(text, "train", device, greedy=True, limit=SEEN_TOKENS)
    found = _compare(trainer)
    on_seen = agreement(trainer.student, seen)
    return trainer, Trained(trainer.recipe, trainer.progress, found, shape, on_seen, start, before)


def _take(trainer: Trainer, begin: Start, say: Callable[[str], None]) -> tuple[str, Agreement]:
    """All weights from another drafter, and how good it is before anything is learned."""
    trainer.student.take(begin.weights)
    before = agreement(trainer.student, trainer.held_out)
    right = f"{before.first_token:.1%} of first tokens right on held-out text"
    known = right if before.n_tokens else "too little text to hold some out"
    rate = f"learning rate {trainer.recipe.learning_rate:g}"
    say(f"starting from {begin.path.name}: {known}; {rate}")
    return f"the weights of {begin.path.name}", before


def _start(trainer: Trainer, target: Path, say: Callable[[str], None]) -> str:
    """Token embeddings from the target's, where they can be read."""
    try:
        found = projected_embedding(target, trainer.student.shape.n_embd)
    except Unreadable as reason:
        say(f"embeddings start at random: {reason}")
        return "random"
    trainer.student.start_from(torch.from_numpy(found))
    return "principal components of the target's embeddings"


def _compare(trainer: Trainer) -> dict[str, Agreement]:
    """What each file type keeps of the drafter."""
    student = trainer.student
    found: dict[str, Agreement] = {}
    for file_type in ("f16", "q8_0", "q4_0"):
        student.rounding = ROUNDING.get(file_type)
        found[file_type] = agreement(student, trainer.held_out)
    student.rounding = None
    return found


def export_all(
    trainer: Trainer, trained: Trained, target: Path, out: Path, file_types: tuple[str, ...]
) -> list[Path]:
    """`out` in the first file type, and beside it one file for each further type."""
    weights = {name: each.numpy() for name, each in trainer.student.tensors().items()}
    facts = {
        "distilled for": target.name,
        "target": read_facts(target).file_type or "?",
        "tokens seen": f"{trained.progress.tokens_seen:,}",
        "made by": "parlay train",
    }
    return [
        export(path, target, trained.shape, weights, file_type, facts)
        for path, file_type in zip(export_paths(out, file_types), file_types, strict=True)
    ]

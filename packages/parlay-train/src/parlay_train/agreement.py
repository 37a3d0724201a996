"""How often the drafter would be right, from held-out greedy text alone.

Knows no runtime, and needs none: a draft is accepted as far as it equals the target's text, so the
drafter has always read the target's own tokens, and its guesses at all places tell every round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parlay_train.student import Student
from parlay_train.text_batches import Table, concatenated

WINDOW = 4
_BATCH = 32_768
_ROWS = 4096

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What drafting with a fixed window would give on these texts."""

    n_tokens: int
    first_token: float  # share of all places where the drafter's first choice is the target's
    by_position: tuple[float, ...]  # P(accepted | those before it were)
    acceptance_length: float
    window: int = WINDOW

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def agreement(student: Student, table: Table, window: int = WINDOW) -> Agreement:
    """Teacher-forced over the table's texts, which should be greedy ones."""
    if not len(table):  # so little was written that nothing is held out
        return replayed((), window)
    right: list[Bools] = []
    training = student.training
    student.eval()
    with torch.no_grad():
        for texts in table.epoch(_BATCH, seed=0):
            batch = table.batch(texts)
            found = concatenated(_right(student, batch))
            right += np.split(found, np.cumsum(batch.n_answer)[:-1])
    student.train(training)
    return replayed(right, window)


def _right(student: Student, batch: Any) -> list[Any]:
    device = batch.tokens.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        hidden = student(batch.tokens).flatten(0, 1)[batch.rows].float()
    # In 32 bits: sixteen would make ties of what are clear leads.
    head = student.head.float()
    return [
        (hidden[at : at + _ROWS] @ head.T).argmax(-1) == batch.top_ids[at : at + _ROWS, 0]
        for at in range(0, len(hidden), _ROWS)
    ]


def replayed(texts: Iterable[Bools], window: int) -> Agreement:
    """Walk every text round by round: as many as agree in a row, then the target's own token."""
    tried, accepted = np.zeros(window, np.int64), np.zeros(window, np.int64)
    n_rounds = n_tokens = n_right = 0
    for right in texts:
        n_tokens += len(right)
        n_right += int(right.sum())
        at = 1  # the prompt's pass gives the first token
        while at < len(right):
            run = _run(right, at, window)
            reached = min(run + 1, window, len(right) - at)
            tried[:reached] += 1
            accepted[:run] += 1
            n_rounds += 1
            at += run + 1
    generated = n_rounds + int(accepted.sum())
    shares = tuple(float(a / t) for a, t in zip(accepted, tried, strict=True) if t)
    return Agreement(
        n_tokens,
        n_right / n_tokens if n_tokens else 0.0,
        shares,
        generated / n_rounds if n_rounds else 0.0,
        window,
    )


def _run(right: Bools, at: int, window: int) -> int:
    """Places in a row from `at` where the drafter is right."""
    ahead = right[at : at + window]
    return len(ahead) if ahead.all() else int(ahead.argmin())

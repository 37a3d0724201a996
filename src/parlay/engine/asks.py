"""What proposers are asked for one sequence.

Knows requests and choices; knows no proposer.
"""

from __future__ import annotations

from parlay.control.controller import Choice
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Ask


def model_ask(seq: Sequence, choice: Choice) -> Ask:
    """Of a draft model: the window is the controller's."""
    request = seq.request
    return Ask(
        seq.seq_id,
        seq.tokens,
        choice.window,
        sampling=request.sampling,
        position=seq.n_generated,
        n_prompt=len(request.prompt),
        constraint=seq.constraint,
        owner=request.memory,
    )


def free_ask(seq: Sequence, window: int) -> Ask:
    """Of a proposer without a model, which looks into texts and grammars."""
    request = seq.request
    return Ask(
        seq.seq_id,
        seq.tokens,
        window,
        n_prompt=len(request.prompt),
        expected=request.expected,
        constraint=seq.constraint,
        owner=request.memory,
    )

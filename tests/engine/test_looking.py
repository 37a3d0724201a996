"""Looking: drafts are compared with the text as it comes, and told of once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from parlay.decoding.draft import Draft, Look
from parlay.engine.looking import Looking
from parlay.engine.sequence import Sequence


@dataclass
class Text:
    """As much of a sequence as is looked at."""

    seq_id: int = 0
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    n_generated: int = 1


def draft(*tokens: int) -> Draft:
    return Draft(tokens, "model", (0.9,) * len(tokens))


def test_a_draft_is_told_of_once_the_text_has_come_to_its_end() -> None:
    looking, text = Looking(), Text()
    seq = cast(Sequence, text)
    looking.keep(seq, draft(3, 4))
    text.tokens.append(3)
    assert looking.seen(seq) is None
    text.tokens.append(4)
    assert looking.seen(seq) == [Look("model", 2, (0.9, 0.9))]
    assert looking.seen(seq) is None

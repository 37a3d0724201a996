"""Looking: drafts are compared with the text as it comes, and told of once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from parlay.control.looks import IN_A_ROW
from parlay.decoding.draft import NO_DRAFT, Draft, Look
from parlay.engine.looking import Looking
from parlay.engine.request import Request
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Ask
from tests.engine.rig import Rig


@dataclass
class Text:
    """As much of a sequence as is looked at."""

    seq_id: int = 0
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    n_generated: int = 1


class Drafter:
    """Drafts what the test says, when it says so."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.draft: Draft | None = None

    def look(self, ask: Ask) -> None:
        self.asked.append(ask)
        self.draft = None

    def looked(self, seq_id: int) -> Draft | None:
        return self.draft


def begun() -> tuple[Looking, Drafter, Text, Sequence]:
    looking, drafter, text = Looking(), Drafter(), Text()
    seq = cast(Sequence, text)
    looking.begin(seq, drafter, Ask(0, text.tokens, 3))
    return looking, drafter, text, seq


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


def test_a_draft_is_told_of_as_soon_as_the_text_has_left_it() -> None:
    looking, text = Looking(), Text()
    seq = cast(Sequence, text)
    looking.keep(seq, draft(3, 4, 5))
    text.tokens += [3, 9]
    assert looking.seen(seq) == [Look("model", 1, (0.9, 0.9, 0.9))]


def test_while_a_drafter_is_at_it_nothing_is_told() -> None:
    looking, drafter, text, seq = begun()
    text.tokens += [3, 4, 5, 6]
    assert looking.under_way([seq])
    assert not looking.go_on([seq], [drafter])
    assert looking.seen(seq) is None


def test_a_drafter_makes_a_few_one_after_the_other_and_all_are_told_together() -> None:
    looking, drafter, text, seq = begun()
    for n in range(IN_A_ROW):
        drafter.draft = draft(3, 4)
        text.tokens += [3, 9]
        assert looking.go_on([seq], [drafter]) == ([seq] if n == IN_A_ROW - 1 else [])
    assert len(drafter.asked) == IN_A_ROW
    assert not looking.under_way([seq])
    assert looking.told(seq) == [Look("model", 1, (0.9, 0.9))] * IN_A_ROW


def test_a_drafter_that_has_nothing_to_say_is_not_asked_again() -> None:
    looking, drafter, _, seq = begun()
    drafter.draft = NO_DRAFT
    assert looking.go_on([seq], [drafter])
    assert looking.seen(seq) == []
    assert len(drafter.asked) == 1


def test_a_drafter_that_has_something_else_to_do_is_not_asked_again() -> None:
    looking, drafter, text, seq = begun()
    drafter.draft = draft(3, 4)
    text.tokens += [3, 4]
    looking.end(0)
    assert not looking.go_on([seq], [drafter])
    assert not looking.under_way([seq])
    assert looking.seen(seq) == []
    assert len(drafter.asked) == 1


def test_another_text_in_the_slot_is_not_compared_with_drafts_of_the_last_one() -> None:
    looking, drafter, text, seq = begun()
    drafter.draft = draft(3, 4)
    looking.forget(0)
    text.tokens += [3, 4]
    assert not looking.go_on([seq], [drafter])
    assert looking.seen(seq) is None


def test_of_a_drafter_that_is_not_there_any_more_nothing_is_asked() -> None:
    looking, drafter, text, seq = begun()
    drafter.draft = draft(3, 4)
    text.tokens += [3, 4]
    assert looking.go_on([seq], []) == [seq]
    assert looking.told(seq) == []
    assert len(drafter.asked) == 1


def test_a_text_that_slides_is_told_of_as_far_as_it_came_and_compared_no_more() -> None:
    looking, drafter, text, seq = begun()
    drafter.draft = draft(3, 4, 5)
    text.tokens += [3]
    assert looking.go_on([seq], [drafter]) == []
    del text.tokens[1:]
    looking.cut_short(0)
    text.tokens += [9, 9, 9, 9]
    assert looking.seen(seq) == []
    assert looking.texts == {}


def test_a_text_that_has_ended_is_looked_at_and_glanced_at_no_more() -> None:
    """It counted as one that repeats itself for as long as its slot was free."""
    rig = Rig(slots=2)
    seq = rig.add(Request((1, 2, 3), max_tokens=4))
    rig.scheduler.step()
    rig.bets._looking.keep(seq, draft(3, 4))
    rig.bets._glances.follow(seq.seq_id, len(seq.tokens), draft(*[5] * 8))
    rig.finish()
    assert rig.bets._looking.texts == {}
    assert not rig.bets._glances._followed

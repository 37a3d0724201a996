"""Crews worth trying."""

from __future__ import annotations

from parlay.control.crew import Crew, crews


def test_candidates_of_larger_machines_are_few_and_the_rule_comes_first() -> None:
    found = crews(16, can_sleep=True)
    assert found[0] == Crew(16)
    assert {crew.threads for crew in found} == {16, 15, 12, 8, 4, 1}
    assert len(found) <= 8
    assert crews(1, can_sleep=True) == [Crew(1)]

from __future__ import annotations

import pytest

from parlay.control.evidence import Evidence


def test_what_was_never_seen_to_be_right_is_not_counted_on() -> None:
    evidence = Evidence()
    assert evidence.holds(1) == 0.0
    evidence.observe(5, wrong=False)
    assert evidence.holds(1) == 0.0


def test_sixteen_of_sixteen_is_no_gamble() -> None:
    evidence = Evidence()
    for _ in range(16):
        evidence.observe(1, wrong=False)
    assert evidence.holds(1) == pytest.approx(17 / 18)
    assert evidence.holds(4) == pytest.approx(17 / 21)
    assert evidence.holds(1) > evidence.holds(4) > evidence.holds(16)


def test_a_wrong_token_takes_half_of_what_was_believed() -> None:
    evidence = Evidence()
    evidence.observe(16, wrong=False)
    before = evidence.holds(4)
    evidence.observe(0, wrong=True)
    assert evidence.holds(4) < 0.8 * before
    for _ in range(2):
        evidence.observe(0, wrong=True)
    assert evidence.holds(1) == 0.0

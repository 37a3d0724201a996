from __future__ import annotations

import pytest

from parlay.control.evidence import Evidence


def test_what_was_never_seen_to_be_right_is_not_counted_on() -> None:
    evidence = Evidence()
    assert not evidence.tells
    evidence.observe(5, wrong=False)
    assert not evidence.tells


def test_sixteen_of_sixteen_is_no_gamble() -> None:
    evidence = Evidence()
    for _ in range(16):
        evidence.observe(1, wrong=False)
    chances = evidence.chances(16)
    assert evidence.tells
    assert chances[0] == pytest.approx(17 / 18)
    assert chances[3] == pytest.approx(17 / 21)
    assert chances == sorted(chances, reverse=True)


def test_a_wrong_token_takes_half_of_what_was_believed() -> None:
    evidence = Evidence()
    evidence.observe(16, wrong=False)
    before = evidence.chances(4)[3]
    evidence.observe(0, wrong=True)
    assert evidence.chances(4)[3] < 0.8 * before
    for _ in range(2):
        evidence.observe(0, wrong=True)
    assert not evidence.tells

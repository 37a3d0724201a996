"""When to look again at what does not pay."""

from __future__ import annotations

from itertools import pairwise

from parlay.control.probing import Probing


def looks_and_tries(probing: Probing, n_rounds: int) -> tuple[list[int], list[int]]:
    """The rounds in which it is looked at, and those in which it is tried; it never pays."""
    looks, tries = [], []
    for i in range(n_rounds):
        if probing.too_soon():
            continue
        looks.append(i)
        if probing.wait():
            probing.tried()
            tries.append(i)
    return looks, tries


def test_what_has_not_paid_for_a_while_is_looked_at_every_fourth_round() -> None:
    looks, tries = looks_and_tries(Probing(), 2000)
    assert looks[:8] == list(range(8))
    assert len(looks) < 2000 / 4 + 8 * (1 + len(tries))


def test_it_is_tried_ever_more_seldom_but_never_given_up() -> None:
    _, tries = looks_and_tries(Probing(), 4000)
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 20
    assert 500 <= gaps[-1] <= 520


def test_what_pays_is_looked_at_every_round() -> None:
    probing = Probing()
    for _ in range(20):
        assert not probing.too_soon()
        probing.used()

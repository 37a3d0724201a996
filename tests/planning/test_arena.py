"""The buffer of a pass: gaps are used, the best one first, and neighbours join."""

from __future__ import annotations

from parlay.planning.arena import Arena, Tape


def test_the_smallest_gap_that_holds_it_is_taken() -> None:
    arena = Arena(1)
    places = [arena.take(n) for n in (10, 1, 4, 1)]
    arena.give(places[0], 10)
    arena.give(places[2], 4)
    assert arena.take(3) == places[2]
    assert arena.take(5) == places[0]
    assert arena.peak == 16


def test_neighbours_join() -> None:
    arena = Arena(1)
    first, second, _last = (arena.take(4) for _ in range(3))
    arena.give(second, 4)
    arena.give(first, 4)
    assert arena.take(8) == first


def test_sizes_are_aligned() -> None:
    arena = Arena(32)
    arena.take(1)
    arena.take(33)
    assert arena.peak == 96


def test_a_chain_in_place_takes_one_tensor() -> None:
    tape = Tape()
    node = tape.input(8)
    for _ in range(5):
        node = tape.op(8, node, in_place=True)
    assert tape.peak(1) == 8


def test_what_is_needed_later_or_kept_is_not_overwritten() -> None:
    tape = Tape()
    x = tape.input(8)
    y = tape.op(8, x, in_place=True)  # x is still needed below
    tape.op(8, x, y, in_place=True)
    assert tape.peak(1) == 16
    tape = Tape()
    kept = tape.op(8, kept=True)
    tape.op(8, kept, in_place=True)
    assert tape.peak(1) == 16


def test_what_is_kept_is_never_freed() -> None:
    tape = Tape()
    kept = tape.op(8, kept=True)
    tape.op(8, tape.op(4, kept))
    assert tape.peak(1) == 20


def test_a_source_is_freed_after_its_last_use() -> None:
    tape = Tape()
    x = tape.input(8)
    y = tape.op(8, x)
    tape.op(8, y)
    assert tape.peak(1) == 16

"""Lines of an answer, each taken from the one before it."""

from __future__ import annotations

from parlay.decoding.indentation import Indentation


def begun(*lines: int) -> Indentation:
    """A block opened on each of these lines."""
    made = Indentation()
    for n in lines:
        made.begin_line(b" " * n, closing=False, learn=True)
        made.open()
    return made


def test_a_block_is_two_deeper_where_nothing_is_known() -> None:
    assert begun(0).inside() == b"  "


def test_a_block_is_as_much_deeper_as_the_last_one_of_its_depth() -> None:
    lines = begun(0, 4)
    assert lines.inside() == b" " * 8
    lines.close()
    lines.begin_line(b" " * 4, closing=False, learn=True)
    lines.open()
    lines.begin_line(b" " * 5, closing=False, learn=True)
    lines.close()
    lines.open()
    assert lines.inside() == b" " * 6


def test_a_bracket_closes_on_the_line_of_its_block() -> None:
    lines = begun(0, 2)
    lines.begin_line(b" " * 4, closing=False, learn=True)
    assert lines.closing() == b"  "


def test_lines_that_moved_take_the_closing_bracket_with_them() -> None:
    lines = begun(0, 2)
    lines.begin_line(b" " * 4, closing=False, learn=True)
    lines.begin_line(b" " * 2, closing=False, learn=True)
    assert lines.closing() == b""


def test_looking_ahead_moves_nothing() -> None:
    lines = begun(0)
    ahead = lines.ahead()
    ahead.open()
    ahead.begin_line(b"   ", closing=False, learn=False)
    assert (lines.depth, lines.line, lines.steps) == (1, b"", {})

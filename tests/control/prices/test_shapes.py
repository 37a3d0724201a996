"""Shapes of passes: which one the next pass is cheapest in, padding included."""

from __future__ import annotations

from parlay.control.prices.curve import Curve
from parlay.control.prices.shapes import Shapes, faster_widths

# As an F16 model on a GPU: rows hardly cost, and from 17 on the kernels are faster ones.
FLAT = {1: 8.0, 2: 11.0, 8: 12.0, 16: 13.0, 17: 11.0, 32: 12.0}
OFTEN = [(17, True), (17, True), (17, False)] * 8  # passes, and whether they had a draft
STEEP = {1: 10.0, 2: 11.0, 8: 21.0, 17: 26.0}  # and as a quantised one


def curve(steady: dict[int, float], change: float = 2.0, settling: float = 0.0) -> Curve:
    return Curve(steady, {rows: ms + change for rows, ms in steady.items()}, settling)


def widths(shapes: Shapes, prices: Curve) -> list[int]:
    return shapes.widths(prices, shapes.prices(prices, 32)[0])


def after(*passes: tuple[int, bool]) -> Shapes:
    shapes = Shapes()
    for rows, drafted in passes:
        shapes.observe(rows, drafted=drafted)
    return shapes


def test_no_plain_pass_waits_in_the_shape_of_one_that_is_wider_than_prices_reach() -> None:
    often = after(*[(513, True)] * 8)
    assert not often.waits(curve(FLAT))


def test_a_draft_is_padded_to_a_wider_shape_that_is_cheaper() -> None:
    found = widths(Shapes(), curve(FLAT))
    assert found[1] == 1
    assert found[6] == found[16] == found[17] == 17
    assert found[20] == 20


def test_a_pass_is_widened_for_faster_kernels_only_and_never_a_plain_one() -> None:
    found = faster_widths(curve(FLAT).steady, 32)
    assert (found[1], found[8], found[16], found[17], found[20]) == (1, 17, 17, 17, 20)
    assert faster_widths(curve(FLAT).steady, 16) == []  # the fast one is out of reach
    assert faster_widths(curve(STEEP).steady, 32) == []


def test_where_rows_cost_it_is_left_as_it_is() -> None:
    assert widths(Shapes(), curve(STEEP)) == list(range(33))


def test_a_shape_that_is_slightly_wider_is_stayed_in_rather_than_left() -> None:
    found = widths(after((8, True), (8, True)), curve(STEEP, change=3.0))
    assert found[7] == found[8] == 8
    assert found[5] == 5  # three rows fewer save more than the change costs


def test_a_plain_pass_waits_in_the_shape_of_drafts_where_they_come_often() -> None:
    often = after(*OFTEN)
    assert often.waits(curve(FLAT, settling=4.0))
    assert not often.waits(curve(STEEP, settling=4.0))  # too dear


def test_it_waits_no_longer_once_drafts_stay_away() -> None:
    shapes = after(*OFTEN)
    n_waited = 0
    while shapes.waits(curve(FLAT, settling=4.0)) and n_waited < 30:
        shapes.observe(17)
        n_waited += 1
    assert 0 < n_waited < 10


def test_a_shape_that_no_other_draft_has_is_not_waited_in() -> None:
    mixed = after(*[(rows, True) for rows in range(2, 17)], (17, True))
    assert not mixed.waits(curve(FLAT, change=1.0))


def test_staying_where_nothing_settled_yet_pays_for_settling_unless_drafts_come_back() -> None:
    prices = curve(STEEP, change=4.0, settling=8.0)
    assert widths(after((8, True)), prices)[7] == 7
    assert widths(after(*[(8, True), (1, False)] * 20, (8, True)), prices)[7] == 8


def test_a_text_owes_its_first_change_of_shape_and_its_first_settling_whatever_is_bet() -> None:
    prices, shapes = curve(STEEP, change=3.0, settling=4.0), Shapes()
    shapes.begin()
    full, _ = shapes.prices(prices, 8)
    assert full[1:] == prices.changed[1:9]  # no shape is the last one's
    owed = []
    for settling_s in (0.0, 4.0, 4.0):
        owed.append(shapes.owed_s(prices, 1, settling_s))
        shapes.observe(1)
    assert owed == [3.0, 4.0, 0.0]


def test_a_text_that_settled_in_the_shape_of_drafts_settles_once_more_on_its_way_back() -> None:
    prices, shapes, back = curve(STEEP, change=3.0, settling=4.0), Shapes(), []
    shapes.begin()
    for rows in (4, 4, 4, 1, 1, 1):
        back.append(shapes.back_s(prices, 1))
        shapes.observe(rows, drafted=rows > 1)
    # The first bet may still be left for nothing more than the change.
    assert back == [3.0, 7.0, 7.0, 7.0, 7.0, 3.0]

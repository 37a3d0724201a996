"""Which class is chosen: by prices that are given here, never by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.engine.exact.class_choice import Seen, Valuation, Worth
from tests.engine.rig import exact_class

# As on a GPU: the classes of the 27B, and what its passes cost over a plain one.
GPU = {1: 1.0, 2: 1.02, 3: 1.19, 4: 1.2, 5: 1.56, 6: 1.57, 7: 1.58, 8: 1.6}
CLASSES = [exact_class(1), exact_class(2), exact_class(3, 4), exact_class(5, 6, 7, 8)]
MODEL = Worth.of(free=True, model=True, step_s=0.05)
FREE = Worth.of(free=True, model=False)


def gpu(_n_sequences: int, rows: int) -> float:
    return GPU.get(rows, 1.6 + 0.1 * rows)


def h200(_n_sequences: int, rows: int) -> float:
    """As a 27B at Q5_0 costs there."""
    return 1.0 + 0.1 * rows if rows < 9 else 2.3


def cpu(_n_sequences: int, rows: int) -> float:
    """Every row costs nearly as much as a pass."""
    return 0.2 + 0.8 * rows


def chosen(price: object, worth: Worth, n_slots: int = 1) -> str:
    value = Valuation(price, worth)  # type: ignore[arg-type]
    return value.best(CLASSES, n_slots, asked=True).name


def test_where_rows_are_cheap_and_drafts_good_a_wide_class_is_worth_its_padding() -> None:
    assert chosen(gpu, MODEL) == "3-4"


def test_where_rows_are_dear_the_class_of_single_rows_costs_least() -> None:
    assert chosen(cpu, MODEL) == "1"


def test_without_proposers_nothing_is_padded() -> None:
    assert chosen(gpu, Worth.of(free=False, model=False)) == "1"


def test_a_class_that_others_can_share_is_worth_more_on_a_full_machine() -> None:
    shared = exact_class(2, together=[(n, r) for n in (2, 3, 4) for r in (1, 2) if n * r <= 4])
    found = Valuation(gpu, FREE).best([exact_class(1), shared, exact_class(3, 4)], 4, asked=True)
    assert found is shared


@given(noise=st.floats(-0.01, 0.01), asked=st.booleans())
def test_a_gain_that_noise_could_make_does_not_leave_the_simpler_class(
    noise: float, asked: bool
) -> None:
    """Two rows at nearly the price of one, and drafts that are hardly ever there."""
    classes = [exact_class(1), exact_class(2)]
    value = Valuation(lambda _n, rows: 1.0 + noise * (rows == 2), Worth(share=0.0, rate=0.75))
    assert value.best(classes, 1, asked=asked).name == "1"


@given(st.lists(st.floats(0.001, 1.0), min_size=17, max_size=17), st.integers(1, 4))
def test_whatever_the_prices_the_choice_is_close_to_the_cheapest(
    prices: list[float], n_slots: int
) -> None:
    value = Valuation(lambda _n, rows: sorted(prices)[min(rows, 17) - 1], MODEL)
    for asked, cost in ((False, value.cost), (True, value.expected_cost)):
        found = value.best(CLASSES, n_slots, asked=asked)
        least = min(cost(each, n_slots) for each in CLASSES)
        assert cost(found, n_slots) <= least + 0.02 * len(CLASSES)


def test_text_without_drafts_counts_as_much_as_text_with_them() -> None:
    """Padding to five rows pays while drafts hold; who wants none waits half as long again."""
    value = Valuation(gpu, replace(MODEL, rate=0.95, step_s=0.0))
    assert value.best(CLASSES, 1, asked=True).name == "5-8"
    assert value.expected_cost(CLASSES[3], 1) < 0.05
    assert value.cost(CLASSES[3], 1) == pytest.approx(1 - 1 / 1.56)
    assert value.cost(value.best(CLASSES, 1, asked=False), 1) < 0.36


def test_the_cost_is_that_of_whoever_it_costs_most() -> None:
    """Four that must take turns."""
    value = Valuation(lambda _n, rows: 1.0, FREE)
    alone = exact_class(*range(1, 18))
    assert value.cost(alone, 1) == 0.0
    assert value.cost(alone, 4) == pytest.approx(0.75)


# -- what was learned of the proposers ----------------------------------------------------------


def test_the_guess_holds_until_something_was_seen() -> None:
    assert MODEL.learned(Seen()) == MODEL


def test_what_was_seen_of_the_proposers_takes_the_place_of_the_guess() -> None:
    bad = MODEL.learned(Seen(0, 500))
    good = MODEL.learned(Seen(2000, 2000))
    assert bad.rate < 0.3 < MODEL.rate < 0.9 < good.rate


def test_a_class_is_not_padded_for_drafts_that_hardly_hold() -> None:
    bad = MODEL.learned(Seen(0, 500))
    assert (chosen(gpu, MODEL), chosen(gpu, bad)) == ("3-4", "2")

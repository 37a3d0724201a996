"""Counts over answers and pages: each token once, whoever tells of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parlay.gateway.tally import Page, Tally, together
from parlay.reading.counters import Counters
from parlay.reading.speculation import Speculation


def page(drafts: int, drafted: int, accepted: int) -> Counters:
    totals = {"num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
    return Counters({name: float(value) for name, value in totals.items()})


def test_what_was_there_before_the_gateway_does_not_count() -> None:
    seen = Page()
    seen.see(page(10, 30, 9))
    seen.see(page(12, 36, 12))
    gained = seen.gained
    assert (gained.n_speculated_rounds, gained.n_drafted, gained.n_accepted) == (2, 6, 3)


def test_a_restart_of_an_engine_loses_nothing_that_was_counted() -> None:
    seen = Page()
    for found in (page(0, 0, 0), page(4, 12, 6), page(1, 3, 1), page(2, 6, 2)):
        seen.see(found)
    assert (seen.gained.n_drafted, seen.gained.n_accepted) == (18, 8)


@given(st.lists(st.integers(0, 50), max_size=20))
def test_gains_add_up_however_often_one_looks(steps: list[int]) -> None:
    seen, total = Page(), 0
    seen.see(page(0, 0, 0))
    for step in steps:
        total += step
        seen.see(page(total, 3 * total, 2 * total))
    assert (seen.gained.n_drafted, seen.gained.n_accepted) == (3 * total, 2 * total)


def test_answers_and_pages_are_never_added() -> None:
    told, seen = Tally(), Page()
    told.add_answer(10, Speculation(drafted=6, accepted=3))
    seen.see(page(0, 0, 0))
    seen.see(page(2, 6, 3))
    total = together([(told, seen)])
    assert (total.n_drafted, total.n_accepted, total.n_rounds) == (6, 3, 7)


def test_a_silent_engines_page_speaks_for_it() -> None:
    told, seen = Tally(), Page()
    told.add_answer(10, None)
    seen.see(page(0, 0, 0))
    seen.see(page(2, 6, 3))
    total = together([(told, seen)]).as_dict()
    assert (total["generated"], total["drafted"], total["rounds"]) == (10, 6, 7)
    assert total["token_acceptance"] == 0.5


def test_nothing_told_is_null_and_not_nothing() -> None:
    told = Tally()
    told.add_answer(10, None)
    found = together([(told, Page())]).as_dict()
    assert found["generated"] == 10
    assert found["drafted"] is found["token_acceptance"] is found["rounds"] is None

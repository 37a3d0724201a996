from __future__ import annotations

from dataclasses import replace

import pytest

from parlay.control.controller import View
from parlay.control.profit import ProfitController
from parlay.control.search_pace import SearchPace
from parlay.decoding.round import Fallback, Round, Timing
from tests.control.synthetic import draft, finished, table, view

FAST = 1.0  # a pass, in the seconds of the made-up prices
SEARCH = 0.1


def searches(pace: SearchPace, n: int, search_s: float, pass_s: float = FAST) -> int:
    """How many of so many rounds without a bet are searched for."""
    found = 0
    for _ in range(n):
        due = pace.due()
        found += due
        pace.observe(search_s if due else 0.0, pass_s, searched=due, found=False)
    return found


def test_every_round_is_looked_at_where_a_look_is_nothing_beside_a_pass() -> None:
    assert searches(SearchPace(), 500, SEARCH, pass_s=10.0) == 500


@pytest.mark.parametrize("search_s", [0.02, 0.05, 0.08, 0.16])
def test_looks_that_find_nothing_take_half_a_hundredth_of_a_fast_pass_in_the_end(
    search_s: float,
) -> None:
    pace = SearchPace()
    searches(pace, 100, search_s)
    assert searches(pace, 1000, search_s) * search_s <= 0.0055 * 1000 * FAST


def test_what_comes_before_every_pass_is_not_taken_for_a_search() -> None:
    pace = SearchPace()
    for _ in range(200):  # a tenth of a pass in any round, and a little more with a search
        due = pace.due()
        pace.observe(0.101 * FAST if due else 0.1 * FAST, FAST, searched=due, found=False)
    assert pace.interval == 1


def test_a_slow_first_pass_does_not_make_looks_seem_harmless() -> None:
    pace = SearchPace()
    searches(pace, 1, SEARCH, pass_s=30 * FAST)  # it is the first of its shape
    assert searches(pace, 8, SEARCH) < 5


def test_a_slow_round_without_a_look_does_not_make_looks_seem_harmless() -> None:
    """The first round that rests also learns from the last search: it takes nearly as long."""
    pace = SearchPace()
    while not pace.rests:
        searches(pace, 1, SEARCH)
    for _ in range(2):
        pace.observe(0.95 * SEARCH, FAST, searched=pace.due(), found=False)
        searches(pace, 20, SEARCH)
    assert pace.interval > 20


def test_a_text_that_is_noticed_is_looked_at_in_the_next_round() -> None:
    pace = SearchPace()
    while not pace.rests:
        searches(pace, 1, SEARCH)
    pace.notice()
    assert (pace.rests, pace.due()) == (False, 1)


def test_texts_that_are_noticed_for_nothing_take_no_more_than_a_hundredth_of_the_time() -> None:
    pace = SearchPace()
    searches(pace, 100, SEARCH)
    n = 0
    for _ in range(2000):
        pace.notice()
        due = pace.due()
        n += due
        pace.observe(SEARCH if due else 0.0, FAST, searched=due, found=False)
    assert n * SEARCH <= 0.012 * 2000 * FAST


def searched_while_right(pace: SearchPace, n: int) -> int:
    """How many of so many rounds whose offers prove right, and on which nobody bets."""
    made = 0
    for _ in range(n):
        due = pace.due()
        made += due
        pace.observe(SEARCH if due else 0.0, FAST, searched=due, found=False, right=due > 0)
    return made


def test_a_text_whose_offers_prove_right_is_looked_at_until_somebody_may_bet() -> None:
    """A bet wants evidence, and evidence wants looks: a fast model's text that repeated itself from
    its third token on was looked at eleven times in 48 rounds, and never bet on. More than five
    tokens that were right are evidence."""
    assert searched_while_right(SearchPace(), 7) == 7


def test_a_text_that_is_noticed_is_looked_at_for_as_long_as_offers_prove_right() -> None:
    pace = SearchPace()
    searches(pace, 100, SEARCH)
    while not pace.rests:
        searches(pace, 1, SEARCH)
    pace.notice()
    assert searched_while_right(pace, 5) == 5
    searches(pace, 2, SEARCH)
    assert pace.rests


def test_offers_that_prove_right_and_are_never_bet_on_take_little_in_the_end() -> None:
    pace = SearchPace()
    searched_while_right(pace, 200)
    assert searched_while_right(pace, 2000) * SEARCH <= 0.006 * 2000 * FAST


def test_looks_never_stop() -> None:
    pace = SearchPace()
    searches(pace, 100, search_s=100.0)
    assert searches(pace, 320, search_s=100.0) == 5


def test_after_a_bet_every_round_is_looked_at_for_a_while() -> None:
    pace = SearchPace()
    searches(pace, 100, SEARCH)
    pace.observe(SEARCH, FAST, searched=True, found=True, right=True)
    pace.due()
    assert searches(pace, 2, SEARCH) == 2


def test_a_bet_that_is_lost_gives_no_time_to_search_back() -> None:
    pace = SearchPace()
    searches(pace, 100, SEARCH)
    pace.observe(SEARCH, FAST, searched=True, found=True)
    pace.due()
    assert searches(pace, 20, SEARCH) <= 1


def of_many(pace: SearchPace, n_rounds: int, n_texts: int, *, noticed: bool = False) -> list[int]:
    """How many of the texts are searched in each round, where all of them take a quarter of it."""
    found = []
    for _ in range(n_rounds):
        if noticed:
            pace.notice()
        n = pace.due(n_texts)
        found.append(n)
        search_s = 0.25 * FAST * n / n_texts
        pace.observe(search_s, FAST, searched=n, of=n_texts, found=False)
    return found


@pytest.mark.parametrize("noticed", [False, True])
def test_searches_of_many_texts_take_less_than_a_hundredth_of_an_answer_of_96(
    noticed: bool,
) -> None:
    found = of_many(SearchPace(), 192, 16, noticed=noticed)
    assert found[:2] == [2, 2]  # what a search takes is found out with a few of them
    assert 16 in found  # and then all of them are asked, seldom
    assert 0.25 * sum(found[:96]) / 16 < 0.0096 * 96


def test_of_many_texts_that_nobody_noticed_hardly_any_round_is_searched() -> None:
    """What would tell sooner costs nothing: drafts that are followed while a device computes."""
    assert 4 <= of_many(SearchPace(), 640, 16).count(16) <= 6
    alone = SearchPace(glances=False)  # on a CPU nobody would notice
    assert of_many(alone, 640, 16).count(16) >= 9


def test_one_of_many_texts_that_is_noticed_wakes_the_search_for_all() -> None:
    pace = SearchPace()
    assert of_many(pace, 60, 16)[-1] == 0
    pace.notice()
    assert of_many(pace, 1, 16) == [16]


def test_a_dear_search_is_dear_for_as_many_texts_as_there_are() -> None:
    pace = SearchPace()
    assert searches(pace, 50, 0.015 * FAST) > 10  # one text
    pace.due(16)
    pace.observe(0.0, FAST, searched=0, of=16, found=False)
    assert pace.share > 0.2


def test_one_slow_look_does_not_make_looks_rare() -> None:
    pace = SearchPace()
    searches(pace, 20, SEARCH / 20)
    searches(pace, 1, search_s=100.0)
    assert searches(pace, 20, SEARCH / 20) == 20


def test_a_slow_first_look_does_not_make_looks_rare() -> None:
    pace = SearchPace()
    searches(pace, 1, search_s=10 * SEARCH)  # a grammar's first state is computed
    assert searches(pace, 20, SEARCH / 10) == 20


# -- in the controller ------------------------------------------------------------------------


def told(r: Round, search_s: float) -> Round:
    return replace(r, timing=Timing(draft_s=search_s, verify_s=FAST))


def fruitless(controller: ProfitController, n: int) -> list[View]:
    """Rounds on a fast machine in which nobody has anything to say."""
    seen = []
    for i in range(n):
        searched = bool(controller.due(1))
        asked = replace(view({"ngram": draft("ngram")}, n_generated=2 + i), searched=searched)
        seen.append(asked)
        choice = controller.choose([asked])[0]
        assert not choice.window
        controller.observe(
            [told(replace(finished(), reason=choice.reason), SEARCH if searched else 0.0)]
        )
    return seen


def test_a_round_without_a_look_is_plain_and_says_so() -> None:
    controller = ProfitController(table(slope=0.1))
    assert not all(v.searched for v in fruitless(controller, 100))
    skipped = replace(view({}, n_generated=200), searched=False)
    choice = controller.choose([skipped])[0]
    assert (choice.window, choice.fallback, choice.reason) == (
        0,
        Fallback.UNPROFITABLE,
        "not_searched",
    )


@pytest.mark.parametrize("n_rests", [0, 100])
def test_a_text_that_begins_to_repeat_itself_is_bet_on_at_the_next_look(n_rests: int) -> None:
    controller = ProfitController(table(slope=0.1), {"record": {"ngram": 100.0}})
    fruitless(controller, n_rests)
    for i in range(33):
        searched = bool(controller.due(1))
        offers = {"ngram": draft("ngram", *(0.95,) * 8)} if searched else {}
        asked = replace(view(offers, n_generated=300 + i), searched=searched)
        if controller.choose([asked])[0].window:
            return
        controller.observe([told(finished(), SEARCH if searched else 0.0)])
    pytest.fail("no bet in 33 rounds")


def test_a_draft_model_still_knows_what_it_missed_while_nobody_looked() -> None:
    controller = ProfitController(table(slope=0.1))
    seen = fruitless(controller, 40)
    assert not all(v.searched for v in seen)
    before = controller._requests[0].n_missing("model")
    skipped = replace(view({}, n_generated=50, n_context=51), searched=False)
    choice = controller.choose([skipped])[0]
    controller.observe([told(replace(finished(), reason=choice.reason), 0.0)])
    assert controller._requests[0].n_missing("model") == before + 1


def test_a_dear_search_is_given_up_sooner_than_a_cheap_one() -> None:
    n_searched = []
    for search_s in (0.03e-3, 0.25e-3):
        pace = SearchPace()
        pace.observe(search_s, 1e-3, searched=True, found=True)
        n = 0
        while pace.due():
            pace.observe(search_s, 1e-3, searched=True, found=False)
            n += 1
        n_searched.append(n)
    assert 4 < n_searched[0] <= 8
    assert 1 <= n_searched[1] <= 3


def test_what_was_weighed_while_a_device_computed_is_searched_for_in_any_case() -> None:
    pace = SearchPace()
    searches(pace, 200, SEARCH)
    assert pace.rests
    pace.wake()
    assert not pace.rests

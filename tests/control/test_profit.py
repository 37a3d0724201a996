from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.control.controller import Choice, Controller, NeverRests, View
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.profit import ProfitController
from parlay.control.survival import Difficulty
from parlay.decoding.draft import NO_DRAFT, Draft, Look
from parlay.decoding.round import WAITS, Fallback, Round, Timing
from parlay.replay.hindsight import plain_seconds
from parlay.replay.recording import RecordedOffer, Recording, mixed_workload
from parlay.replay.replay import Replay
from tests.calls import python_calls
from tests.control.synthetic import draft, finished, table, view


def choose(controller: Controller, *views: View) -> list[Choice]:
    return controller.choose(views)


def proven(costs: CostTable, *proposers: str, unified: bool = True) -> ProfitController:
    """One whose proposers have a record, so that it may stake more."""
    record = {"record": dict.fromkeys(proposers, 100.0)}
    return ProfitController(costs, record, Cutting(unified))


# -- after a loss ----------------------------------------------------------------------------


def rounds_until_a_bet(controller: ProfitController, n_right: int, most: int = 40) -> int:
    """Plain rounds after a lost bet until the next one, the text being what the offer says."""
    sure = {"ngram": draft("ngram", *(0.97,) * 16)}
    lost = choose(controller, view(sure))[0]
    seconds = 1.0 + 0.6 * lost.window
    controller.observe([finished("ngram", lost.window, 0, seconds, agreed={"ngram": 0})])
    for i in range(most):
        if choose(controller, view(sure, n_generated=2 + i))[0].window:
            return i
        controller.observe([finished(agreed={"ngram": int(i < n_right)})])
    return most


def test_a_text_that_repeats_itself_is_bet_on_again_soon_after_a_lost_bet() -> None:
    assert rounds_until_a_bet(proven(table(slope=0.6), "ngram"), n_right=40) <= 8


def test_a_text_whose_drafts_stay_wrong_is_not() -> None:
    assert rounds_until_a_bet(proven(table(slope=0.6), "ngram"), n_right=0) > 20


def test_where_only_a_short_window_may_be_lost_it_is_valued_by_what_it_saves() -> None:
    """And not by what a long one would save, which may not be taken."""
    steps = Curve({1: 1.0, 2: 1.8, 3: 2.4, 9: 4.0, 17: 8.0}, {})
    controller = ProfitController(CostTable({(1, 1): steps}), {"record": {"ngram": 6.5}})
    choice = choose(controller, view({"ngram": draft("ngram", *(0.98,) * 16)}))[0]
    assert choice.window == 2


def settled(offers: Mapping[str, Draft]) -> View:
    """A place whose last pass was a plain one: nothing of a prompt was read."""
    return view(offers, n_generated=0)


# -- what a request imposes ---------------------------------------------------


def test_what_the_request_says_is_done() -> None:
    controller = ProfitController(table())
    sure = {"ngram": draft("ngram", *(0.99,) * 16)}
    assert choose(controller, view(sure, fallback=Fallback.GRAMMAR))[0].fallback is Fallback.GRAMMAR
    assert choose(controller, view(sure, proposers=()))[0].fallback is Fallback.REQUEST
    assert choose(controller, view(sure, window=0))[0].fallback is Fallback.REQUEST
    assert choose(controller, view({}, max_window=0))[0].fallback is Fallback.EXACT
    fixed = choose(controller, view(sure, window=7))[0]
    assert (fixed.proposer, fixed.window, fixed.keep_going) == ("ngram", 7, None)


def test_nothing_to_say_is_told_from_nothing_worth_saying() -> None:
    controller = ProfitController(table(slope=1.0))
    nothing = choose(controller, view({"ngram": draft("ngram")}, n_generated=1))[0]
    assert nothing.fallback is Fallback.NO_DRAFT
    poor = choose(controller, view({"ngram": draft("ngram", 0.3)}, n_generated=2))[0]
    assert poor.fallback is Fallback.UNPROFITABLE


# -- the choice ---------------------------------------------------------------


def test_a_fresh_controller_bets_on_what_is_sure_and_cheap() -> None:
    controller = ProfitController(table(slope=0.05))
    choice = choose(controller, view({"ngram": draft("ngram", *(0.97,) * 16)}))[0]
    assert choice.window >= 6
    assert choice.expected_gain is not None and choice.expected_gain > 2
    assert choice.reason == "profit"


def test_tokens_that_nothing_else_may_come_for_need_no_record() -> None:
    """A schema's names: they cannot be lost, whatever leaving the shape of a plain pass costs."""
    costs = CostTable({(1, 1): Curve({1: 1.0, 17: 2.0}, {1: 1.3, 17: 2.4}, 0.8)})
    likely, certain = (
        choose(ProfitController(costs), settled({"skeleton": draft("skeleton", *(sure,) * 6)}))
        for sure in (0.97, 1.0)
    )
    assert (likely[0].window, certain[0].window) == (0, 6)


def test_how_long_a_draft_may_be_follows_the_prices() -> None:
    """A copied passage of 64 tokens: whole where passes are flat, a few where rows cost."""
    offer = {"prediction": draft("prediction", *(0.99,) * 64)}
    chosen = [
        choose(proven(table(slope), "prediction"), view(offer, max_window=64))[0].window
        for slope in (0.01, 0.05, 0.5)
    ]
    assert chosen[0] == 64 > chosen[1] >= 16 > chosen[2]


def test_a_longer_window_is_worth_it_where_rows_are_cheap() -> None:
    windows = []
    for slope in (0.6, 0.3, 0.1, 0.02):
        controller = proven(table(slope), "ngram")
        offer = {"ngram": draft("ngram", *(0.8,) * 16)}
        windows.append(choose(controller, view(offer))[0].window)
    assert windows == sorted(windows) and windows[0] < windows[-1]


def test_the_better_of_two_offers_is_taken() -> None:
    controller = proven(table(0.1), "ngram", "suffix")
    offers = {"ngram": draft("ngram", *(0.6,) * 8), "suffix": draft("suffix", *(0.95,) * 8)}
    assert choose(controller, view(offers, proposers=("ngram", "suffix")))[0].proposer == "suffix"


@given(st.floats(1.0, 3.0), st.lists(st.floats(0, 1), min_size=1, max_size=16))
def test_a_window_that_cannot_pay_even_at_best_is_never_tried(
    slope: float, confidence: list[float]
) -> None:
    """A row costs at least a plain pass here, so that no draft can win."""
    costs = table(slope, drafter=0.5)
    controller = proven(costs, "ngram", "model")
    proposers, offers = ("ngram", "model"), {"ngram": draft("ngram", *confidence)}
    for n in range(1, 40):
        choice = choose(controller, view(offers, proposers=proposers, n_generated=n))[0]
        assert choice.window == 0
        controller.observe([finished(fallback=choice.fallback)])


def test_the_steps_of_a_table_are_used() -> None:
    """From 5 to 9 rows a pass costs the same: who pays for 5 takes 9."""
    record = table().to_dict()
    record["target"][0]["steady_ms"] = {"1": 1000, "4": 1300, "5": 1900, "9": 1900, "10": 4000}
    controller = proven(CostTable.from_dict(record), "ngram")
    choice = choose(controller, view({"ngram": draft("ngram", *(0.9,) * 16)}))[0]
    assert choice.window == 8


def test_a_change_of_shape_is_priced() -> None:
    """Where changing costs a lot, a weak offer is not worth leaving the shape for."""
    offer = {"ngram": draft("ngram", 0.6, 0.6)}
    free = choose(proven(table(0.1), "ngram"), settled(offer))[0]
    dear = choose(proven(table(0.1, change=0.9), "ngram"), settled(offer))[0]
    assert free.window > 0 and dear.window == 0


def test_prices_that_cannot_be_relied_on_ask_for_a_wider_margin() -> None:
    offer = {"ngram": draft("ngram", 0.75)}
    sure = choose(proven(table(0.52), "ngram"), view(offer))[0]
    unsure = choose(proven(table(0.52, stable=False), "ngram"), view(offer))[0]
    assert sure.window == 1 and unsure.window == 0


# -- a draft model ------------------------------------------------------------


def test_a_good_drafter_is_used_and_stops_where_it_is_unsure() -> None:
    controller = proven(table(0.1, drafter=0.05), "model")
    choice = choose(controller, view(proposers=("model",), n_context=5))[0]
    assert choice.proposer == "model" and choice.keep_going and choice.verify
    assert choice.keep_going((0.99, 0.99))
    choice = choose(controller, view(proposers=("model",), n_context=5, n_generated=2))[0]
    assert choice.keep_going and choice.verify
    assert not choice.keep_going((0.99, 0.02))
    assert choice.verify((0.99, 0.02)) == 1


def test_a_drafter_too_slow_to_pay_is_never_asked() -> None:
    controller = proven(table(0.3, drafter=1.2), "model")
    for n in range(1, 2000):
        choice = choose(controller, view(proposers=("model",), n_generated=n, n_context=3))[0]
        assert choice.window == 0
        controller.observe([finished(fallback=choice.fallback, n_context=3)])


def test_probes_of_a_useless_drafter_become_seldom() -> None:
    controller = proven(table(0.05, drafter=0.02), "model")
    asked = []
    for n in range(1, 4000):
        choice = choose(controller, view(proposers=("model",), n_generated=n, n_context=3))[0]
        k = choice.verify((0.9,) * choice.window) if choice.verify else 0
        proposer = choice.proposer if k else "none"
        controller.observe(
            [finished(proposer, k, 0, 1.0 + 0.05 * k, confidence=(0.9,) * k, n_context=3)]
        )
        asked.append(k > 0)
    assert sum(asked[:1000]) > sum(asked[-1000:])
    assert sum(asked[-1000:]) <= 4


# -- never lose ---------------------------------------------------------------


def random_recording(rng: random.Random, n: int) -> Recording:
    """Acceptance, confidence and lengths that have nothing to do with each other."""

    def offer(present: float) -> RecordedOffer:
        if rng.random() > present:
            return RecordedOffer(0, ())
        k = rng.randint(1, 16)
        return RecordedOffer(rng.randint(0, k), tuple(rng.random() for _ in range(k)))

    offers = {
        proposer: tuple(offer(present) for _ in range(n))
        for proposer, present in (("ngram", 0.7), ("suffix", 0.5), ("model", 1.0))
    }
    return Recording("random", "random", rng.randint(1, 500), "length", offers)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.floats(0.0, 1.2),
    st.floats(0.01, 3.0),
    st.sampled_from([0.0, 0.2, 0.8]),
)
def test_no_text_is_slower_than_plain_by_more_than_the_stake(
    seed: int, slope: float, drafter: float, change: float
) -> None:
    """Whatever the proposers say and the target does: 2 % of the text, or half a pass.

    Unless a proposer was right six times and more before: then one bet more, of five passes.
    """
    rng = random.Random(seed)
    costs = table(slope, drafter, change)
    recording = random_recording(rng, rng.randint(1, 200))
    (outcome,) = Replay([recording], ("ngram", "suffix", "model")).run(
        ProfitController(costs.copy()), costs
    )
    n = recording.n_tokens
    free = [recording.offers[proposer] for proposer in ("ngram", "suffix")]
    proven = any(sum(o.n_accepted > 0 for o in offers) > 5 for offers in free)
    lost_s = outcome.seconds - plain_seconds(recording, costs)
    assert lost_s <= max(0.5, 0.02 * n) + (5.0 if proven else 0.0) + 1e-6


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_several_sequences_lose_no_more_together(seed: int, n_slots: int) -> None:
    rng = random.Random(seed)
    costs = table(0.2, 0.1)
    recordings = [random_recording(rng, rng.randint(20, 80)) for _ in range(2 * n_slots)]
    replay = Replay(recordings, ("ngram", "suffix", "model"))
    outcome = replay.run_together(ProfitController(costs.copy()), costs, n_slots)
    plain = replay.run_together(AlwaysPlain(), costs, n_slots)
    # Each of them may use its stake, and they end at different times.
    assert outcome.seconds <= 1.02 * plain.seconds + 2.0 * len(recordings)


class AlwaysPlain(NeverRests):
    def choose(self, views: Sequence[View]) -> list[Choice]:
        return [Choice("none", 0, Fallback.REQUEST) for _ in views]

    def observe(self, rounds: Sequence[Round]) -> None:
        pass


# -- several sequences --------------------------------------------------------


def test_rows_go_to_the_sequence_whose_draft_is_surest() -> None:
    controller = proven(table(0.25), "ngram")
    sure = view({"ngram": draft("ngram", *(0.97,) * 8)}, seq_id=0)
    unsure = view({"ngram": draft("ngram", *(0.3,) * 8)}, seq_id=1)
    first, second = choose(controller, sure, unsure)
    assert first.window > 0 and second.window == 0


def _eight(*drafts: int) -> list[View]:
    """Eight sequences, of which the first ones have a sure draft of so many tokens."""
    lengths = [*drafts, *(0,) * (8 - len(drafts))]
    offers = [{"ngram": draft("ngram", *(0.99,) * n)} for n in lengths]
    return [view(each, seq_id=i) for i, each in enumerate(offers)]


def test_one_draft_among_many_is_not_bet_on_where_it_takes_a_row_of_everybody() -> None:
    """Four rows more cost 0.2 of a pass, 32 of them 1.6: half a token each is not worth that."""
    unified = choose(proven(table(0.05), "ngram"), *_eight(4))
    apart = choose(proven(table(0.05), "ngram", unified=False), *_eight(4))
    assert unified[0].window == 4
    assert all(choice.window == 0 for choice in apart)


def test_drafts_of_all_get_one_width_where_caches_are_apart() -> None:
    choices = choose(proven(table(0.005), "ngram", unified=False), *_eight(2, *(4,) * 7))
    assert [choice.window for choice in choices] == [2, *(4,) * 7]  # the first one is padded


def test_where_nothing_is_padded_all_draft_as_much_or_nobody_does() -> None:
    def recurrent(*drafts: int) -> list[int]:
        controller = proven(table(0.005), "ngram")
        controller.cutting = Cutting(recurrent=True)
        return [choice.window for choice in choose(controller, *_eight(*drafts))]

    assert recurrent(2, *(4,) * 7) == [2] * 8
    assert recurrent(*(4,) * 7) == [0] * 8


def test_tokens_that_take_the_place_of_padding_cost_nothing() -> None:
    """An exact class whose passes have four rows: three tokens are free, a fourth is dear."""
    weak = view({"ngram": draft("ngram", *(0.3,) * 8)})
    assert choose(ProfitController(table(2.0)), weak)[0].window == 0
    assert choose(ProfitController(table(2.0)), replace(weak, floor=4))[0].window == 3


def test_a_drafter_goes_on_where_its_tokens_take_the_place_of_padding() -> None:
    """Passes of nine rows at least, dear ones: after two tokens, seven more cost no row."""
    padded = replace(view(proposers=("model",), max_window=12), floor=9)
    (choice,) = choose(proven(table(2.0, drafter=0.01), "model"), padded)
    assert choice.keep_going is not None and choice.verify is not None
    assert choice.keep_going([0.2, 0.2])
    assert choice.verify([0.2] * 12) == 8


def test_who_has_lost_too_much_to_bet_still_bets_on_rows_that_would_be_padding() -> None:
    controller = ProfitController(table(0.01, change=0.5))
    sure = view({"ngram": draft("ngram", *(0.9,) * 3)})
    choose(controller, sure)
    controller.account.book(sure.seq_id, "ngram", -100.0)
    assert choose(controller, replace(sure, n_generated=2))[0].window == 0
    assert choose(controller, replace(sure, n_generated=3, floor=3))[0].window == 2


def test_a_pass_that_was_cut_teaches_no_price_but_what_it_lost_is_booked() -> None:
    controller = proven(table(0.05), "ngram", unified=False)
    sent = _eight(4)
    choose(controller, *sent)
    controller._requests[0].asked = "ngram"  # alone, as if its passes were not cut
    before = controller.costs.to_dict()
    rounds = [finished("ngram", 4, 0, 3.0, seq_id=0, n_pass_rows=12)]
    rounds += [finished(seconds=3.0, seq_id=i, n_pass_rows=12) for i in range(1, 8)]
    controller.observe(rounds)
    assert controller.costs.to_dict() == before
    assert controller.account.to_dict()["ngram"] < 80.0


def test_a_batch_may_lose_what_its_sequences_may_lose_and_no_more() -> None:
    """Two unknown proposers, half a pass each: a change to and fro of 1.1 leaves no room."""
    views = [
        view({"ngram": draft("ngram", *(0.9,) * 8)}, seq_id=i, n_generated=1) for i in range(2)
    ]
    cheap = choose(ProfitController(table(0.05, change=0.1)), *views)
    dear = choose(ProfitController(table(0.05, change=0.55)), *views)
    assert sum(c.window for c in cheap) > 4
    assert sum(c.window for c in dear) == 0


def left_after(controller: ProfitController, *rounds: Round) -> float:
    """What the first of several sequences has left after a pass."""
    silent = {"ngram": NO_DRAFT}
    followed = controller._requests.get(0)
    n_generated = 1 + (0 if followed is None else followed.view.n_generated)
    choose(controller, *(view(silent, seq_id=r.seq_id, n_generated=n_generated) for r in rounds))
    controller.observe(rounds)
    return controller.account.left(0)


def plain_rounds(seconds: float) -> list[Round]:
    return [finished(seconds=seconds, seq_id=i, n_pass_rows=2) for i in range(2)]


def test_a_change_of_shape_that_no_bet_made_is_not_booked_as_lost() -> None:
    """A sequence began: plain decoding pays for that, too. Sixteen that began together had lost a
    pass before their first bet, and made none for a hundred rounds."""
    assert left_after(ProfitController(table(0.05, change=0.5)), *plain_rounds(1.55)) == 0.0


def test_the_way_back_from_a_bet_is_booked_as_lost_once() -> None:
    controller = ProfitController(table(0.05, change=0.5))
    bets = [finished("ngram", 1, 1, 1.65, i, n_pass_rows=4) for i in range(2)]
    before = left_after(controller, *bets)
    assert left_after(controller, *plain_rounds(1.55)) == pytest.approx(before - 0.25)
    assert left_after(controller, *plain_rounds(1.05)) == pytest.approx(before - 0.25)


def test_whoever_is_left_by_a_bet_that_ended_another_text_has_not_lost_the_change_of_shape() -> (
    None
):
    controller = ProfitController(table(0.05, change=0.5))
    bets = [finished("ngram", 1, 1, 1.65, i, n_pass_rows=4) for i in range(2)]
    before = left_after(controller, *bets)
    assert left_after(controller, finished(seconds=1.5)) == before


def bets_after(first: Round, n_plain: int = 3) -> bool:
    """Whether a sure offer is bet on after such a first round, where a change of shape is free."""
    controller = ProfitController(table(0.3))
    sure = {"ngram": draft("ngram", *(0.97,) * 4)}
    choose(controller, view())
    controller.observe([first])
    for n in range(2, 2 + n_plain):
        choose(controller, view(n_generated=n))
        controller.observe([finished()])
    return choose(controller, view(sure, n_generated=2 + n_plain))[0].window > 0


def test_the_account_covers_what_is_spent_without_a_bet() -> None:
    """Indexing a prompt took a plain pass: half a pass is no longer there to be staked."""
    look = replace(finished(), timing=Timing(draft_s=1.0, verify_s=1.0))
    assert bets_after(finished())
    assert not bets_after(replace(finished(), outside_s=1.0))
    assert not bets_after(look)


def test_an_index_built_in_a_round_with_a_bet_is_booked_whole() -> None:
    controller = proven(table(0.05), "ngram")
    choose(controller, view({"ngram": draft("ngram", *(0.97,) * 4)}))
    r = finished("ngram", 4, 4, 1.2)
    controller.observe([replace(r, timing=Timing(draft_s=50.0, verify_s=1.2))])
    assert controller.account.to_dict()["ngram"] < 100.0 - 40.0


def test_what_looking_took_is_not_held_against_what_it_found() -> None:
    """A slow look at a text that proves to repeat: it is bet on all the same."""
    controller = ProfitController(table(0.1, change=0.4))
    sure = {"ngram": draft("ngram", *(0.9,) * 16)}
    for n in range(1, 40):
        if choose(controller, view(sure, n_generated=n))[0].window:
            break
        plain_round = finished(agreed={"ngram": 1})
        controller.observe([replace(plain_round, timing=Timing(draft_s=0.1, verify_s=1.0))])
    assert n < 16


def settling_table() -> CostTable:
    """A GPU: a change of shape costs a fifth, the second pass of a new one nearly a whole pass."""
    made = table(0.1, drafter=0.05, change=0.2)
    curve = made.curve(50, 1)
    curve.settling_s = 0.8
    return made


def test_a_shape_that_has_settled_is_left_only_for_more_than_settling_again_costs() -> None:
    offers = {"ngram": draft("ngram", 0.5)}
    cheap, dear = proven(table(0.1, change=0.2), "ngram"), proven(settling_table(), "ngram")
    assert choose(cheap, settled(offers))[0].window == 1
    assert choose(dear, settled(offers))[0].window == 0


def test_a_drafter_that_will_be_used_for_the_rest_of_the_answer_is_worth_settling_for() -> None:
    controller = proven(settling_table(), "model")
    choice = choose(controller, view(proposers=("model",), n_context=5))[0]
    assert choice.proposer == "model" and choice.window > 0


def test_the_second_pass_of_a_new_shape_teaches_what_settling_costs() -> None:
    controller = proven(settling_table(), "ngram")
    curve = controller.costs.curve(50, 1)
    steady = curve.steady[3]
    for n in range(1, 60):
        choose(controller, view({"ngram": draft("ngram", 0.9, 0.9)}, n_generated=n, window=2))
        rows = 3 if n % 4 in (1, 2) else 1  # two passes of each shape, over and over
        seconds = curve.of(rows, changed=n % 2 == 1) + (0.0 if n % 2 else 0.4)
        controller.observe([finished("ngram", rows - 1, 0, seconds)])
    assert 0.2 < curve.settling_s < 0.6
    assert curve.steady[3] == pytest.approx(steady, rel=0.05)


@pytest.mark.parametrize("settling_s", [0.0, 2.0, 2.5, 3.0])
def test_a_text_that_settles_sooner_than_believed_does_not_seem_faster_than_it_is(
    settling_s: float,
) -> None:
    """A device that had the shape before settles soon. Tokens then seemed to take a fraction of a
    pass, and a draft of them was worth nothing."""
    costs = table(0.1, change=0.2)
    costs.curve(50, 1).settling_s = 5.0
    controller = proven(costs, "ngram")
    for n, seconds in ((1, 1.3), (2, 1.1 + settling_s), (3, 1.1)):
        choose(controller, view({"ngram": NO_DRAFT}, n_generated=n))
        controller.observe([finished(seconds=seconds)])
    offer = view({"ngram": draft("ngram", *(0.9,) * 6)}, n_generated=4)
    assert choose(controller, offer)[0].window == 6


def test_after_a_pass_that_was_faster_than_any_can_be_the_next_good_draft_is_taken() -> None:
    """An earlier answer told 60 tokens at once; the text itself is not quite as sure of the rest.
    By the speed of that pass every draft seemed to lose, and a plain pass to lose least."""
    costs = next(c for c in shipped_tables() if c.name == "gpu-30b-a3b-q4_0-settling").copy()
    controller = proven(costs, "suffix")

    def offered(n_generated: int, sure: float) -> Choice:
        offers = {"suffix": draft("suffix", *(sure,) * 62)}
        return choose(
            controller, view(offers, ("suffix",), n_generated=n_generated, max_window=64)
        )[0]

    first = offered(1, 0.97).window
    assert first > 40
    seconds = costs.curve(50, 1).of(first + 1, changed=True)
    controller.observe([finished("suffix", first, first, seconds)])
    assert offered(2 + first, 0.95).window > 20


def test_choices_come_in_the_order_of_the_views() -> None:
    controller = proven(table(0.05), "ngram")
    views = [
        view({"ngram": draft("ngram", 0.9)}, seq_id=5),
        view(fallback=Fallback.GRAMMAR, seq_id=2),
        view({"ngram": draft("ngram", *(0.9,) * 3)}, seq_id=3, window=2),
    ]
    first, second, third = choose(controller, *views)
    assert first.proposer == "ngram" and second.fallback is Fallback.GRAMMAR and third.window == 2


# -- learning -----------------------------------------------------------------


def test_an_offer_not_taken_is_learned_from_all_the_same() -> None:
    controller = ProfitController(table(slope=2.0))
    for n in range(1, 30):
        offer = {"ngram": draft("ngram", 0.55)}
        assert choose(controller, view(offer, n_generated=n))[0].window == 0
        controller.observe([finished(agreed={"ngram": 1})])
    known = controller.survival.of("ngram", True, False).by_confidence
    assert sum(known.n_tried) == 29


def test_passes_that_read_a_prompt_are_not_timed() -> None:
    controller = ProfitController(table())
    choose(controller, view())
    before = controller.costs.to_dict()
    controller.observe([finished(seconds=50.0, n_pass_rows=129)])
    assert controller.costs.to_dict() == before


@pytest.mark.parametrize(("change", "settling"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.5)])
def test_prices_that_are_right_stay_as_they_are(change: float, settling: float) -> None:
    """It expects of every pass and every draft exactly what the replay charges for it."""
    costs = table(0.05, 0.03, change)
    costs.curve(50, 1).settling_s = settling
    controller = ProfitController(costs.copy())
    outcomes = Replay(mixed_workload()[:12], ("ngram", "suffix", "model")).run(controller, costs)
    assert sum(o.n_tokens for o in outcomes) > 1.5 * sum(o.n_rounds for o in outcomes)
    assert controller.costs.drafter is not None
    assert controller.costs.drafter.pace == pytest.approx(1.0, abs=1e-6)
    assert controller.costs.pace == pytest.approx(1.0, abs=1e-6)


def test_a_window_set_by_the_request_teaches_no_price_of_another_proposer() -> None:
    """And says nothing of what a window would win that is chosen."""
    controller = ProfitController(table(0.05, 0.03))
    offers = {"ngram": draft("ngram", *(0.9,) * 4)}
    for i in range(50):
        asked = view(offers, ("ngram", "model"), n_generated=i + 1, window=4)
        assert choose(controller, asked)[0].proposer == "ngram"
        controller.observe([finished("ngram", 4, 4, 1.2)])
    assert controller.costs.drafter is not None
    assert controller.costs.drafter.pace == 1.0
    assert not controller.to_dict()["record"]


def test_what_was_learned_is_kept() -> None:
    controller = ProfitController(table(0.1, 0.05))
    rng = random.Random(3)
    recordings = [random_recording(rng, 100) for _ in range(3)]
    Replay(recordings, ("ngram", "suffix", "model")).run(controller, table(0.1, 0.05))
    kept = json.loads(json.dumps(controller.to_dict()))
    assert ProfitController(table(), kept).to_dict() == kept


def test_a_round_of_a_request_never_seen_is_no_error() -> None:
    ProfitController(table()).observe([finished("ngram", 3, 1, seq_id=9)])


def test_choosing_takes_few_calls() -> None:
    """What that is in time on an idle machine is in docs/explanation/controller.md."""
    controller = proven(table(0.1), "ngram", "suffix")
    offers = {s: draft(s, *(0.9,) * 16) for s in ("ngram", "suffix")}

    def rounds() -> None:
        for n in range(1, 101):
            choose(controller, view(offers, proposers=("ngram", "suffix"), n_generated=n))
            controller.observe([finished("ngram", 16, 16, 2.6, agreed={"ngram": 16, "suffix": 16})])

    assert python_calls(rounds)[1] / 100 < 400


# -- several draft models ---------------------------------------------------------------------


def answers_of(good: str, n: int = 24, length: int = 96) -> list[Recording]:
    """One draft model is right, the other wrong."""
    right, wrong = RecordedOffer(16, (0.9,) * 16), RecordedOffer(0, (0.9,) * 16)
    offers = {name: (right if name == good else wrong,) * length for name in ("model", "model2")}
    return [Recording(str(i), "made", 50, "length", offers) for i in range(n)]


@pytest.mark.parametrize("good", ["model", "model2"])
def test_of_several_draft_models_the_one_that_holds_is_found(good: str) -> None:
    costs = table(slope=0.1, drafter=0.05)
    drafted: list[str] = []

    class Watch:
        def observe(self, rounds: Sequence[Round]) -> None:
            drafted.extend(r.proposer for r in rounds if r.n_drafted)

    replay = Replay(answers_of(good), ("model", "model2"))
    replay.run(ProfitController(costs.copy()), costs, [Watch()])
    late = drafted[len(drafted) // 2 :]
    assert late.count(good) > 0.9 * len(late) > 20


# -- padding ---------------------------------------------------------------------------------


def flat() -> CostTable:
    """As an F16 model on a GPU."""
    steady = {1: 0.8, 2: 1.1, 8: 1.2, 16: 1.3, 17: 1.1, 32: 1.2}
    changed = {rows: seconds + 0.5 for rows, seconds in steady.items()}
    return CostTable({(1, 1): Curve(steady, changed)})


def padding(offers: dict[str, Draft] | None = None, n_generated: int = 1) -> View:
    return replace(view(offers or {"ngram": NO_DRAFT}, n_generated=n_generated), pads=True)


def test_a_draft_is_padded_where_that_is_cheaper_and_its_pass_may_be() -> None:
    sure = {"ngram": draft("ngram", *(0.97,) * 6)}
    may = choose(proven(flat(), "ngram"), padding(sure))[0]
    assert may.window == 6 and may.width(7) == 17
    must_not = choose(proven(flat(), "ngram"), view(sure))[0]
    assert must_not.window == 6 and must_not.width(7) == 7


@pytest.mark.parametrize(("step_s", "taken"), [(2.0, "ngram"), (0.001, "model")])
def test_beside_a_draft_model_its_own_and_free_drafts_are_padded_where_kernels_are_faster(
    step_s: float, taken: str
) -> None:
    costs = flat()
    costs.drafter = DrafterCost(Curve({1: step_s}, {}), single_steps=False)
    controller = proven(costs, "ngram", "model")
    offers = {"ngram": draft("ngram", *(0.97,) * (6 if taken == "ngram" else 1))}
    both = replace(padding(offers), proposers=("ngram", "model"))
    chosen = choose(controller, both)[0]
    assert chosen.proposer == taken
    assert chosen.width(7) == chosen.width(17) == 17


def test_a_plain_round_waits_in_the_shape_of_drafts_as_long_as_they_are_near() -> None:
    controller, curve, last = proven(flat(), "ngram"), flat().curve(50, 1), 1
    sure, waited = {"ngram": draft("ngram", *(0.97,) * 6)}, []
    for i in range(60):
        offers = sure if i < 30 and i % 3 else None
        chosen = choose(controller, padding(offers, n_generated=1 + 8 * i))[0]
        rows = chosen.width(1 + chosen.window)
        seconds, last = curve.of(rows, rows != last), rows
        made = finished("ngram", 6, 6, seconds) if chosen.window else finished(seconds=seconds)
        waited += [i] * (chosen.reason == WAITS)
        padded = rows - made.n_rows
        controller.observe(
            [replace(made, n_pass_rows=rows, n_padding=padded, reason=chosen.reason)]
        )
    assert len([i for i in waited if i < 30]) >= 5
    assert 30 <= max(waited) < 45


@pytest.mark.parametrize("sure", [(), (0.9,) * 8])
def test_a_round_after_a_pass_that_read_more_of_a_prompt_than_prices_reach_is_weighed(
    sure: tuple[float, ...],
) -> None:
    controller, offers = proven(flat(), "ngram"), {"ngram": draft("ngram", *sure)}
    choose(controller, padding(offers))
    controller.observe([replace(finished(n_pass_rows=1 + 512, seconds=3.0), reads_prompt=True)])
    (choice,) = choose(controller, padding(offers, n_generated=2))
    assert choice.width(1) == 1


def test_what_waiting_costs_is_booked_as_lost() -> None:
    controller = proven(flat(), "ngram")
    choose(controller, padding())
    before = controller.account.left(0)
    made = replace(finished(seconds=1.1), n_pass_rows=17, n_padding=16, reason=WAITS)
    controller.observe([made])
    assert controller.account.left(0) == pytest.approx(before - 0.3)


def test_a_drafter_that_had_nothing_to_say_is_looked_at_again_and_ever_more_seldom() -> None:
    costs = table(1.0, 0.05, change=0.8)
    assert costs.drafter is not None
    costs.drafter.block = Curve({2: 0.05, 16: 0.06}, {})
    controller, at = ProfitController(costs), []
    for n in range(1, 60):
        choice = choose(controller, view(proposers=("model",), n_generated=n))[0]
        if choice.look:
            at.append(n)
        controller.observe([replace(finished(seconds=1.0), reason=choice.reason)])
    assert 2 <= len(at) < 6
    assert [b - a for a, b in pairwise(at)] == [4, 10, 22][: len(at) - 1]


def test_what_a_drafter_took_that_had_nothing_to_say_is_not_the_price_of_a_search() -> None:
    controller = proven(table(0.1, drafter=0.05), "ngram", "model")
    for i in range(40):
        choose(controller, view({"ngram": NO_DRAFT}, n_generated=1 + i))
        made = replace(finished("model", fallback=Fallback.NO_DRAFT), window=8)
        controller.observe([replace(made, timing=Timing(draft_s=0.5, verify_s=1.0))])
    assert not controller.rests() and controller.due(1) == 1


def test_a_text_that_is_heard_of_between_two_choices_is_not_taken_for_a_new_one() -> None:
    controller = ProfitController(table(slope=0.5))
    controller.choose([view(n_generated=5)])
    followed = controller._requests[0]
    assert controller.hear(0, [Look("model", 2, (0.9, 0.9, 0.9))], 9) is None
    controller.choose([view(n_generated=10)])
    assert controller._requests[0] is followed


@pytest.mark.parametrize("window", [3, 0])
def test_what_a_drafter_that_failed_has_to_read_again_is_priced_in_every_text(window: int) -> None:
    """But not where a pass failed, whoever was bet on: then nobody was asked."""
    controller = proven(table(0.02, 0.02), "model")
    for seq_id, n in ((0, 1), (1, 1), (1, 6)):
        at = view(proposers=("model",), seq_id=seq_id, n_generated=n, n_context=4000 + n)
        (choice,) = choose(controller, at)
        assert choice.proposer == "model" and choice.window
        made = finished("model", 4, 4, 1.1, seq_id, (0.9,) * 4, n_context=4000 + n)
        if n > 1:
            failed = finished(seq_id=seq_id, fallback=Fallback.DRAFT_ERROR, n_context=4000 + n)
            made = replace(failed, window=window)
        controller.observe([made])
    missing = [controller._requests[i].n_missing("model") for i in (0, 1)]
    assert all((n > 4000) == (window > 0) for n in missing)


# -- what is booked to whom --------------------------------------------------------------------


def test_a_look_beside_a_pass_leaves_the_bet_on_it_with_whoever_made_it() -> None:
    costs = table(slope=0.02, drafter=0.9)
    assert costs.drafter is not None
    costs.drafter.both = Both({1: 1.001, 17: 1.001}, {1: 0.95, 17: 0.95})
    controller = proven(costs, "ngram", unified=False)
    sure = {"ngram": draft("ngram", *(0.97,) * 16)}
    (bet,) = choose(controller, view(sure, proposers=("ngram", "model"), n_generated=200))
    look = controller.hear(0, [Look("model", 0, (0.5,) * 4)], 200)
    assert bet.proposer == "ngram" and look is not None and look.proposer == "model"
    n = bet.window
    lost = finished("ngram", n, 0, 1.0 + 0.02 * n, confidence=(0.97,) * n, agreed={"ngram": 0})
    controller.observe([lost])
    kept = controller.to_dict()["record"]
    assert kept["ngram"] < 100.0 and "model" not in kept
    assert costs.drafter.pace == 1.0


def test_what_a_grammar_forces_is_not_learned_as_a_models_own() -> None:
    costs = table(slope=0.01, drafter=0.1)
    assert costs.drafter is not None
    controller, n = proven(costs, "model", unified=False), 1
    for _ in range(60):
        (bet,) = choose(controller, view({}, proposers=("model",), n_generated=n, n_context=50 + n))
        if not bet.window:
            controller.observe([finished(n_context=50 + n)])
            n += 1
            continue
        w = bet.window
        sure = (1.0,) * max(0, w - 2) + (0.9,) * min(2, w)  # two of them took the model a step
        took = finished("skeleton+model", w, w, confidence=sure, n_context=50 + n)
        timing = Timing(draft_s=0.2, verify_s=1 + 0.01 * w)
        controller.observe([replace(took, timing=timing)])
        n += w + 1
    assert costs.drafter.pace == 1.0


def test_neighbours_of_a_window_that_was_asked_for_go_on_betting() -> None:
    controller = proven(table(slope=0.01, drafter=None), "ngram")
    sure, n_bets = {"ngram": draft("ngram", *(0.98,) * 4)}, 0
    for at in range(1, 1400):
        views = [
            view(sure, seq_id=0, n_generated=at, window=4),
            view(sure, seq_id=1, n_generated=at),
        ]
        choices = choose(controller, *views)
        n_bets += choices[1].window > 0
        rows = sum(1 + choice.window for choice in choices)
        controller.observe(
            [
                finished("ngram", c.window, c.window, 1.0 + 0.01 * rows, i, n_pass_rows=rows)
                for i, c in enumerate(choices)
            ]
        )
    assert n_bets > 1300


def test_what_is_weighed_beside_a_pass_leaves_the_round_under_way_as_it_was() -> None:
    controller = ProfitController(table(slope=0.9, drafter=None), {"record": {"ngram": 0.0}})
    good = {"ngram": draft("ngram", *(0.97,) * 16)}
    choose(controller, view(good))
    request = controller._requests[0]
    before = request.view, request.refused
    assert request.refused is not None
    controller.consider(0, good, (), 5)
    assert (request.view, request.refused) == before


def test_an_answer_that_began_while_nobody_was_asked_is_not_taken_for_the_last_one() -> None:
    controller = ProfitController(table(slope=0.05), {"record": {"ngram": 1.0}})
    sure = {"ngram": draft("ngram", *(0.97,) * 8)}
    choose(controller, replace(view(sure, n_generated=5), answer=1))
    first = controller._requests[0]
    choose(controller, replace(view(sure, n_generated=21), answer=2))
    assert controller._requests[0] is not first
    again = controller._requests[0]
    choose(controller, replace(view(sure, n_generated=25), answer=2))
    assert controller._requests[0] is again


@pytest.mark.parametrize("n", [24, 32, 64])
@pytest.mark.parametrize("unified", [True, False])
def test_no_pass_is_wider_than_prices_reach(n: int, unified: bool) -> None:
    curves = {(1, k): Curve({k: 1.0, 512: 1.3}, {}) for k in (1, n)}
    cost = DrafterCost(Curve({1: 0.01, 512: 0.02}, {}), single_steps=False)
    for proposer in ("model", "ngram"):
        controller = proven(CostTable(curves, cost), proposer, unified=unified)
        sure = {"ngram": draft("ngram", *(0.98,) * 16)} if proposer == "ngram" else {}
        views = [view(sure, proposers=(proposer,), seq_id=i, n_generated=300) for i in range(n)]
        choices = choose(controller, *views)
        assert n + sum(choice.window for choice in choices) <= 512
        rows = 1024  # of windows that were asked for
        told = [finished(proposer, 15, 3, 2.0, i, n_pass_rows=rows) for i in range(n)]
        controller.observe([replace(r, n_sequences=n) for r in told])


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_that_is_narrower_than_the_search_was_is_kept_to(limit: int) -> None:
    controller = proven(table(slope=0.01, drafter=None), "ngram")
    offers = {"ngram": draft("ngram", *(0.98,) * 16)}, {"ngram": draft("ngram", 0.6)}
    for second in offers:
        views = [
            view(each, seq_id=i, max_window=limit) for i, each in enumerate((offers[0], second))
        ]
        assert max(choice.window for choice in choose(controller, *views)) == limit


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("unified", [True, False])
def test_a_draft_that_is_gone_on_with_beside_the_pass_is_no_longer_than_its_text_has_room(
    most: int, unified: bool
) -> None:
    cost = DrafterCost(Curve({1: 0.05, 17: 0.06}, {}), single_steps=False)
    cost.both = Both({1: 1.001, 64: 1.001}, {1: 0.05, 64: 0.05})
    curves = {(1, n): Curve({1: 1.0, 64: 1.05}, {}) for n in (1, 2)}
    controller = proven(CostTable(curves, cost), "model", unified=unified)
    views = [view(proposers=("model",), seq_id=i, max_window=n) for i, n in enumerate((16, most))]
    known = controller.survival.of("model", views[0].greedy, views[0].thinking)
    for _ in range(100):  # it is right, always
        known.observe_position(16, 16, Difficulty())
    wide, narrow = choose(controller, *views)
    assert wide.ahead and wide.window > most
    assert narrow.keep_going is not None and narrow.window == most
    narrow.keep_going([0.01])  # its rates end where its room does


def test_every_draft_model_is_due_a_look_by_the_tokens_that_came() -> None:
    costs = table(slope=0.02, drafter=0.9)
    assert costs.drafter is not None
    costs.drafter.both = Both({1: 1.0001, 17: 1.0001}, {1: 0.95, 17: 0.95})
    controller, looked = ProfitController(costs), list[str]()
    for at in range(8, 2000, 8):
        (choice,) = choose(controller, view({}, proposers=("model", "model2"), n_generated=at))
        look = choice if choice.look else None
        while look is not None:
            looked.append(look.proposer)
            look = controller.hear(0, [Look(look.proposer, 0, (0.5,) * 4)] * 3, at)
        controller.observe([finished(n_context=50)])
    assert looked.count("model2") >= 0.5 * looked.count("model") > 10


def test_while_a_pass_is_under_way_no_block_is_looked_at_and_its_turn_comes_later() -> None:
    costs = table(slope=0.5, drafter=0.9, change=1.0)
    assert costs.drafter is not None
    costs.drafter.both = Both({1: 1.0001, 17: 1.0001}, {1: 0.95, 17: 0.95})
    block = DrafterCost(Curve({1: 0.01, 17: 0.01}, {}), single_steps=False)
    block.block, block.longest = Curve({1: 0.1, 17: 0.1}, {}), 7
    costs.drafters = {"block": block}
    controller, looked = ProfitController(costs), list[str]()
    for n in range(1, 400):
        (choice,) = choose(controller, view(proposers=("model", "block"), n_generated=n))
        controller.observe([replace(finished(), reason=choice.reason)])
        if choice.look:
            looked.append(choice.proposer)
        if choice.proposer == "model":
            more = controller.hear(0, [Look("model", 0, (0.5,) * 4)], n)
            assert more is None or more.proposer == "model"
    assert {*looked} == {"model", "block"}


def test_after_a_busy_moment_bets_begin_again_without_a_restart() -> None:
    """Other work made wide passes dearer than plain ones; nobody bet after that, and so nobody saw
    that it was over."""
    costs = table(slope=0.5, drafter=None)
    truth, controller = costs.copy(), proven(costs, "ngram", unified=False)
    sure, n, bets = {"ngram": draft("ngram", 0.95)}, 1, list[bool]()
    for at in range(6000):
        offers = sure if at % 3 else {"ngram": NO_DRAFT}  # plain passes tell how fast it is now
        (bet,) = choose(controller, replace(view(offers, n_generated=n), n_remaining=10_000))
        w = bet.window
        busy = 2.0 if 100 <= at < 400 and w else 1.0
        seconds = busy * truth.curve(50, 1).steady[1 + w]
        proposer, sureness = ("ngram" if w else "none"), (0.95,) * w
        told = finished(proposer, w, w, seconds, confidence=sureness, agreed={"ngram": 1})
        controller.observe([told])
        n += 1 + w
        bets.append(w > 0)
    assert sum(bets[:100]) > 50
    assert sum(bets[300:400]) < 20
    assert sum(bets[-600:]) > 300

from __future__ import annotations

import pytest

from parlay.control.budget import BudgetController
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.undoing import Undoing
from tools.replay.recording import RecordedOffer, Recording
from tools.replay.world import World

SOME = Undoing(free=2, seconds=3.0)


def test_as_much_as_there_are_snapshots_is_taken_back_for_nothing() -> None:
    assert SOME.worst_s(2) == 0.0
    assert SOME.worst_s(3) == 3.0
    assert not SOME.is_paid(n_drafted=5, n_accepted=3)
    assert SOME.is_paid(n_drafted=5, n_accepted=2)


def test_the_price_follows_what_was_seen_and_no_single_one_is_believed_too_much() -> None:
    assert 2.0 < SOME.after(1.0).seconds < 3.0
    assert SOME.after(1000.0).seconds == SOME.after(6.0).seconds


def test_it_is_kept_with_the_prices() -> None:
    table = CostTable({(1, 1): Curve({1: 1.0, 9: 2.0}, {})}, undoing=SOME)
    assert table.copy().undoing == SOME
    assert "undoing" not in CostTable({(1, 1): Curve({1: 1.0}, {})}).to_dict()


# -- a hybrid: eight rows cost a half more than one, going back to a copy two passes ------------

HYBRID = CostTable({(1, 1): Curve({1: 1.0, 8: 1.4, 9: 1.6, 17: 1.8}, {})}, undoing=Undoing(7, 2.0))


def answer(n: int, holds: float, per: int = 64) -> Recording:
    """Drafts of `per` tokens from the ninth on, of which a share holds."""
    right, wrong = RecordedOffer(per, (0.98,) * per), RecordedOffer(1, (0.98,) * per)
    cycle = [right if i % 10 < 10 * holds else wrong for i in range(n)]
    offers = (*(RecordedOffer(0, ()) for _ in range(8)), *cycle[8:])
    return Recording(f"{n}", "made", 50, "length", {"suffix": offers})


def tokens_per_second(recordings: list[Recording]) -> float:
    made = World(HYBRID, ("suffix",)).play(BudgetController(HYBRID.copy()), recordings)
    return sum(each.n_tokens for each in made) / sum(each.seconds for each in made)


def test_text_that_repeats_itself_is_drafted_far_beyond_the_snapshots() -> None:
    best_within = 8 / 1.4  # tokens per second at a window of seven
    assert tokens_per_second([answer(256, holds=1.0) for _ in range(4)]) > 1.1 * best_within


@pytest.mark.parametrize("holds", [0.0, 0.3, 0.6])
def test_drafts_that_may_be_wrong_do_not_lose_by_copies(holds: float) -> None:
    assert tokens_per_second([answer(256, holds) for _ in range(8)]) > 0.97

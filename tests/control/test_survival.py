from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from parlay.control.survival import CELL_OF, STEPS, Acceptance, Difficulty, Survival

drafts = st.lists(
    st.tuples(st.lists(st.floats(0, 1), min_size=1, max_size=16), st.integers(0, 16)), max_size=40
)


def rate(known: Acceptance, confidence: float, difficulty: Difficulty) -> float:
    odds = known.by_confidence.odds[CELL_OF[int(confidence * STEPS)]]
    return 1.0 / (1.0 + odds * difficulty.factor)


def position_rate(known: Acceptance, position: int, difficulty: Difficulty) -> float:
    return 1.0 / (1.0 + known.by_position.odds[position] * difficulty.factor)


def test_before_anything_was_seen_a_confidence_is_taken_at_its_word() -> None:
    known, difficulty = Acceptance(), Difficulty()
    for confidence in (0.1, 0.35, 0.65, 0.85, 0.97):
        assert abs(rate(known, confidence, difficulty) - confidence) < 0.06


def test_a_rejection_is_not_counted_for_later_positions() -> None:
    known = Acceptance()
    for _ in range(200):
        known.observe_position(8, 2, Difficulty())
    assert known.by_position.n_tried[:4] == [200, 200, 200, 0]
    change = position_rate(known, 3, Difficulty()) - position_rate(Acceptance(), 3, Difficulty())
    assert abs(change) < 0.02


def test_a_position_that_was_never_reached_is_known_from_those_that_hold() -> None:
    known = Acceptance()
    for _ in range(30):
        known.observe_position(7, 7, Difficulty())
    assert position_rate(known, 15, Difficulty()) > 0.95
    assert position_rate(known, 0, Difficulty()) > position_rate(known, 15, Difficulty())


def test_positions_that_differ_are_told_apart() -> None:
    rng, known = random.Random(1), Acceptance()
    for _ in range(2000):
        n = next((i for i in range(4) if rng.random() > (0.9, 0.8, 0.6, 0.3)[i]), 4)
        known.observe_position(4, n, Difficulty())
    for position, expected in enumerate((0.9, 0.8, 0.6, 0.3)):
        assert abs(position_rate(known, position, Difficulty()) - expected) < 0.12


def test_a_draft_accepted_to_its_end_says_nothing_about_the_token_after_it() -> None:
    known = Acceptance()
    for _ in range(200):
        known.observe_position(3, 3, Difficulty())
    assert known.by_position.n_tried[:4] == [200, 200, 200, 0]


def test_confidences_after_a_rejection_are_not_counted() -> None:
    known = Acceptance()
    known.observe_confidence((0.9, 0.5, 0.3), 1, Difficulty())
    tried = known.by_confidence.n_tried
    assert tried[CELL_OF[900]] == 1 and tried[CELL_OF[500]] == 1 and tried[CELL_OF[300]] == 0


def test_rates_converge_to_what_happens() -> None:
    rng, known = random.Random(1), Acceptance()
    for _ in range(3000):
        known.observe_position(1, int(rng.random() < 0.4), Difficulty())
    assert abs(position_rate(known, 0, Difficulty()) - 0.4) < 0.08


def test_a_model_that_is_right_where_it_was_unsure_is_soon_believed() -> None:
    known, slow = Acceptance(), Acceptance()
    for _ in range(50):
        known.observe_confidence((0.65,) * 4, 4, Difficulty(), even=True)
        slow.observe_confidence((0.65,) * 4, 4, Difficulty())
    assert rate(known, 0.65, Difficulty()) > 0.97 > 0.94 > rate(slow, 0.65, Difficulty())


def test_a_model_s_rates_converge_to_what_happens() -> None:
    rng, known, found = random.Random(1), Acceptance(), list[float]()
    for _ in range(6000):
        known.observe_confidence((0.65,), int(rng.random() < 0.95), Difficulty(), even=True)
        found.append(rate(known, 0.65, Difficulty()))
    assert abs(sum(found[1000:]) / 5000 - 0.95) < 0.01


def test_a_switch_of_the_text_is_followed_within_30_rounds() -> None:
    known, difficulty = Acceptance(), Difficulty()
    for _ in range(100):
        known.observe_confidence((0.8,) * 4, 4, difficulty)
    assert rate(known, 0.8, difficulty) > 0.95
    assert n_rounds(known, difficulty, n_accepted=0, until=lambda p: p < 0.5) < 30
    assert n_rounds(known, difficulty, n_accepted=4, until=lambda p: p > 0.85) < 30


def n_rounds(
    known: Acceptance, difficulty: Difficulty, n_accepted: int, until: Callable[[float], bool]
) -> int:
    n = 0
    while not until(rate(known, 0.8, difficulty)):
        known.observe_confidence((0.8,) * 4, n_accepted, difficulty)
        n += 1
    return n


def test_one_easy_text_does_not_make_a_better_proposer() -> None:
    """The difficulty takes the credit: a new text starts near where it would have without it."""
    known, difficulty = Acceptance(), Difficulty()
    before = rate(known, 0.65, Difficulty())
    for _ in range(30):
        known.observe_confidence((0.65,) * 16, 16, difficulty)
    assert difficulty.factor < 0.3
    assert rate(known, 0.65, Difficulty()) - before < 0.25


@given(drafts)
@example([([0.0] * 10, 10), ([1.0], 0), ([0.0] * 16, 16)])  # several cells passed at once
def test_to_be_more_sure_is_never_to_be_less_likely(seen: list[tuple[list[float], int]]) -> None:
    known, difficulty = Acceptance(), Difficulty()
    for confidence, n_accepted in seen:
        known.observe_confidence(confidence, n_accepted, difficulty)
    odds = known.by_confidence.odds
    assert all(a >= b - 1e-9 for a, b in pairwise(odds))
    assert all(odds[:-1]) and difficulty.factor > 0


def test_modes_are_learned_apart_and_kept() -> None:
    survival = Survival()
    survival.of("model", True, False).observe_position(4, 0, Difficulty())
    sampling = survival.of("model", False, False)
    assert sampling.by_position.n_tried[0] == 0
    again = Survival.from_dict(json.loads(json.dumps(survival.to_dict())))
    kept, was = again.of("model", True, False), survival.of("model", True, False)
    assert kept.by_position.n_tried == was.by_position.n_tried
    assert abs(kept.by_position.odds[0] - was.by_position.odds[0]) < 1e-5
    assert again.to_dict() == survival.to_dict()


def test_a_record_that_does_not_fit_is_left_out() -> None:
    good = Survival()
    good.of("a/b", True, True)
    record = {**good.to_dict(), "bad": 3, "x/greedy/thinking": {"by_confidence": {"odds": [1]}}}
    assert list(Survival.from_dict(record).to_dict()) == ["a/b/greedy/thinking"]

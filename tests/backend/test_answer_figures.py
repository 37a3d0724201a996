"""Counts merged, the baseline learned, speed-ups told against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlay.backend import answer_figures as statistics
from parlay.backend.answer_figures import merged, timings
from parlay.backend.observer import Observer
from parlay.backend.plain_speed import PlainSpeed
from parlay.decoding.counts import Counts
from parlay.decoding.round import WAITS, Fallback, Round, Timing
from parlay.decoding.verdict import Verdict
from parlay.engine.answer import Answer
from parlay.engine.request import Request
from parlay.engine.sequence import Piece, Sequence
from tests.engine.rig import Letters


def a_round(n_drafted: int, n_accepted: int, seconds: float, n_sequences: int = 1) -> Round:
    return Round(
        seq_id=0,
        proposer="suffix" if n_drafted else "none",
        window=n_drafted,
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        n_generated=n_accepted + 1,
        confidence=(),
        n_rows=n_drafted + 1,
        n_sequences=n_sequences,
        n_pass_rows=(n_drafted + 1) * n_sequences,
        n_context=10,
        timing=Timing(verify_s=seconds),
        fallback=None if n_drafted else Fallback.NO_DRAFT,
    )


def an_answer(*rounds: int, seconds: float) -> tuple[Sequence, list[Piece]]:
    """Rounds of so many tokens; from the first to the last it takes so long."""
    pieces: list[Piece] = []
    request = Request(prompt=(1, 2), max_tokens=99)
    seq = Sequence(request, Letters(), frozenset(), lambda _seq, told: pieces.extend(told))
    for n in rounds:
        seq.commit(Verdict(tuple(range(n)), n - 1, n - 1), "suffix")
    seq.finish("stop")
    seq.retire()
    assert seq.first_token is not None
    seq.ended = seq.first_token + seconds
    return seq, pieces


@pytest.mark.parametrize(("rounds", "speed"), [((17, 9, 8), 170.0), ((1, 1, 1), 20.0), ((5,), 0.0)])
def test_tokens_that_came_with_the_first_have_no_part_in_the_speed(
    rounds: tuple[int, ...], speed: float
) -> None:
    """A cached prompt has no pass of its own: its answer begins with a whole round."""
    seq, pieces = an_answer(*rounds, seconds=0.1 if len(rounds) > 1 else 0.0)
    told = timings([seq])
    assert (told["predicted_n"], told["first_n"]) == (sum(rounds), rounds[0])
    assert told["predicted_per_second"] == pytest.approx(speed)
    assert told["predicted_per_token_ms"] == pytest.approx(1e3 / speed if speed else 0.0, rel=1e-3)
    assert Answer.of(seq, pieces, "exact").tokens_per_second == pytest.approx(speed)


def test_an_answer_whose_client_left_has_taken_until_now() -> None:
    """The worker hears of it with its next round; the log does not wait for that."""
    seq = Sequence(Request(prompt=(1, 2)), Letters(), frozenset(), lambda *_: None)
    seq.submitted -= 1.0
    assert statistics.queue_s(seq) >= 1.0  # it never had a slot
    seq.seq_id, seq.started = 0, seq.submitted + 0.25
    seq.commit(Verdict((1, 2, 3), 2, 2), "suffix")
    assert statistics.queue_s(seq) == pytest.approx(0.25)
    assert statistics.e2e_s(seq) >= 1.0
    assert 0 <= statistics.decode_s(seq) < 1.0
    assert all(value >= 0 for value in timings([seq]).values())


def test_merged_counts_equal_counting_everything_at_once() -> None:
    rounds = [a_round(4, 2, 0.1), a_round(0, 0, 0.05), a_round(3, 3, 0.2)]
    parts = [Counts(), Counts()]
    whole = Counts()
    for i, found in enumerate(rounds):
        parts[i % 2].observe(found)
        whole.observe(found)
    total = merged(parts)
    assert total.as_dict() == whole.as_dict()
    assert total.fallback_s == whole.fallback_s
    assert total.generated_beside == whole.generated_beside


def test_a_speedup_is_against_what_plain_passes_took() -> None:
    baseline = PlainSpeed()
    assert baseline.live_speedup is None
    baseline.observe([a_round(0, 0, 0.010)])
    counts = Counts()
    counts.observe(a_round(3, 3, 0.020))  # four tokens in the time of two
    assert baseline.speedup(counts) == pytest.approx(2.0)
    for _ in range(400):
        baseline.observe([a_round(3, 3, 0.020)])
    assert baseline.live_speedup == pytest.approx(2.0, rel=0.01)


def test_one_slow_pass_does_not_spoil_the_baseline() -> None:
    baseline = PlainSpeed()
    for _ in range(100):
        baseline.observe([a_round(0, 0, 0.010)])
    baseline.observe([a_round(0, 0, 10.0)])
    assert baseline.of(1) == pytest.approx(0.010, rel=0.15)


def test_a_plain_round_that_waits_in_the_shape_of_drafts_is_no_measure_of_plain_ones() -> None:
    baseline = PlainSpeed()
    baseline.observe([a_round(0, 0, 0.010)])
    baseline.observe([replace(a_round(0, 0, 0.015), n_pass_rows=17, n_padding=16, reason=WAITS)])
    assert baseline.of(1) == pytest.approx(0.010)


def test_the_nearest_number_of_sequences_stands_in() -> None:
    baseline = PlainSpeed()
    baseline.set(1, 0.01)
    baseline.set(4, 0.02)
    assert baseline.of(5) == 0.02 and baseline.of(2) == 0.01


def test_a_shared_pass_is_timed_once() -> None:
    observer = Observer()
    observer.observe([a_round(0, 0, 0.5, n_sequences=2), a_round(0, 0, 0.5, n_sequences=2)])
    assert observer.verify_s == 0.5
    assert observer.counts.n_rounds == observer.recent_counts().n_rounds == 2

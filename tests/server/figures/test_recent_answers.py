"""The recent: figures by route and model, the last requests, and bounds on all of it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import cast

import pytest

from parlay.backend.answering import Making
from parlay.backend.plain_speed import PlainSpeed
from parlay.decoding.counts import Counts
from parlay.decoding.round import Fallback, Round, Timing
from parlay.server.figures.recent_answers import (
    MAX_GROUPS,
    MAX_KEPT_ROUNDS,
    MAX_REQUESTS,
    RECENT_ROUNDS,
    Key,
    RecentAnswers,
    decisions,
    figures,
)
from parlay.server.figures.snapshot import moment


def a_round(n_drafted: int = 0, n_accepted: int = 0, **more: object) -> Round:
    fields: dict[str, object] = {
        "seq_id": 0,
        "proposer": "suffix" if n_drafted else "none",
        "window": n_drafted,
        "n_drafted": n_drafted,
        "n_accepted": n_accepted,
        "n_generated": n_accepted + 1,
        "confidence": (),
        "n_rows": n_drafted + 1,
        "n_sequences": 1,
        "n_pass_rows": n_drafted + 1,
        "n_context": 10,
        "timing": Timing(0.001, 0.008, 0.001),
        "fallback": None if n_drafted else Fallback.NO_DRAFT,
    }
    return Round(**(fields | more))  # type: ignore[arg-type]


class FakeSequence:
    """As much of a sequence as the recent looks at."""

    def __init__(self, kept: int = 1024) -> None:
        self.rounds: deque[Round] = deque(maxlen=kept)
        self.counts = Counts()
        self.counts.n_rounds = 1  # the prompt's token

    def add(self, *rounds: Round) -> None:
        for found in rounds:
            self.rounds.append(found)
            self.counts.observe(found)


class FakeJob:
    def __init__(self, n: int = 1, kept: int = 1024) -> None:
        self.sequences = [FakeSequence(kept) for _ in range(n)]


def a_job(n: int = 1, kept: int = 1024) -> tuple[FakeJob, Making]:
    made = FakeJob(n, kept)
    return made, cast(Making, made)


BASELINE = PlainSpeed()
BASELINE.set(1, 0.010)
CHAT = Key("chat", "a")


def test_rounds_are_taken_in_once_while_a_request_runs_and_when_it_ends() -> None:
    recent = RecentAnswers()
    fake, job = a_job()
    recent.begin(job, CHAT)
    fake.sequences[0].add(a_round(2, 1))
    recent.take_in()
    recent.take_in()
    fake.sequences[0].add(a_round(), a_round(3, 3))
    recent.finish(job, "r1", {})
    group = recent.groups[CHAT]
    assert [r.n_drafted for r in group.rounds] == [2, 0, 3]
    assert group.n_generated == recent.total.n_generated == 2 + 1 + 4
    assert (group.n_requests, recent.n_answered) == (1, 1)


def test_an_answer_longer_than_what_its_sequence_keeps_loses_old_rounds_only() -> None:
    recent = RecentAnswers()
    fake, job = a_job(kept=4)
    recent.begin(job, CHAT)
    fake.sequences[0].add(*[a_round(1, 1, seq_id=i) for i in range(3)])
    recent.take_in()
    fake.sequences[0].add(*[a_round(1, 1, seq_id=i) for i in range(3, 6)])
    recent.take_in()
    assert [r.seq_id for r in recent.total.rounds] == [0, 1, 2, 3, 4, 5]
    fake.sequences[0].add(*[a_round(1, 1, seq_id=i) for i in range(6, 20)])
    recent.finish(job, "r1", {})
    assert [r.seq_id for r in recent.total.rounds][-4:] == [16, 17, 18, 19]


def test_groups_requests_and_kept_rounds_are_bounded() -> None:
    recent = RecentAnswers()
    for i in range(MAX_GROUPS + MAX_REQUESTS):
        fake, job = a_job()
        recent.begin(job, Key(f"route {i}", "a"))
        fake.sequences[0].add(*[a_round()] * 400)
        recent.finish(job, f"r{i}", {})
    assert len(recent.groups) == MAX_GROUPS
    assert len(recent.answered) == MAX_REQUESTS
    assert len(recent.total.rounds) == RECENT_ROUNDS
    kept = [answered for answered in recent.answered if answered.rounds is not None]
    assert 0 < sum(answered.n_rounds for answered in kept) <= MAX_KEPT_ROUNDS
    assert kept == recent.answered[: len(kept)], "the oldest lose their rounds first"
    assert recent.find("r0") is None


def test_a_request_that_was_never_begun_is_not_counted() -> None:
    recent = RecentAnswers()
    recent.finish(a_job()[1], "r1", {})
    assert recent.n_answered == 0 and recent.answered == []


def test_the_speedup_is_against_plain_passes_and_unknown_without_a_draft() -> None:
    rounds = [a_round(3, 3), a_round()]  # five tokens in 20 ms, plain: 50 ms
    assert figures(rounds, BASELINE)["speedup"] == pytest.approx(2.5)
    assert figures([a_round()] * 3, BASELINE)["speedup"] is None


def test_sequences_of_one_pass_share_its_time() -> None:
    beside = [a_round(1, 1, n_sequences=2, seq_id=i) for i in range(2)]
    now = moment(beside, 2.0, BASELINE)
    assert now["verify_ms"] == pytest.approx(8.0)
    assert now["tokens_per_s"] == 2.0


def test_a_moment_without_rounds_tells_nothing() -> None:
    now = moment([], 1.0, BASELINE)
    assert now["tokens_per_s"] == 0 and now["rounds"] == 0
    assert now["window"] is now["speedup"] is now["token_acceptance"] is None


def test_a_trace_tells_where_each_round_began_and_what_it_was_worth() -> None:
    later = a_round(2, 2, expected_gain=1.4, reason="profit")
    rounds = [replace(a_round(), position=1), replace(later, position=2)]
    first, second = decisions(rounds, BASELINE)
    assert (first.position, second.position) == (1, 2)
    assert (first.reason, second.reason) == ("no_draft", "profit")
    assert second.time_s == pytest.approx(0.010)
    assert second.actual_gain == pytest.approx(3.0) and second.expected_gain == 1.4

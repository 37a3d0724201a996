from __future__ import annotations

import json

from parlay.control.profit import ProfitController
from parlay.control.trace import Traced
from parlay.decoding.round import Fallback
from parlay.replay.recording import mixed_workload
from parlay.replay.replay import Replay
from tests.control.synthetic import draft, finished, table, view


def plain_seconds(_n_context: int, _n_sequences: int) -> float:
    return 1.0


def test_a_round_is_one_line_with_what_was_expected_and_what_came() -> None:
    lines: list[str] = []
    traced = Traced(ProfitController(table(0.05)), plain_seconds, lines.append)
    (choice,) = traced.choose([view({"ngram": draft("ngram", *(0.97,) * 8)})])
    k = choice.window
    traced.observe([finished("ngram", k, k, seconds=1.25)])
    found = json.loads(lines[0])
    assert found["window"] == found["drafted"] == found["accepted"] == k
    assert found["actual_gain"] == round((k + 1) / 1.25, 3)
    assert found["expected_gain"] > 1
    assert found["reason"] == "profit" and found["proposer"] == "ngram"
    assert found["time_s"] == 0.0 and found["round_ms"] == 1250.0


def test_a_fallback_says_why() -> None:
    traced = Traced(ProfitController(table()))
    traced.choose([view(fallback=Fallback.GRAMMAR)])
    traced.observe([finished(fallback=Fallback.GRAMMAR)])
    assert traced.decisions[0].reason == "grammar"
    assert traced.decisions[0].actual_gain is None


def test_the_trace_is_bounded_and_its_clock_goes_on() -> None:
    traced = Traced(ProfitController(table()), plain_seconds, kept=10)
    recordings = mixed_workload()[:1]
    Replay(recordings, ("ngram", "suffix")).run(traced, table())
    assert len(traced.decisions) == 10
    times = [d.time_s for d in traced.decisions]
    assert times == sorted(times) and times[0] > 0


def test_tracing_changes_nothing() -> None:
    recordings = mixed_workload()[:3]
    replay = Replay(recordings, ("ngram", "suffix", "model"))
    bare = replay.run(ProfitController(table(0.1, 0.05)), table(0.1, 0.05))
    traced = replay.run(Traced(ProfitController(table(0.1, 0.05))), table(0.1, 0.05))
    assert bare == traced

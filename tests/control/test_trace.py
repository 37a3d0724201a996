from __future__ import annotations

import json
from dataclasses import replace

from parlay.control.trace import Trace
from parlay.decoding.round import Fallback
from tests.control.synthetic import finished


def plain_seconds(_n_context: int, _n_sequences: int) -> float:
    return 1.0


def test_a_round_is_one_line_with_what_was_expected_and_what_came() -> None:
    lines: list[str] = []
    trace = Trace(plain_seconds, lines.append)
    k = 8
    made = finished("ngram", k, k, seconds=1.25)
    trace.observe([replace(made, expected_gain=1.5, reason="")])
    found = json.loads(lines[0])
    assert found["window"] == found["drafted"] == found["accepted"] == k
    assert found["actual_gain"] == round((k + 1) / 1.25, 3)
    assert found["expected_gain"] == 1.5
    assert found["proposer"] == "ngram"
    assert found["time_s"] == 0.0 and found["round_ms"] == 1250.0


def test_a_fallback_says_why() -> None:
    trace = Trace()
    trace.observe([finished(fallback=Fallback.GRAMMAR)])
    assert trace.decisions[0].reason == "grammar"
    assert trace.decisions[0].actual_gain is None


def test_the_trace_is_bounded_and_its_clock_goes_on() -> None:
    trace = Trace(plain_seconds, kept=10)
    for _ in range(20):
        trace.observe([finished("ngram", 2, 2)])
    assert len(trace.decisions) == 10
    times = [d.time_s for d in trace.decisions]
    assert times == sorted(times) and times[0] > 0

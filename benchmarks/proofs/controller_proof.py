"""The proof by replay: 60 recorded answers under every shipped cost table, no model needed.

  python -m benchmarks.proofs.controller_proof      its arguments are pytest's: -k prices, -x

`kept`: one controller answers all of them in turn and keeps what it learns, as a running engine
does. `fresh`: it starts anew with every answer, the hardest case. Figures:
docs/explanation/controller.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.profit import ProfitController
from parlay.replay.contest import Contest, compare, controller_named
from parlay.replay.hindsight import best_fixed, oracle_seconds, plain_seconds
from parlay.replay.informed import seconds_when_known
from parlay.replay.recording import Recording, mixed_workload
from parlay.replay.replay import Replay
from tests.control.synthetic import dead, joined

FREE = ("ngram", "suffix")
CLOSE = (*FREE, "model")  # a drafter that is nearly the target
REAL = (*FREE, "pruned")  # one that is right about as often as real drafters are
SETS = (FREE, CLOSE, REAL)
SHARES = (0.03, 0.1, 0.3)  # of a plain pass, for one token of the drafter
SOME = ("cpu-q4_0", "cpu-q4_1-other", "gpu-27b-q5_0", "gpu-8b-q5_0", "public-27b-24gb")
# In a shorter answer a few lost passes are a large share.
LONG_ENOUGH = 100


def some_tables() -> list[CostTable]:
    return [costs for costs in shipped_tables() if costs.name in SOME]


@cache
def kept() -> list[Contest]:
    """Every cost table and set of proposers; some tables also with drafters of other prices."""
    make = controller_named("profit", "model")
    found = [compare(mixed_workload(), costs, s, make) for s in SETS for costs in shipped_tables()]
    priced = [costs.with_drafter(share) for costs in some_tables()[::2] for share in SHARES]
    found += [compare(mixed_workload(), costs, REAL, make) for costs in priced]
    return found


def seconds_of(
    recordings: Sequence[Recording], costs: CostTable, proposers: tuple[str, ...], fresh: bool
) -> list[float]:
    if fresh:
        return [seconds_of([r], costs, proposers, fresh=False)[0] for r in recordings]
    outcomes = Replay(recordings, proposers).run(ProfitController(costs.copy()), costs)
    return [outcome.seconds for outcome in outcomes]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- close to hindsight -------------------------------------------------------


def test_on_average_97_percent_of_the_best_fixed_window_of_each_recording() -> None:
    """The best of three proposers and eleven windows, chosen per recording after the fact."""
    assert mean([found.mean_over("best_fixed_s") for found in kept()]) >= 0.97


def test_no_table_is_left_behind() -> None:
    assert min(found.mean_over("best_fixed_s") for found in kept()) >= 0.84


def test_as_good_as_one_fixed_window_for_the_whole_workload() -> None:
    ratios = [found.best_s / found.total("seconds") for found in kept()]
    assert mean(ratios) >= 1.04
    assert min(ratios) >= 0.89


@pytest.mark.parametrize("proposers", SETS)
def test_the_oracle_is_out_of_reach_and_how_much_of_the_rest_is_reached(
    proposers: tuple[str, ...],
) -> None:
    """The oracle knows which token is wrong; a controller knows how likely that is.

    Even one that has read the same text three times before, and may lose what it likes, stays well
    below 0.90 of the oracle. The controller reaches at least 0.92 of what that one does.
    """
    reached, informed = [], []
    recordings = mixed_workload()[::2]
    for costs in some_tables():
        for recording, taken in zip(
            recordings, seconds_of(recordings, costs, proposers, fresh=False), strict=True
        ):
            oracle = oracle_seconds(recording, costs, proposers)
            reached.append(oracle / taken)
            informed.append(oracle / seconds_when_known(recording, costs, proposers))
    assert mean(informed) < 0.90
    assert mean(reached) > 0.92 * mean(informed)


# -- never lose ---------------------------------------------------------------


def test_no_workload_is_slower_than_plain() -> None:
    for found in kept():
        assert found.total("plain_s") >= found.total("seconds"), found.costs


def test_no_long_answer_is_slower_than_plain_by_more_than_6_percent() -> None:
    """A proposer that has won may lose a part of that in one answer: more than 2 % of it."""
    for found in kept():
        for r in found.recordings:
            if r.n_tokens >= LONG_ENOUGH:
                assert r.plain_s / r.seconds >= 0.94, (found.costs, r.id)


def test_few_answers_are_slower_than_plain_by_more_than_2_percent() -> None:
    slower = [r.plain_s / r.seconds < 0.98 for found in kept() for r in found.recordings]
    assert mean(slower) < 0.02


def test_a_short_answer_loses_ten_plain_passes_at_most() -> None:
    for found in kept():
        for r in found.recordings:
            assert r.seconds - r.plain_s <= 10.0 * r.plain_s / r.n_tokens


@pytest.mark.parametrize("proposers", SETS)
def test_from_nothing_hardly_any_recording_is_slower_by_more_than_2_percent(
    proposers: tuple[str, ...],
) -> None:
    """A text may show a proposer to be right and then mislead it: one bet, and no more."""
    ratios = []
    for costs in shipped_tables():
        found = seconds_of(mixed_workload(), costs, proposers, fresh=True)
        ratios += [
            plain_seconds(r, costs) / s for r, s in zip(mixed_workload(), found, strict=True)
        ]
    assert mean([ratio < 0.98 for ratio in ratios]) < 0.0125
    assert min(ratios) >= 0.96


def ten_times_slower(costs: CostTable) -> CostTable:
    assert costs.drafter is not None
    return costs.with_drafter(10 * costs.drafter.step_s() / costs.curve(1, 1).steady[1])


def as_it_is(costs: CostTable) -> CostTable:
    return costs


WORST: dict[str, tuple[tuple[str, ...], list[str], float | None, Callable[..., CostTable]]] = {
    "a drafter that is never right": (("model",), ["model"], None, as_it_is),
    "such a drafter beside others": (CLOSE, ["model"], None, as_it_is),
    "a drafter ten times too slow": (("model",), [], None, ten_times_slower),
    "such a drafter beside others, too": (CLOSE, [], None, ten_times_slower),
    "a proposer that is sure and wrong": (("ngram",), ["ngram"], 0.97, as_it_is),
    "all proposers sure and wrong": (CLOSE, list(CLOSE), 0.97, as_it_is),
}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("case", WORST)
def test_the_worst_proposers_cost_2_percent_at_most(case: str, fresh: bool) -> None:
    proposers, useless, confidence, price = WORST[case]
    recordings = [dead(r, *useless, confidence=confidence) for r in mixed_workload()[:24]]
    for costs in map(price, some_tables()):
        taken = seconds_of(recordings, costs, proposers, fresh)
        plain = [plain_seconds(r, costs) for r in recordings]
        assert sum(plain) / sum(taken) >= 0.98, costs.name
        for recording, with_bets, without in zip(recordings, taken, plain, strict=True):
            if recording.n_tokens >= LONG_ENOUGH or fresh:
                assert without / with_bets >= (0.98 if fresh else 0.95), (costs.name, recording.id)


# -- a text that changes ------------------------------------------------------

COPYING = ("code-editing-03", "summary-06", "agent-02", "extraction-03", "multi-turn-03")
PROSE = ("chat-01", "chat-02", "reasoning-01", "chat-05", "summary-03")
CODE = ("code-01", "code-02", "code-04", "code-05", "code-06")


@pytest.mark.parametrize("proposers", SETS)
def test_after_a_switch_of_the_text_less_than_5_percent_is_lost_to_hindsight(
    proposers: tuple[str, ...],
) -> None:
    """Copying, then prose, then code: against the best window for each part, known beforehand."""
    known = {r.id: r for r in mixed_workload()}
    streams = [[known[i] for i in ids] for ids in zip(COPYING, PROSE, CODE, strict=True)]
    whole, by_part = [], []
    for costs in some_tables():
        controller = ProfitController(costs.copy())
        Replay(mixed_workload(), proposers).run(controller, costs)
        kept_state = controller.to_dict()
        for parts in streams:
            stream = joined(parts)
            made = ProfitController(costs.copy(), kept_state)
            taken = Replay([stream], proposers).run(made, costs)[0].seconds
            whole.append(best_fixed([stream], costs, proposers)[2] / taken)
            by_part.append(sum(best_fixed([p], costs, proposers)[2] for p in parts) / taken)
    assert mean(whole) >= 1.0
    assert mean(by_part) >= 0.95


# -- several at a time --------------------------------------------------------


@pytest.mark.parametrize("n_slots", [2, 4, 8, 16])
def test_several_sequences_together_are_not_slower_than_plain_nor_than_fixed_windows(
    n_slots: int,
) -> None:
    """With the prices of many sequences, passes cut and padded as in the runtime."""
    (costs,) = (c for c in shipped_tables() if c.name == "gpu-8b-q5_0-streams")
    replay = Replay(mixed_workload(), REAL)
    taken = replay.run_together(ProfitController(costs.copy()), costs, n_slots).seconds
    plain = replay.run_together(controller_named("none", "")(costs), costs, n_slots).seconds
    assert plain / taken >= 0.985
    for k in (1, 3, 5, 8):
        fixed = controller_named(f"fixed-{k}", "suffix")(costs)
        assert replay.run_together(fixed, costs, n_slots).seconds / taken > 0.9


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))

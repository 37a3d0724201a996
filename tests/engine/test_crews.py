"""Crews in the runtime: exact passes keep their bits, prices follow, answers do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parlay import Parlay
from parlay.control.crew import Crew
from parlay.control.crew_choice import CrewChoice, OtherLoad
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.decoding.round import Round, Timing
from parlay.decoding.span import Span
from parlay.engine import worker
from parlay.engine.crews import Crews
from parlay.engine.exact.exactness import Inexact
from parlay.engine.exact.thread_bits import ThreadBits
from parlay.engine.request import Request
from parlay.llama.threads import Threads, can_sleep
from tests.engine.rig import Rig
from tests.serving import wait_for

TWO, ONE = Crew(2), Crew(1)
SPAN = [Span(0, 10, [1], 1)]


class Bits:
    """Numbers of threads that were tried, and whether they held."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self.tried: set[int] = {2}

    def known(self, n: int, _spans: Sequence[Span]) -> bool:
        return n == 2 or (n in self.tried and self._holds)

    def same(self, n: int, spans: Sequence[Span]) -> bool:
        self.tried.add(n)
        return self.known(n, spans)


def made(
    *, holds: bool, prices: CostTable | None = None, load: float = 0.0
) -> tuple[Crews, Threads]:
    threads, choice = Threads(2), CrewChoice([TWO, ONE], lambda: OtherLoad(load, 0.25))
    crews = Crews(threads, choice, cast(ThreadBits, Bits(holds=holds)), lambda: prices)
    return crews, threads


def take_one(crews: Crews) -> None:
    crews.choice._take(ONE)


def test_an_exact_pass_is_made_by_other_threads_only_where_bits_agree() -> None:
    crews, threads = made(holds=True)
    take_one(crews)
    assert crews.ready(SPAN, True) is None
    assert threads.n == 1


def test_where_bits_differ_the_rule_makes_exact_passes() -> None:
    crews, threads = made(holds=False)
    take_one(crews)
    assert crews.ready(SPAN, True) is None
    assert threads.n == 2
    assert crews.choice.chosen == TWO


def test_a_faithful_pass_tries_nothing_and_says_that_it_is_not_exact() -> None:
    crews, threads = made(holds=True)
    take_one(crews)
    assert crews.ready(SPAN, False) is Inexact.THREADS
    assert threads.n == 1


def test_bits_are_compared_by_the_threads_of_the_rule_asleep_where_cores_are_taken() -> None:
    crews, threads = made(holds=True)
    with crews.comparing():
        assert (threads.n, threads._idle_team) == (2, None)
    take_one(crews)
    crews.ready(SPAN, False)
    with crews.comparing():
        assert threads.n == 2
        assert (threads._idle_team is not None) == can_sleep()
    assert (threads.n, threads._idle_team) == (1, None)


def test_an_answer_whose_passes_other_threads_made_is_not_called_exact() -> None:
    rig = Rig()
    rig.scheduler._before_pass = lambda _spans, _exact: Inexact.THREADS
    (seq,) = rig.run(Request((1, 2, 3), max_tokens=4))
    assert seq.inexact is Inexact.THREADS
    assert seq.n_firm == 0


def test_a_prompt_is_read_by_the_chosen_crew_never_by_one_that_races() -> None:
    crews, threads = made(holds=True, load=1.0)
    while crews.choice.now != TWO or not crews.choice.racing:
        crews.observe([_round(0.01)])
        crews.ready(SPAN, False)
    crews.ready([Span(0, 64, [1] * 8, 1)], False)
    assert threads.n == crews.choice.chosen.threads == 1


def test_a_text_that_begins_behind_a_cached_prompt_looks_around() -> None:
    crews, threads = made(holds=True, load=2.0)
    for _ in range(2):
        crews.ready([Span(0, 64, [1] * 8, 1)], False)
    assert threads.n == 1


def test_a_load_that_came_while_there_was_nothing_to_do_is_known_at_the_first_pass() -> None:
    crews, threads = made(holds=True, load=2.0)
    for _ in range(2):
        crews.rest()
    crews.ready(SPAN, False)
    assert threads.n == 1


def _round(seconds: float, **others: Any) -> Round:
    fields = dict.fromkeys(("seq_id", "window", "n_drafted", "n_accepted"), 0)
    known: dict[str, Any] = {"n_generated": 1, "n_rows": 1, "n_sequences": 1, "n_pass_rows": 1}
    timing = Timing(verify_s=seconds)
    return cast(
        Round,
        SimpleNamespace(
            **fields, **known, n_context=9, reads_prompt=False, timing=timing, **others
        ),
    )


def run_until(crews: Crews, seconds: dict[Crew, float], there: Callable[[], bool]) -> None:
    while not there():
        crews.ready(SPAN, False)
        crews.observe([_round(seconds[crews.choice.now])])


def test_prices_follow_a_change_of_crew_at_once_and_a_race_leaves_none_behind() -> None:
    prices = CostTable({(1, 1): Curve({1: 0.01}, {})})
    crews, _ = made(holds=True, prices=prices, load=1.0)
    choice, seconds = crews.choice, {TWO: 0.010, ONE: 0.017}
    choice.recall({"winners": [[1, 2, False]]})
    run_until(crews, seconds, lambda: choice.over(ONE) > 1.5 and choice.now == TWO)
    run_until(crews, seconds, lambda: choice.now == ONE)
    assert prices.pace > 1.5  # of the passes in the race that come now
    run_until(crews, seconds, lambda: not choice.racing)
    assert prices.pace == pytest.approx(1.0)
    loaded = {TWO: 0.034, ONE: 0.017}  # another core is taken
    run_until(crews, loaded, lambda: choice.chosen == ONE)
    assert prices.pace == pytest.approx(0.5, rel=0.01)  # of what it was under the same load


def test_a_change_of_crew_leaves_drafts_as_dear_over_passes_as_they_were() -> None:
    """Drafters share the target's threads, so that both change alike."""
    cost, other = (DrafterCost(Curve({1: 0.001}, {}), False) for _ in range(2))
    prices = CostTable({(1, 1): Curve({1: 0.01}, {})}, cost)
    prices.drafters = {"other": other}
    crews, _ = made(holds=True, prices=prices, load=1.0)
    run_until(crews, {TWO: 0.010, ONE: 0.005}, lambda: prices.pace != 1.0)
    assert (cost.pace, other.pace) == (1.0, 1.0)


def test_real_answers_are_the_same_with_every_crew(tiny_llama: Path) -> None:
    texts = []
    with Parlay(tiny_llama, draft="suffix", mode="exact", context_size=512) as parlay:
        crews = parlay.engine.crews
        candidates = [Crew(2), Crew(1), Crew(2, sleeps=True)]
        for crew in candidates if crews.choice.rule == TWO else [crews.choice.rule]:
            crews.choice = choice = CrewChoice(candidates)
            choice._take(crew)
            answer = parlay.generate("one two three one two three", max_tokens=40)
            assert answer.exact
            texts.append(answer.text)
    assert len(set(texts)) == 1


def test_without_following_the_rule_stays(tiny_llama: Path) -> None:
    with Parlay(tiny_llama, draft="none", context_size=128, follow_load=False) as parlay:
        parlay.generate("one", max_tokens=8)
        assert parlay.engine.crews.choice.now == parlay.engine.crews.choice.rule


def test_an_engine_without_work_keeps_an_eye_on_the_machine(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_QUIET_S", "_REST_S"):
        monkeypatch.setattr(worker, name, 0.001)
    with Parlay(tiny_llama, draft="none", context_size=128) as parlay:
        parlay.engine.crews.choice = choice = CrewChoice([TWO, ONE], lambda: OtherLoad(1.0, 0.5))
        wait_for(lambda: choice.chosen == ONE)


def test_what_was_found_of_a_crew_is_known_at_the_next_start(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    told = {"winners": [[1, 1, False], [2, 1, False]], "same": [[1, 1, 1, 0, True]]}
    found = []
    for learns in (True, False):
        with Parlay(tiny_llama, draft="none", context_size=128) as parlay:
            crews = parlay.engine.crews
            if crews.choice.rule != TWO:
                pytest.skip("two cores are needed")
            if learns:
                crews.recall(told)
            found.append(crews.to_dict())
    assert found == [told, told]

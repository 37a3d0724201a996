"""Which prompts share a step: the oldest goes on, first tokens come early, nobody waits long."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from parlay.control.prices.cutting import Cutting
from parlay.engine.exact.shapes import Composition
from parlay.engine.plan import PROMPTS_A_ROUND, Planner
from parlay.engine.slots import Slots
from tests.engine.rig import ALL_EXACT, LOGITS, N_VOCAB
from tests.scripted import ScriptedModel

Reading = Callable[[int], Planner]  # by the tokens of a prompt that are known to be read quickly


def reading(*, chunk: int, n_batch: int, n_call: int, on_gpu: bool) -> Reading:
    def made(widest: int) -> Planner:
        target = ScriptedModel(LOGITS, N_VOCAB)
        target.steady = on_gpu
        slots = Slots(target, 1)
        slots.copying.saw_reading(1000, 1e-6)
        return Planner(
            target,
            slots,
            Composition(ALL_EXACT, 128),
            Cutting(),
            mode="exact",
            chunk=chunk,
            n_batch=n_batch,
            n_call=n_call,
            widest_chunk=widest,
        )

    return made


CPU = reading(chunk=128, n_batch=512, n_call=512, on_gpu=False)
GPU = reading(chunk=512, n_batch=512, n_call=2048, on_gpu=True)
WIDE = reading(chunk=512, n_batch=1024, n_call=2048, on_gpu=True)


def passes(
    prompts: Reading, left: list[int], n_decoding: int, *, exact: bool = False, n_beside: int = 0
) -> Any:
    """By the tokens that are left of each."""
    asked = SimpleNamespace(mode="exact" if exact else "faithful")
    answers: Any = [SimpleNamespace(n_pending=n, request=asked) for n in left]
    answers += [
        SimpleNamespace(n_pending=1, request=asked, seq_id=i, n_cached=9) for i in range(n_decoding)
    ]
    found = prompts(n_beside).groups(answers)
    return [each for p in found if (each := [s.n_pending for s in p if s.n_pending > 1])]


@pytest.mark.parametrize("prompts", [CPU, GPU, WIDE])
@pytest.mark.parametrize("exact", [True, False])
def test_nobody_reads_nothing(prompts: Reading, exact: bool) -> None:
    assert passes(prompts, [], 3, exact=exact) == []


def test_on_a_gpu_as_many_as_give_first_tokens_are_read_in_one_call_whoever_decodes() -> None:
    assert passes(GPU, [400] * 15, 1) == [[400] * 4]
    assert passes(GPU, [400] * 3, 13) == [[400] * 3]


def test_short_prompts_share_a_pass_and_a_call_holds_those_that_fill_one() -> None:
    assert passes(GPU, [400, 450, 200, 300, 10, 500], 2) == [[400, 450, 500], [200, 300, 10]]
    assert passes(GPU, [100, 100, 100], 2) == [[100, 100, 100]]


def test_in_wide_passes_no_more_tokens_are_read_between_two_rounds() -> None:
    assert passes(WIDE, [400] * 15, 1) == [[400] * 2] * 2
    assert passes(WIDE, [400] * 15, 0) == [[400] * 2] * 2
    assert passes(WIDE, [900] * 3, 0) == [[900] * 2]  # alone in their passes: one call
    assert passes(WIDE, [900] * 3, 1) == [[900]] * 2  # the oldest, in two chunks


def test_on_a_cpu_those_who_decode_wait_for_one_pass_unless_more_wait_for_their_first_token() -> (
    None
):
    assert passes(CPU, [100, 450, 120], 3) == [[100, 120]]
    assert passes(CPU, [450, 100], 3) == [[450]]
    assert passes(CPU, [450, 100, 100], 1) == [[450], [100, 100], [450]]
    assert passes(CPU, [450] * 8, 1) == [[450]] * 4  # the same one: its first token comes first
    assert passes(CPU, [130] * 8, 1) == [[130]] * 2


def test_a_long_prompt_goes_on_beside_those_that_end_and_they_do_not_wait_for_it() -> None:
    assert passes(GPU, [9000, 400, 400], 0) == [[9000, 400, 400]]
    assert passes(GPU, [400, 9000, 400], 0) == [[400, 400]]
    assert passes(GPU, [9000, 9000, 9000], 1) == [[9000]] * 3
    assert passes(GPU, [9000], 1) == [[9000]]


def test_wider_parts_of_a_long_prompt_are_no_more_tokens_between_two_rounds() -> None:
    assert passes(WIDE, [9000] * 3, 1, n_beside=1024) == [[9000]] * 2
    assert passes(WIDE, [9000] * 2, 2, n_beside=1024) == [[9000]]
    assert passes(WIDE, [900, 900, 900], 1, n_beside=1024) == [[900] * 2]  # each ends in a pass
    assert passes(WIDE, [9000] * 3, 1, exact=True, n_beside=1024) == [[9000]] * 3


@pytest.mark.parametrize("prompts", [CPU, GPU, WIDE])
def test_exact_prompts_are_read_alone_and_in_chunks(prompts: Reading) -> None:
    assert passes(prompts, [100] * 6, 0, exact=True) == [[100]] * PROMPTS_A_ROUND
    assert passes(prompts, [600] * 2, 2, exact=True) == [[600]]
    assert passes(prompts, [600] * 2, 0, exact=True) == [[600]] * 2


@pytest.mark.parametrize("prompts", [CPU, GPU, WIDE])
@pytest.mark.parametrize("n_decoding", [0, 1, 5, 40])
@pytest.mark.parametrize("exact", [True, False])
def test_the_oldest_always_goes_on_within_four_passes(
    prompts: Reading, n_decoding: int, exact: bool
) -> None:
    for left in ([2000, 50, 500], [50, 2000], [500] * 9, [2000] * 9, [20] * 99):
        found = passes(prompts, left, n_decoding, exact=exact)
        assert left[0] in [n for each in found for n in each]
        assert len(found) <= PROMPTS_A_ROUND

"""Drafters that read the target's states: fed every state once and in order, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.control.choice import Choices, FixedWindow, View
from parlay.decoding.round import Fallback
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.decoding.states import States
from parlay.engine.request import Request
from parlay.engine.slots import PromptCache
from parlay.proposers.block import DFlashProposer
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Ask
from parlay.proposers.stepwise import ChainProposer, HeadProposer
from parlay.timing.measuring import measure_follower
from tests.engine.rig import LOGITS, N_VOCAB, Rig, plain
from tests.proposers.scripted_states import (
    MASK,
    BlockDrafter,
    CapturedTarget,
    ChainedDrafter,
    HeadDrafter,
)

PROMPT = (1, 2, 3, 4, 5)
BLOCK = 6
N_BATCH = 16
LIMITS = DraftLimits(frozenset(), N_VOCAB, N_BATCH)


@dataclass
class Following:
    """A rig whose target is followed by a drafter of states."""

    rig: Rig
    drafter: BlockDrafter | HeadDrafter
    proposer: Follower

    @property
    def target(self) -> CapturedTarget:
        assert isinstance(self.rig.target, CapturedTarget)
        return self.rig.target


def blocks() -> tuple[BlockDrafter, Follower]:
    drafter = BlockDrafter(LOGITS, N_VOCAB)
    return drafter, DFlashProposer(
        drafter,
        LIMITS,
        block_size=BLOCK,
        mask=MASK,
        name="model",
    )


def eagle() -> tuple[HeadDrafter, Follower]:
    drafter = HeadDrafter(LOGITS, N_VOCAB)
    return drafter, HeadProposer(drafter, LIMITS, lead=0, name="model")


def nextn() -> tuple[HeadDrafter, Follower]:
    drafter = HeadDrafter(LOGITS, N_VOCAB)
    return drafter, HeadProposer(drafter, LIMITS, lead=1, name="model")


def chain() -> tuple[HeadDrafter, Follower]:
    drafter = ChainedDrafter(LOGITS, N_VOCAB)
    return drafter, ChainProposer(drafter, LIMITS, name="model")


Make = Callable[[], tuple[BlockDrafter | HeadDrafter, Follower]]
KINDS: dict[str, Make] = {"dflash": blocks, "eagle3": eagle, "nextn": nextn, "chain": chain}


@pytest.fixture(params=sorted(KINDS))
def make(request: pytest.FixtureRequest) -> Make:
    return KINDS[request.param]


def following(make: Make, *, steady: bool = False, **options: object) -> Following:
    """`steady`: a device computes passes, and something can be done meanwhile."""
    drafter, proposer = make()
    target = CapturedTarget(LOGITS, N_VOCAB, int(str(options.get("context_size", 128))))
    target.listener = proposer.follow
    # As many rows at once as ever, but more than one pass of them: a device.
    rig = Rig(proposers={"model": proposer}, target=target, n_call=64 * steady, **options)  # type: ignore[arg-type]
    return Following(rig, drafter, proposer)


def test_a_drafter_that_saw_everything_is_always_right(make: Make) -> None:
    found = following(make, window=4)
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=40))
    assert found.rig.text(seq) == plain(Request(PROMPT, max_tokens=40))
    assert seq.counts.n_drafted > 25
    assert seq.counts.n_accepted == seq.counts.n_drafted


@settings(max_examples=40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    chunk=st.integers(1, 12),
    window=st.integers(1, 9),
    slots=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.9]),
    steady=st.booleans(),
)
def test_any_mix_of_requests_gives_plain_text_and_keeps_the_drafter_in_step(
    kind: str,
    lengths: list[int],
    chunk: int,
    window: int,
    slots: int,
    temperature: float,
    steady: bool,
) -> None:
    found = following(KINDS[kind], steady=steady, window=window, slots=slots, chunk=chunk)
    sampling = Sampling(temperature=temperature, seed=3)
    requests = [
        Request((*PROMPT[:3], *range(6, 6 + n % 7), 2), max_tokens=n, sampling=sampling)
        for n in lengths
    ]
    sequences = found.rig.run(*requests)
    for seq, request in zip(sequences, requests, strict=True):
        assert found.rig.text(seq) == plain(request)
        if temperature == 0.0:
            assert seq.counts.n_accepted == seq.counts.n_drafted
    # Where a new prompt leaves an old one, one pair keeps the old one's token.
    assert getattr(found.drafter, "n_stale", 0) <= len(requests)


def test_a_rejected_draft_leaves_nothing_behind(make: Make) -> None:
    found = following(make, window=4)
    found.drafter._logits = lambda text: LOGITS([*text, 7])  # wrong nearly always
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=12))
    assert seq.counts.n_accepted < seq.counts.n_drafted
    found.drafter._logits = LOGITS
    (again,) = found.rig.run(Request((*PROMPT, 9), max_tokens=20))
    assert again.counts.n_accepted == again.counts.n_drafted > 0


def test_a_reused_prefix_is_not_fed_again(make: Make) -> None:
    found = following(make, window=4)
    (first,) = found.rig.run(Request(PROMPT, max_tokens=10))
    found.drafter.passes.clear()
    turn = (*first.tokens[:-1], 8, 9)
    (second,) = found.rig.run(Request(tuple(turn), max_tokens=10))
    assert second.n_reused == len(turn) - 2
    assert max(max(sizes) for what, sizes in found.drafter.passes if what == "read") < 8
    assert second.counts.n_accepted == second.counts.n_drafted > 0


def test_a_conversation_that_comes_back_from_ram_is_not_taken_for_the_last_one(make: Make) -> None:
    found = following(make, window=4, mode="faithful")
    found.rig.slots.cache = PromptCache(1 << 20)
    ours, others = tuple(range(1, 25)), tuple(range(25, 1, -1))
    (first,) = found.rig.run(Request(ours, max_tokens=12, owner="me"))
    found.rig.run(Request(others, max_tokens=12, owner="you"))
    (again,) = found.rig.run(Request((*first.tokens, 3, 4, 5), max_tokens=12, owner="me"))
    assert again.n_reused > len(ours)
    known, text = found.drafter.cache[0], again.tokens
    assert known in [text[i : i + len(known)] for i in range(len(text))]


def test_a_prompt_longer_than_a_pass_is_fed_in_parts(make: Make) -> None:
    found = following(make, window=2, chunk=40)
    prompt = tuple(i % 29 for i in range(100))
    (seq,) = found.rig.run(Request(prompt, max_tokens=12))
    reads = [sum(sizes) for what, sizes in found.drafter.passes if what == "read"]
    assert max(reads) <= N_BATCH
    assert seq.counts.n_accepted == seq.counts.n_drafted > 0


def test_states_that_wait_are_few_even_if_nobody_asks_for_a_draft(make: Make) -> None:
    found = following(make, window=0)
    found.rig.run(Request(PROMPT, max_tokens=110))
    waiting = found.proposer._slots[0]
    assert len(waiting.tokens) <= 66
    assert sum(len(rows) for rows in waiting.states) == len(waiting.tokens)


def test_states_are_read_beside_passes_that_nobody_drafts_for(make: Make) -> None:
    found = following(make, steady=True, window=0)
    outside: list[int] = []
    follow = found.proposer.follow

    def listening(spans: Sequence[Span], states: Sequence[States]) -> None:
        n_before = len(found.drafter.passes)
        follow(spans, states)
        outside.append(len(found.drafter.passes) - n_before)

    found.target.listener = listening
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=60))
    assert not any(outside)
    assert len(found.proposer._slots[0].tokens) <= 17
    (again,) = found.rig.run(Request((*seq.tokens[:-1], 7), max_tokens=20, window=4))
    assert again.n_reused == len(seq.tokens) - 1
    assert again.counts.n_accepted == again.counts.n_drafted > 0


class Seeing(FixedWindow):
    """Keeps what it is told of the tokens that a drafter lacks."""

    def __init__(self) -> None:
        super().__init__(0)
        self.unread: list[int] = []

    def choose(self, views: Sequence[View]) -> Choices:
        self.unread += [view.unread["model"] for view in views]
        return super().choose(views)


@pytest.mark.parametrize(("steady", "most"), [(True, 16), (False, 65)])
def test_a_controller_is_told_what_a_drafter_has_read_by_itself(
    make: Make, steady: bool, most: int
) -> None:
    controller = Seeing()
    found = following(make, steady=steady, controller=controller)
    found.rig.run(Request(PROMPT, max_tokens=100))
    assert max(controller.unread) == 1 + most


def test_a_failure_beside_a_pass_costs_no_answer_and_starts_over(make: Make) -> None:
    found = following(make, steady=True, window=0)
    found.drafter.fail_next = 1
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=60))
    assert (seq.finish_reason, found.drafter.fail_next) == ("length", 0)
    (again,) = found.rig.run(Request((*PROMPT, 9), max_tokens=20, window=4))
    assert again.counts.n_drafted > 0
    assert found.rig.text(again) == plain(Request((*PROMPT, 9), max_tokens=20))


def test_a_drafter_that_comes_late_drafts_from_what_it_saw(make: Make) -> None:
    found = following(make, window=4)
    listener, found.target.listener = found.target.listener, None
    found.rig.run(Request(PROMPT, max_tokens=10))
    found.target.listener = listener
    tokens = list(found.target.cache[0])
    (seq,) = found.rig.run(Request((*tokens, 3, 4, 5), max_tokens=20))
    assert seq.n_reused == len(tokens)
    # Three tokens are all it needs here; a head's first pair hides one more from it.
    assert seq.counts.n_accepted >= seq.counts.n_drafted - 4 > 8


def test_a_cancelled_answer_does_not_disturb_the_next_one(make: Make) -> None:
    found = following(make, window=4)
    seq = found.rig.add(Request(PROMPT, max_tokens=60))
    for _ in range(5):
        found.rig.loop.step()
    seq.cancelled = True
    (after,) = found.rig.run(Request((*PROMPT[:3], 11, 12), max_tokens=20))
    assert after.counts.n_accepted == after.counts.n_drafted > 0


@pytest.mark.parametrize("can_shift", [True, False])
def test_sliding_keeps_the_text_and_the_drafter_goes_on(make: Make, can_shift: bool) -> None:
    found = following(make, window=4, context_size=48)
    found.drafter.context_size = 48
    found.drafter.can_shift = can_shift
    request = Request(PROMPT, max_tokens=90, context_full="slide")
    (seq,) = found.rig.run(request)
    assert found.rig.text(seq) == plain(request, context_size=48)
    assert seq.counts.n_drafted > 40


def test_a_failing_drafter_costs_no_answer_and_starts_over(make: Make) -> None:
    found = following(make, window=4)
    found.rig.run(Request(PROMPT, max_tokens=10))
    found.drafter.fail_next = 1
    (seq,) = found.rig.run(Request((*PROMPT, 9), max_tokens=20))
    assert found.rig.text(seq) == plain(Request((*PROMPT, 9), max_tokens=20))
    assert seq.counts.fallbacks[Fallback.DRAFT_ERROR] == 1
    assert seq.counts.n_drafted > 0


def test_a_failure_while_following_is_not_the_targets(make: Make) -> None:
    found = following(make, window=0, chunk=8)
    found.drafter.fail_next = 1
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=100))
    assert seq.finish_reason == "length"
    assert found.drafter.fail_next == 0


def test_nothing_is_drafted_where_the_target_was_not_followed(make: Make) -> None:
    _, proposer = make()
    (draft,) = proposer.draft([Ask(0, [1, 2, 3], 4)])
    assert draft.tokens == ()
    assert draft.proposer == "model"


def test_confidences_come_only_where_they_are_asked_for(make: Make) -> None:
    found = following(make, window=0)
    found.rig.run(Request(PROMPT, max_tokens=4))
    tokens = [*found.target.cache[0], 9]
    (plain_draft,) = found.proposer.draft([Ask(0, tokens, 3)])
    assert len(plain_draft.tokens) == 3
    assert plain_draft.confidence == ()


def test_a_block_is_one_pass_for_all_sequences() -> None:
    found = following(blocks, window=3, slots=3, mode="faithful")
    found.rig.run(*(Request((*PROMPT, i), max_tokens=12) for i in range(3)))
    assert ("block", (4, 4, 4)) in found.drafter.passes


def test_a_block_is_never_longer_than_the_drafter_was_trained_for() -> None:
    found = following(blocks, window=9)
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=40))
    assert max(max(sizes) for what, sizes in found.drafter.passes if what == "block") == BLOCK
    assert max(seq.counts.drafted_at) == BLOCK - 1


def test_a_block_drafter_says_how_sure_it_is_of_every_token() -> None:
    found = following(blocks, window=0)
    found.rig.run(Request(PROMPT, max_tokens=4))
    tokens = [*found.target.cache[0], 9]
    (draft,) = found.proposer.draft([Ask(0, tokens, 4)], lambda _: ())
    # A block is paid for whole: stopping early would save nothing.
    assert len(draft.confidence) == len(draft.tokens) == 4
    assert all(0.5 <= sure <= 1.0 for sure in draft.confidence)


def test_a_head_drafts_in_passes_of_one_row_for_each_sequence() -> None:
    found = following(eagle, window=3, slots=2, mode="faithful")
    found.rig.run(*(Request((*PROMPT, i), max_tokens=12) for i in range(2)))
    assert ("read", (1, 1)) in found.drafter.passes


def test_rehearsals_leave_no_trace(make: Make) -> None:
    found = following(make, window=4)
    found.proposer.rehearse_reading(20)
    found.proposer.rehearse_drafting(3)
    assert not any(found.drafter.cache.values())
    (seq,) = found.rig.run(Request(PROMPT, max_tokens=20))
    assert seq.counts.n_accepted == seq.counts.n_drafted > 0


def test_what_drafting_costs_is_measured(make: Make) -> None:
    drafter, proposer = make()
    ticks = iter(range(10_000))
    cost = measure_follower(proposer, clock=lambda: next(ticks) * 1e-3)
    assert (cost.block is not None) == isinstance(drafter, BlockDrafter)
    assert cost.draft_s(4, 2) > 0
    assert not any(drafter.cache.values())

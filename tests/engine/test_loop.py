"""The round: whatever is drafted, the text is plain decoding's and the caches stay in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import pairwise
from time import sleep

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.control.choice import Choice, Choices, FixedWindow, Held, View
from parlay.control.choice import plain as plainly
from parlay.decoding.constraint import Forced, Mask
from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.round import Fallback, Round
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.decoding.verdict import Origin
from parlay.engine.exact.shapes import Inexact
from parlay.engine.request import Request
from parlay.engine.sequence import KEPT_ROUNDS, Piece, Sequence
from parlay.errors import BadRequest, DecodeError
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.lookup import Lookup
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.skeleton import SkeletonProposer
from tests.engine.rig import LOGITS, N_VOCAB, Letters, Rig, exact_class, plain, whole_class
from tests.scripted import LaxConstraint, ScriptedModel, ScriptedProposer

PROMPT = (1, 2, 3, 4, 5)
SAMPLINGS = st.sampled_from(
    [
        Sampling(),
        Sampling(temperature=0.8, seed=7),
        Sampling(temperature=1.0, top_k=5, seed=1),
        Sampling(temperature=1.0, top_p=0.8, min_p=0.05, seed=2),
        Sampling(repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
        Sampling(temperature=0.7, typical_p=0.9, logit_bias={3: 4.0}, seed=3),
    ]
)


def draft_model(logits=LOGITS) -> tuple[ScriptedModel, DraftModel]:  # type: ignore[no-untyped-def]
    model = ScriptedModel(logits, N_VOCAB)
    return model, DraftModel(model, DraftLimits(frozenset(), N_VOCAB, 64))


@settings(max_examples=60)
@given(
    script=st.lists(st.booleans(), max_size=40),
    window=st.integers(0, 16),
    n=st.integers(1, 40),
    sampling=SAMPLINGS,
    ends=st.frozensets(st.integers(0, N_VOCAB - 1), max_size=3),
    stop=st.lists(st.text("abcdef", min_size=1, max_size=3), max_size=2),
)
def test_any_pattern_of_right_and_wrong_drafts_gives_the_text_of_plain_decoding(
    script: list[bool],
    window: int,
    n: int,
    sampling: Sampling,
    ends: frozenset[int],
    stop: list[str],
) -> None:
    request = Request(PROMPT, max_tokens=n, sampling=sampling, stop=tuple(stop))
    rig = Rig(window=window, script=script, ends=ends)
    (seq,) = rig.run(request)
    assert rig.text(seq) == plain(request, ends=ends)
    assert rig.target.cache[0] == seq.tokens[: seq.n_cached]
    assert seq.n_cached == len(seq.tokens) - 1


@settings(max_examples=40)
@given(
    windows=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    cancel_after=st.integers(0, 12),
    seed=st.integers(0, 5),
)
def test_cancelling_after_any_round_leaves_both_caches_at_a_prefix_of_the_text(
    windows: list[int], cancel_after: int, seed: int
) -> None:
    model, drafter = draft_model()
    rig = Rig(proposers={"model": drafter}, slots=4)
    sampling = Sampling(temperature=0.5, seed=seed)
    sequences = [
        rig.add(Request((*PROMPT, w), max_tokens=30, window=w, sampling=sampling)) for w in windows
    ]
    for _ in range(cancel_after):
        rig.loop.step()
    sequences[0].cancelled = True
    rig.loop.step()
    assert sequences[0].done
    assert sequences[0].seq_id not in {s.seq_id for s in rig.loop.active}
    for seq in sequences:
        if seq.seq_id >= 0:
            held = rig.target.cache.get(seq.seq_id, [])
            assert held == seq.tokens[: len(held)]
            assert len(held) == seq.n_cached
    while not rig.loop.idle:
        rig.loop.step()
    for seq in sequences[1:]:
        held = model.cache.get(seq.seq_id, [])
        shared = min(len(held), len(seq.tokens))
        assert held[: min(shared, seq.n_cached)] == seq.tokens[: min(shared, seq.n_cached)]


@settings(max_examples=30)
@given(slots=st.integers(1, 4), n=st.integers(1, 6), window=st.integers(0, 6))
def test_concurrent_sequences_say_what_each_says_alone(slots: int, n: int, window: int) -> None:
    requests = [Request((*PROMPT, i), max_tokens=20 + i) for i in range(n)]
    _, drafter = draft_model()
    rig = Rig(proposers={"model": drafter}, slots=slots, window=window)
    for seq, request in zip(rig.run(*requests), requests, strict=True):
        assert rig.text(seq) == plain(request)


def test_a_right_draft_is_accepted_whole_and_followed_by_a_bonus() -> None:
    rig = Rig(window=3)
    (seq,) = rig.run(Request(PROMPT, max_tokens=9))
    origins = [piece.origin for piece in rig.pieces[seq]]
    accepted, bonus = Origin.ACCEPTED, Origin.BONUS
    assert origins == [Origin.PLAIN, *[accepted, accepted, accepted, bonus] * 2]


def test_a_wrong_draft_costs_its_round_and_is_recovered() -> None:
    rig = Rig(window=1, script=[False])
    (seq,) = rig.run(Request(PROMPT, max_tokens=3))
    origins = [piece.origin for piece in rig.pieces[seq]]
    assert origins == [Origin.PLAIN, Origin.RECOVERED, Origin.PLAIN]


def test_the_window_never_drafts_past_the_last_token() -> None:
    rig = Rig(window=8)
    (seq,) = rig.run(Request(PROMPT, max_tokens=4))
    assert seq.n_generated == 4
    assert max(sum(shape) for shape in rig.target.shapes[1:]) <= 3


def test_windows_are_wide_where_a_sequence_is_alone_and_narrow_in_company() -> None:
    rig = Rig(window=40, slots=2, context_size=256, mode="faithful", most_rows=36)
    rig.run(Request(PROMPT, max_tokens=120))
    assert max(sum(shape) for shape in rig.target.shapes[1:]) == 36
    rig.target.shapes.clear()
    rig.run(Request(PROMPT, max_tokens=120), Request(PROMPT[:-1], max_tokens=120))
    both = rig.target.shapes[2:]  # the prompts have been read
    assert max(max(shape) for shape in both if len(shape) == 2) == 18


def test_an_accepted_end_of_text_ends_the_answer_and_leaves_later_positions_uncounted() -> None:
    text = plain(Request(PROMPT, max_tokens=10))
    tokens = Rig(proposers={}).run(Request(PROMPT, max_tokens=10))[0].tokens[len(PROMPT) :]
    end = tokens[4]
    rig = Rig(window=8, ends=frozenset({end}))
    (seq,) = rig.run(Request(PROMPT, max_tokens=10))
    assert seq.finish_reason == "stop"
    assert rig.text(seq) == text[: tokens.index(end)]
    assert seq.counts.n_drafted == seq.counts.n_accepted


def test_windows_stay_inside_the_exact_class() -> None:
    rig = Rig(window=8, exact=exact_class(1, 3))
    (seq,) = rig.run(Request(PROMPT, max_tokens=20))
    assert max(shape[0] for shape in rig.target.shapes[1:]) == 3
    assert seq.exact


def test_two_sequences_share_the_exact_rows_between_them() -> None:
    rig = Rig(window=8, exact=whole_class(4), slots=2)
    sequences = rig.run(*[Request((*PROMPT, i), max_tokens=20) for i in range(2)])
    assert all(seq.exact for seq in sequences)
    assert max(sum(shape) for shape in rig.target.shapes if len(shape) > 1) == 8


def test_sequences_that_cannot_share_an_exact_pass_take_turns() -> None:
    rig = Rig(window=2, exact=exact_class(1), slots=2)
    sequences = rig.run(*[Request((*PROMPT, i), max_tokens=9) for i in range(2)])
    assert all(seq.exact for seq in sequences)
    assert all(len(shape) == 1 for shape in rig.target.shapes)


@pytest.mark.parametrize(("unified", "shapes"), [(True, [(9, 8)]), (False, [(9,), (8,)])])
def test_faithful_mode_uses_any_shape_and_mixes_prompts_with_rounds_where_the_cache_is_one(
    unified: bool, shapes: list[tuple[int, ...]]
) -> None:
    exact = exact_class(1)
    rig = Rig(window=8, mode="faithful", exact=exact, slots=2, unified=unified)
    first = rig.add(Request(PROMPT, max_tokens=30))
    rig.loop.step()
    rig.add(Request(tuple(range(20)), max_tokens=3))
    rig.loop.step()
    assert rig.target.shapes[-len(shapes) :] == shapes
    assert not first.done


def test_a_pass_that_reads_a_prompt_counts_as_nobodys_decoding_time() -> None:
    """Or a speed-up would be told as a slow-down while somebody else's prompt is read."""
    rig = Rig(slots=2, mode="faithful", chunk=4, context_size=512, unified=True)
    beside = rig.add(Request(PROMPT, max_tokens=400))
    rig.loop.step()
    rig.loop.step()
    before = sum(beside.counts.generated_beside.values())
    rig.add(Request(tuple(range(1, 30)) * 8, max_tokens=1))
    mixed = 0
    while rig.loop.n_waiting or any(seq.n_pending > 1 for seq in rig.loop.active):
        rig.loop.step()
        mixed += 1
    assert mixed > 5 and sum(r.reads_prompt for r in beside.rounds) >= mixed - 1
    counted = sum(beside.counts.generated_beside.values())
    plain_rounds = [r for r in beside.rounds if not r.reads_prompt]
    assert counted == sum(r.n_generated for r in plain_rounds) >= before
    spent = sum(r.timing.overhead_s for r in plain_rounds)
    assert beside.counts.overhead_s == pytest.approx(spent)


def test_passes_that_compare_bits_before_a_round_are_no_time_of_it() -> None:
    compared_s = 0.02

    def compares(_spans: Seq[Span], _exact: bool) -> None:
        sleep(compared_s)
        rig.target.busy_s += compared_s

    rig = Rig(window=2, ready=compares)
    (seq,) = rig.run(Request(PROMPT, max_tokens=8))
    assert min(r.timing.total_s for r in seq.rounds) < compared_s / 2


def test_a_long_prompt_is_read_in_chunks_while_others_go_on_decoding() -> None:
    rig = Rig(window=0, slots=2, chunk=8)
    talking = rig.add(Request(PROMPT, max_tokens=40))
    rig.loop.step()
    reading = rig.add(Request(tuple(i % N_VOCAB for i in range(40)), max_tokens=2))
    before = talking.n_generated
    for _ in range(4):
        rig.loop.step()
    assert reading.n_cached == 32
    assert talking.n_generated == before + 4


def test_chunks_end_at_the_same_places_whatever_was_reused() -> None:
    rig = Rig(window=0, chunk=8)
    prompt = tuple(i % N_VOCAB for i in range(30))
    rig.run(Request(prompt[:13], max_tokens=1))
    rig.target.shapes.clear()
    rig.run(Request(prompt, max_tokens=1))
    assert rig.target.shapes[:3] == [(3,), (8,), (6,)]


def test_the_next_turn_reuses_the_shared_prefix_and_says_the_same() -> None:
    rig = Rig(window=3)
    (first,) = rig.run(Request(PROMPT, max_tokens=8))
    turn = Request((*first.tokens, 9, 9, 9), max_tokens=8)
    (second,) = rig.run(turn)
    assert second.n_reused == len(first.tokens) - 1
    assert rig.text(second) == plain(turn)


def test_what_one_owner_left_in_the_cache_is_of_no_use_to_another() -> None:
    rig = Rig(slots=2)
    (first,) = rig.run(Request(PROMPT, max_tokens=5, owner="a"))
    turn = (*first.tokens, 9)
    (other,) = rig.run(Request(turn, max_tokens=5, owner="b"))
    (own,) = rig.run(Request(turn, max_tokens=5, owner="a"))
    assert (other.n_reused, own.n_reused) == (0, len(first.tokens) - 1)
    assert rig.text(other) == rig.text(own)


def test_a_new_prompt_takes_the_slot_that_shares_most_with_it() -> None:
    rig = Rig(slots=2)
    rig.run(Request((1, 2, 3, 4), max_tokens=2), Request((9, 8, 7, 6), max_tokens=2))
    (seq,) = rig.run(Request((9, 8, 7, 1), max_tokens=2))
    assert (seq.seq_id, seq.n_reused) == (1, 3)


def test_a_full_context_ends_the_answer_with_length() -> None:
    rig = Rig(context_size=16, window=4)
    (seq,) = rig.run(Request(PROMPT, max_tokens=100))
    assert seq.finish_reason == "length"
    assert len(seq.tokens) == 17  # sixteen in the cache and one more said


@pytest.mark.parametrize("n_prompt", range(3, 7))
@pytest.mark.parametrize("window", [0, 1, 3, 7])
def test_an_exact_answer_ends_at_the_same_token_of_a_full_context_with_any_window(
    window: int, n_prompt: int
) -> None:
    rig = Rig(context_size=32, exact=exact_class(4), window=window)
    (seq,) = rig.run(Request(tuple(range(n_prompt)), max_tokens=1000))
    assert seq.exact
    assert seq.finish_reason == "length"
    assert len(seq.tokens) == 32 - 4 + 2  # after as many the last padded pass fitted: one more said


@pytest.mark.parametrize("window", [0, 1, 4])
def test_sliding_goes_on_past_the_context_and_shifts_both_caches_alike(window: int) -> None:
    model, drafter = draft_model()
    rig = Rig(proposers={"model": drafter}, context_size=24, window=window)
    model.context_size = 24
    request = Request(PROMPT, max_tokens=60, context_full="slide")
    (seq,) = rig.run(request)
    assert seq.n_generated == 60
    assert rig.text(seq) == plain(request, context_size=24)
    held = model.cache.get(0, [])
    assert held[: seq.n_cached] == seq.tokens[: min(len(held), seq.n_cached)]


def test_a_failing_drafter_degrades_to_plain_decoding_with_the_reason() -> None:
    model, drafter = draft_model()
    rig = Rig(proposers={"model": drafter}, window=3)
    seq = rig.add(Request(PROMPT, max_tokens=12))
    rig.loop.step()
    model.fail_next = 1
    while not rig.loop.idle:
        rig.loop.step()
    assert seq.counts.fallbacks[Fallback.DRAFT_ERROR] == 1
    assert seq.counts.n_accepted > 0
    assert rig.text(seq) == plain(Request(PROMPT, max_tokens=12))


def test_a_failing_target_ends_its_sequences_with_the_error_and_frees_their_slots() -> None:
    rig = Rig()
    seq = rig.add(Request(PROMPT, max_tokens=12))
    rig.loop.step()
    rig.target.fail_next = 2  # with the draft, and without it
    rig.loop.step()
    assert seq.finish_reason == "error"
    assert isinstance(seq.error, DecodeError)
    assert rig.target.length(0) == 0
    (after,) = rig.run(Request(PROMPT, max_tokens=12))
    assert rig.text(after) == plain(Request(PROMPT, max_tokens=12))


def test_logprobs_are_those_of_every_emitted_token_speculated_or_not() -> None:
    request = Request(PROMPT, max_tokens=12, logprobs=2)
    rig, alone = Rig(window=4), Rig(proposers={})
    (seq,), (reference,) = rig.run(request), alone.run(request)
    found = [piece.logprob for piece in rig.pieces[seq]]
    assert found == [piece.logprob for piece in alone.pieces[reference]]
    assert all(score is not None and len(score.top) == 2 for score in found)


def test_proposers_learn_what_was_said() -> None:
    proposer = ScriptedProposer(LOGITS)
    rig = Rig(proposers={"scripted": proposer})
    (seq,) = rig.run(Request(PROMPT, max_tokens=5))
    assert proposer.finished == [tuple(seq.tokens)]


def test_an_impossible_request_is_refused_before_it_starts() -> None:
    for bad in ({"prompt": ()}, {"prompt": (1,), "max_tokens": 0}, {"prompt": (1,), "window": -1}):
        with pytest.raises(BadRequest):
            Request(**bad)


def test_a_recovered_token_tells_which_drafts_it_replaced() -> None:
    rig = Rig(window=3, script=[True, False, True, True])
    (seq,) = rig.run(Request(PROMPT, max_tokens=8))
    recovered = [piece for piece in rig.pieces[seq] if piece.origin is Origin.RECOVERED]
    others = [piece for piece in rig.pieces[seq] if piece.origin is not Origin.RECOVERED]
    assert recovered
    assert all(piece.rejected and piece.token != piece.rejected[0] for piece in recovered)
    assert not any(piece.rejected for piece in others)
    assert sum(len(p.rejected) for p in recovered) == seq.counts.n_drafted - seq.counts.n_accepted


def test_a_sequence_keeps_its_latest_rounds_but_not_the_reading_of_its_prompt() -> None:
    rig = Rig(window=2, script=[True] * 40)
    (seq,) = rig.run(Request(PROMPT, max_tokens=12))
    assert sum(r.n_generated for r in seq.rounds) == seq.n_generated - 1
    assert seq.rounds.maxlen == KEPT_ROUNDS


class SearchesFor(FixedWindow):
    """Searches for some answers only, by their slots."""

    def __init__(self, *slots: int) -> None:
        super().__init__(3)
        self.slots = slots
        self.seen: list[tuple[int, bool, Seq[str]]] = []

    def choose(self, views: Seq[View]) -> Choices:
        self.seen += [(view.seq_id, view.searched, list(view.offers)) for view in views]
        made = super().choose(views).each
        return Choices(
            [replace(c, search=v.seq_id in self.slots) for c, v in zip(made, views, strict=True)]
        )


def test_proposers_are_asked_for_those_that_the_controller_wants_searched() -> None:
    controller = SearchesFor(0)
    rig = Rig(controller=controller, slots=2, mode="faithful", free=frozenset({"scripted"}))
    requests = [Request((1, 2, n), max_tokens=12) for n in (3, 4)]
    asked, silent = rig.run(*requests)
    assert controller.seen[:2] == [(0, True, ["scripted"]), (1, True, ["scripted"])]  # at first
    assert controller.seen[2:4] == [(0, True, ["scripted"]), (1, False, [])]
    assert all(r.n_drafted == 3 for r in list(asked.rounds)[:-1])
    assert [r.n_drafted for r in silent.rounds][:3] == [3, 0, 0]
    assert [rig.text(seq) for seq in (asked, silent)] == [plain(request) for request in requests]


@pytest.mark.parametrize(("window", "n_asked"), [(None, 1), (3, 7)])
def test_proposers_are_asked_where_the_controller_or_the_request_wants_it(
    window: int | None, n_asked: int
) -> None:
    asked: list[int] = []

    class Counted(ScriptedProposer):
        def draft(self, asks: Seq[Ask], worth: Worth | None = None) -> list[Draft]:
            asked.extend(ask.window for ask in asks)
            return [NO_DRAFT for _ in asks]

    free = frozenset({"free"})
    rig = Rig(controller=SearchesFor(), proposers={"free": Counted(LOGITS, ())}, free=free)
    rig.run(Request(PROMPT, max_tokens=9, window=window))
    assert len(asked) == n_asked  # the first token came with the prompt, the last needs no draft


class Reader(ScriptedProposer):
    """Keeps what it was told to read, and how much of it the cache had kept."""

    def __init__(self) -> None:
        super().__init__(LOGITS)
        self.begun: list[tuple[tuple[int, ...], int]] = []
        self.n_read = 0

    def open(self, seq_id: int, tokens: Seq[int], n_kept: int, owner: str = "") -> None:
        self.begun.append((tuple(tokens), n_kept))

    def meanwhile(self, ask: Ask, draft: Seq[int]) -> None:
        self.n_read += 1


def test_prompts_are_indexed_while_they_are_read() -> None:
    reader = Reader()
    rig = Rig(proposers={"scripted": reader}, chunk=4)
    seq = rig.add(Request(tuple(range(10)), max_tokens=4))
    rig.loop.step()
    assert reader.n_read == 1
    assert seq.n_generated == 0


def test_indexes_are_kept_as_far_as_the_cache_was() -> None:
    reader = Reader()
    rig = Rig(proposers={"scripted": reader})
    [first] = rig.run(Request((1, 2, 3), max_tokens=4))
    turn = (*first.tokens, 9)
    rig.run(Request(turn, max_tokens=4), Request((7, 8), max_tokens=4))
    cached = len(first.tokens) - 1
    assert reader.begun == [((1, 2, 3), 0), (turn, cached), ((7, 8), 0)]


def test_others_wait_no_longer_than_a_chunk_and_alone_a_prompt_is_read_at_once() -> None:
    rig = Rig(window=0, mode="faithful", slots=2, chunk=4)
    rig.add(Request(tuple(range(30)), max_tokens=30))
    rig.loop.step()
    rig.loop.step()
    assert rig.target.shapes[:2] == [(30,), (1,)]
    rig.add(Request(tuple(range(1, 10)), max_tokens=2))
    rig.loop.step()
    assert rig.target.shapes[2:] == [(1,), (4,)]


@pytest.mark.parametrize(
    ("seconds_each", "widest", "chunk"),
    [(0.001, 16, 16), (1.0, 16, 4), (None, 16, 4), (0.001, 0, 4)],
)
def test_others_wait_for_a_wider_pass_over_a_prompt_only_where_it_is_known_to_be_quick(
    seconds_each: float | None, widest: int, chunk: int
) -> None:
    rig = Rig(window=0, mode="faithful", slots=2, chunk=4, widest_chunk=widest)
    if seconds_each is not None:
        rig.slots.copying.saw_reading(100, 100 * seconds_each)
    first, second = Request(tuple(range(30)), max_tokens=30), Request(tuple(range(1, 25)), 2)
    answers = [rig.add(first)]
    rig.loop.step()
    rig.target.shapes.clear()
    answers.append(rig.add(second))
    rig.loop.step()
    assert rig.target.shapes == [(1,), (chunk,)]
    rig.finish()
    assert [rig.text(seq) for seq in answers] == [plain(first), plain(second)]


def test_prompts_of_nearly_equal_length_are_read_in_one_pass() -> None:
    requests = [Request((9, *range(n)), max_tokens=3) for n in (5, 7, 6)]
    rig = Rig(window=0, mode="faithful", slots=3, chunk=16)
    answers = rig.run(*requests)
    assert rig.target.shapes[0] == (8, 8, 8)
    assert [rig.text(seq) for seq in answers] == [plain(request) for request in requests]


def test_no_pass_reads_the_end_of_one_prompt_and_the_beginning_of_another() -> None:
    requests = [Request((9, *range(n)), max_tokens=3) for n in (49, 39, 29)]
    rig = Rig(window=0, mode="faithful", slots=3, chunk=64)
    answers = rig.run(*requests)
    assert rig.target.shapes[:3] == [(50,), (40,), (30,)]
    assert [rig.text(seq) for seq in answers] == [plain(request) for request in requests]


def test_the_more_wait_for_their_first_token_the_more_prompts_are_read_before_the_next_round() -> (
    None
):
    rig = Rig(window=0, mode="faithful", slots=10, chunk=64)
    for n in range(10):
        rig.add(Request((n, *range(59)), max_tokens=20))
    prompt = (60,)
    rig.loop.step()
    assert rig.target.shapes == [prompt] * 4  # nobody decodes, and still not all at once
    rig.loop.step()
    assert rig.target.shapes[4:] == [(1,) * 4, prompt]
    rig.finish()
    rig.add(Request((30, *range(59)), max_tokens=20))
    rig.loop.step()
    rig.target.shapes.clear()
    for n in (31, 32):
        rig.add(Request((n, *range(59)), max_tokens=2))
    rig.loop.step()
    assert rig.target.shapes == [(1,), prompt, prompt]


def test_prompts_that_fill_a_pass_each_are_handed_over_at_once_and_say_the_same() -> None:
    requests = [Request((n, *range(40 + n)), max_tokens=5) for n in range(6)]
    rig = Rig(window=0, mode="faithful", slots=6, chunk=64, n_call=256)
    answers = rig.run(*requests)
    # From the highest id down: so llama.cpp makes each a pass of its own.
    assert rig.target.shapes[:3] == [(44, 43, 42, 41), (1,) * 4, (46, 45)]
    assert [rig.text(seq) for seq in answers] == [plain(request) for request in requests]


def test_a_prompt_that_fails_leaves_those_that_were_handed_over_with_it_alone() -> None:
    requests = [Request((n, *range(40)), max_tokens=5) for n in range(3)]
    rig = Rig(window=0, mode="faithful", slots=3, chunk=64, n_call=256)
    rig.target.fail_next = 2
    answers = rig.run(*requests)
    assert [seq.finish_reason for seq in answers].count("error") == 1
    ended = [
        (seq, request) for seq, request in zip(answers, requests, strict=True) if rig.text(seq)
    ]
    assert len(ended) == 2
    assert all(rig.text(seq) == plain(request) for seq, request in ended)


def test_time_outside_of_rounds_is_told_once() -> None:
    rig = Rig()
    seq = rig.add(Request(PROMPT, max_tokens=12))
    seq.outside_s = 1e6  # what proposers really take comes on top
    rig.finish()
    assert [found.outside_s >= 1e6 for found in seq.rounds].count(True) == 1


class Forcing(LaxConstraint):
    """A grammar that forces the next two tokens as plain decoding would choose them."""

    def __init__(self, tokens: Seq[int]) -> None:
        self._left = list(tokens)

    def forced(self, draft: Seq[int] = ()) -> Forced:
        left = tuple(self._left[:2])
        return Forced(left, (1.0,) * len(left))

    def accept(self, tokens: Seq[int]) -> None:
        del self._left[: len(tokens)]


def test_what_a_grammar_forces_and_what_follows_it_are_drafted_together() -> None:
    request = Request(PROMPT * 4, max_tokens=24)
    said = Rig(proposers={}).run(request)[0].tokens[len(request.prompt) :]
    proposers: dict[str, Proposer] = {
        "skeleton": SkeletonProposer(),
        "suffix": Lookup(min_match=1),
    }
    rig = Rig(proposers=proposers, free=frozenset(proposers), controller=Longest(8))
    seq = rig.add(request, Forcing(said))
    rig.finish()
    assert seq.tokens[len(request.prompt) :] == said
    assert Fallback.DRAFT_ERROR not in seq.counts.fallbacks
    assert "skeleton+suffix" in seq.counts.proposers


class Longest(FixedWindow):
    """Takes the longest offer, whoever makes it."""

    def choose(self, views: Seq[View]) -> Choices:
        offers = [sorted(v.offers.values(), key=lambda d: len(d.tokens)) for v in views]
        longest = [found[-1] if found else NO_DRAFT for found in offers]
        return Choices([Choice(draft.proposer, len(draft.tokens)) for draft in longest])


class Verifying(FixedWindow):
    """Drafts four tokens with a model, and verifies so many of them."""

    def __init__(self, n_verified: int) -> None:
        super().__init__(4)
        self.n_verified = n_verified

    def choose(self, views: Seq[View]) -> Choices:
        made = super().choose(views).each
        return Choices(made, verified=lambda drafted: dict.fromkeys(drafted, self.n_verified))


@pytest.mark.parametrize("n_verified", [0, 1, 3, 4])
def test_of_a_models_draft_as_much_is_verified_as_the_controller_wants(n_verified: int) -> None:
    _, model = draft_model()
    rig = Rig(proposers={"model": model}, controller=Verifying(n_verified))
    (seq,) = rig.run(Request(PROMPT, max_tokens=30))
    whole = [r for r in seq.rounds if r.n_drafted + r.n_dropped == 4]
    assert {(r.n_drafted, r.n_dropped) for r in whole} == {(n_verified, 4 - n_verified)}
    if not n_verified:
        assert {r.fallback for r in whole} == {Fallback.UNPROFITABLE}
    assert rig.text(seq) == plain(seq.request)


def test_answers_share_a_pass_in_the_order_of_their_slots_whoever_came_first() -> None:
    """llama.cpp puts neighbours together only if their ids come in order."""
    orders: list[list[int]] = []
    rig = Rig(slots=3, window=0, mode="faithful")
    start = rig.target.start

    def started(spans: Seq[Span]) -> None:
        orders.append([span.seq_id for span in spans])
        start(spans)

    rig.target.start = started  # type: ignore[method-assign]
    for n, length in ((1, 2), (2, 30), (3, 30)):
        rig.add(Request((*PROMPT, n), max_tokens=length))
    for _ in range(4):
        rig.loop.step()
    rig.add(Request((*PROMPT, 4), max_tokens=9))  # in the first slot, behind the others
    rig.finish()
    assert [0, 1, 2] in orders[4:]
    assert all(order == sorted(order) for order in orders)


def overlapping(rig: Rig) -> list[str]:
    """Let the rig's target compute as a GPU does; what happens, in order."""
    said: list[str] = []
    start, fetch = rig.target.start, rig.target.fetch

    def started(spans: Seq[Span]) -> None:
        said.append("start")
        start(spans)

    def fetched(spans: Seq[Span]) -> list[NDArray[np.float32]]:
        said.append("fetch")
        return fetch(spans)

    rig.target.steady = True
    rig.target.start = started  # type: ignore[method-assign]
    rig.target.fetch = fetched  # type: ignore[method-assign]
    return said


def telling(rig: Rig, request: Request, said: list[str]) -> Sequence:
    """Its answer's pieces, among the passes."""

    def sink(_seq: Sequence, pieces: Seq[Piece]) -> None:
        said.extend(piece.text for piece in pieces)

    seq = rig.sequence(request, sink)
    rig.loop.add(seq)
    return seq


class Noting(FixedWindow):
    """Notes among the passes when it chooses, with what, and of what it learns."""

    def __init__(self, window: int, said: list[str]) -> None:
        super().__init__(window)
        self.said = said
        self.held: list[Held | None] = []
        self.agreed: list[Mapping[str, int]] = []

    def choose(self, views: Seq[View]) -> Choices:
        self.said.append(f"choose {views[0].n_generated}")
        self.held.append(views[0].held)
        return super().choose(views)

    def observe(self, rounds: Seq[Round]) -> None:
        self.said.append(f"learn {rounds[0].position}")
        self.agreed += [r.agreed for r in rounds]


def test_a_pass_is_told_and_learned_from_while_a_gpu_computes_the_next() -> None:
    rig = Rig(window=2, script=[False] * 99)
    said = overlapping(rig)
    rig.drafts.controller = Noting(2, said)
    seq = telling(rig, Request((1, 2, 3), max_tokens=4), said)
    rig.finish()
    text = plain(Request((1, 2, 3), max_tokens=4))
    assert said == [
        # The first token is waited for, and told before anything else is begun.
        *("start", "fetch", text[0]),
        *("choose 1", "start", "fetch"),
        *("choose 2", "start", text[1], "learn 1", "fetch"),
        *("choose 3", "start", text[2], "learn 2", "fetch", text[3], "learn 3"),
    ]
    assert [r.position for r in seq.rounds] == [1, 2, 3]
    assert seq.retired


def test_on_a_cpu_a_pass_is_told_and_learned_from_at_once() -> None:
    said: list[str] = []
    rig = Rig(controller=Noting(0, said))
    telling(rig, Request((1, 2, 3), max_tokens=3), said)
    rig.finish()
    text = plain(Request((1, 2, 3), max_tokens=3))
    assert said == [text[0], "choose 1", text[1], "learn 1", "choose 2", text[2], "learn 2"]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_choice_knows_all_rounds_but_the_last_and_of_that_what_held(gpu: bool) -> None:
    rig = Rig(window=3, script=[True, True, False] * 99)
    if gpu:
        overlapping(rig)
    controller = rig.drafts.controller = Noting(3, [])
    rig.run(Request((1, 2, 3), max_tokens=12))
    assert controller.held[0] is None  # the first token came with the prompt, and is learned
    held = Held(n_drafted=3, n_accepted=2, n_generated=3) if gpu else None
    assert {*controller.held[1:3]} == {held}


class Stumbling(ScriptedProposer):
    """Fails beside passes."""

    def meanwhile(self, ask: Ask, draft: Seq[int]) -> None:
        raise RuntimeError("beside a pass")


def test_a_proposer_that_fails_beside_a_pass_costs_no_answer() -> None:
    rig = Rig(proposers={"scripted": Stumbling(LOGITS)}, slots=2)
    overlapping(rig)
    requests = [Request((*PROMPT, n), max_tokens=9) for n in range(2)]
    assert [rig.text(seq) for seq in rig.run(*requests)] == [plain(each) for each in requests]


class Unruly(LaxConstraint):
    """A grammar that breaks beside a pass."""

    def __init__(self) -> None:
        self.n = 0

    def allowed(self, draft: Seq[int]) -> Mask | None:
        self.n += 1
        if self.n > 3:
            raise RuntimeError("a grammar broke")
        return super().allowed(draft)


def test_what_fails_between_launch_and_fetch_ends_its_own_answer_and_no_other() -> None:
    sampling = Sampling(temperature=0.8, seed=1)
    requests = [Request((*PROMPT, n), max_tokens=20, sampling=sampling) for n in range(3)]
    rig = Rig(slots=3, mode="faithful", window=2)
    overlapping(rig)
    answers = [rig.add(request, Unruly() if n == 1 else None) for n, request in enumerate(requests)]
    rig.finish()
    assert [seq.finish_reason for seq in answers] == ["length", "error", "length"]
    for seq, request in zip((answers[0], answers[2]), (requests[0], requests[2]), strict=True):
        assert rig.text(seq) == plain(request)
    # All in one pass: nobody was read again alone.
    assert all(len(shape) == 3 for shape in rig.target.shapes[1 : 1 + len(answers[1].rounds)])
    (after,) = rig.run(Request(PROMPT, max_tokens=5))
    assert rig.text(after) == plain(Request(PROMPT, max_tokens=5))


class Unreadable(Letters):
    """A text that breaks at its fourth token."""

    def __init__(self) -> None:
        self.n = 0

    def push(self, token: int) -> str:
        self.n += 1
        if self.n > 3:
            raise ValueError("no text")
        return super().push(token)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_text_that_cannot_be_read_ends_its_own_answer_while_others_go_on(gpu: bool) -> None:
    rig = Rig(slots=2, window=2)
    if gpu:
        overlapping(rig)
    request, said = Request((*PROMPT, 1), max_tokens=30), list[str]()
    honest = rig.add(request)
    broken = Sequence(
        Request((*PROMPT, 2), max_tokens=30),
        Unreadable(),
        frozenset(),
        lambda _seq, pieces: said.extend(piece.text for piece in pieces),
    )
    rig.loop.add(broken)
    rig.finish()
    assert (broken.finish_reason, broken.retired) == ("error", True)
    assert "".join(said) == plain(broken.request)[: len("".join(said))]
    assert rig.text(honest) == plain(request)
    (after,) = rig.run(Request((*PROMPT, 2), max_tokens=9))  # its slot was left in order
    assert rig.text(after) == plain(after.request)


def test_what_is_done_beside_a_pass_is_no_time_of_it() -> None:
    beside_s = 0.01

    class Slow(ScriptedProposer):
        def meanwhile(self, ask: Ask, draft: Seq[int]) -> None:
            sleep(beside_s)

    rig = Rig(proposers={"scripted": Slow(LOGITS)}, window=2)
    overlapping(rig)
    (seq,) = rig.run(Request(PROMPT, max_tokens=12))
    assert min(r.timing.verify_s for r in seq.rounds) < beside_s / 2
    assert min(r.timing.overhead_s for r in seq.rounds) >= beside_s  # this pass was done long ago


def test_a_prompt_that_is_read_in_one_pass_is_indexed_while_a_gpu_reads_it() -> None:
    reader = Reader()
    rig = Rig(proposers={"scripted": reader})
    overlapping(rig)
    seq = rig.add(Request((1, 2, 3), max_tokens=4))
    rig.loop.step()
    assert (reader.n_read, seq.n_generated) == (1, 1)


@pytest.mark.parametrize("right", [True, False])
def test_texts_that_nobody_searches_are_searched_in_turn_while_a_gpu_computes(right: bool) -> None:
    class Silent(Noting):
        def choose(self, views: Seq[View]) -> Choices:
            self.held += [view.held for view in views]
            return Choices([plainly(Fallback.UNPROFITABLE, search=False) for _ in views])

    guessing = ScriptedProposer(LOGITS, [right] * 9999)
    rig = Rig(proposers={"free": guessing}, free=frozenset({"free"}), slots=2, mode="faithful")
    overlapping(rig)
    controller = rig.drafts.controller = Silent(0, [])
    requests = [Request((1, 2, n), max_tokens=12) for n in (3, 4)]
    answers = rig.run(*requests)
    told = [each for each in controller.agreed[2:] if each]
    assert len(told) >= 9  # one of two in each pass
    assert {each["free"] for each in told} == {1 if right else 0}
    assert [rig.text(seq) for seq in answers] == [plain(request) for request in requests]


def test_an_answer_that_is_cancelled_tells_first_what_it_has_said() -> None:
    rig = Rig(proposers={})
    said = overlapping(rig)
    seq = telling(rig, Request((1, 2, 3), max_tokens=40), said)
    for _ in range(4):
        rig.loop.step()
    seq.cancelled = True
    rig.finish()
    text = plain(Request((1, 2, 3), max_tokens=40))
    told = "".join(each for each in said if each not in ("start", "fetch"))
    assert told == text[: seq.n_generated]
    assert seq.counts.n_generated == seq.n_generated


def test_what_made_a_pass_inexact_is_told_of_that_pass_and_of_no_other() -> None:
    rig = Rig(proposers={}, exact=exact_class(1, 2))
    overlapping(rig)
    seq = rig.add(Request((1, 2, 3), max_tokens=6))
    for _ in range(3):
        rig.loop.step()
    rig.loop.spoiled = Inexact.STATES  # from the next pass on
    rig.loop.step()
    rig.loop.spoiled = None
    rig.finish()
    assert [r.exact for r in seq.rounds] == [True, True, False, True, True]
    assert (seq.exact, seq.inexact) == (False, Inexact.STATES)


def test_a_shape_is_new_after_a_prompt_and_old_after_a_round() -> None:
    seen: list[bool] = []

    class Shapes(FixedWindow):
        def choose(self, views: Seq[View]) -> Choices:
            seen.append(views[0].shape_is_new)
            return super().choose(views)

    rig = Rig(controller=Shapes(0), slots=2)
    rig.add(Request(PROMPT, max_tokens=12))
    for _ in range(4):
        rig.loop.step()
    rig.add(Request((9, *PROMPT), max_tokens=2))
    rig.loop.step()
    assert seen == [True, False, False, True]


@pytest.mark.parametrize("slots", [1, 3])
def test_once_a_pass_it_is_told_that_every_sink_has_been_given_what_it_brought(slots: int) -> None:
    told: list[Counter[Sequence]] = []

    def after_pass() -> None:
        told.append(Counter({seq: len(pieces) for seq, pieces in rig.pieces.items()}))

    rig = Rig(slots=slots, after_pass=after_pass)
    sequences = rig.run(*[Request((*PROMPT, i), max_tokens=20) for i in range(3)])
    assert told[-1] == Counter({seq: len(rig.pieces[seq]) for seq in sequences})
    assert all(earlier != later for earlier, later in pairwise(told))  # none for nothing
    assert len(told) <= len(rig.target.shapes) + len(sequences)


def test_whoever_fails_after_a_pass_ends_no_answer() -> None:
    def after_pass() -> None:
        raise RuntimeError("nobody is there")

    rig = Rig(after_pass=after_pass)
    (seq,) = rig.run(Request(PROMPT, max_tokens=8))
    assert rig.text(seq) == plain(Request(PROMPT, max_tokens=8))

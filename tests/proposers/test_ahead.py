"""Draft ahead: the drafter goes on beside the target's pass, and nothing of it is ever wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.draft import NO_DRAFT, Draft
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.errors import DecodeError
from parlay.proposers.ahead import THREAD, DraftAhead
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Ask, Further
from tests.scripted import ScriptedModel, hashed_logits

N_VOCAB = 16
LOGITS = hashed_logits(N_VOCAB)
PATIENCE_S = 300  # a test that waits this long has failed


class Gated(ScriptedModel):
    """A model on a GPU whose passes, once gated, begin and end as the test says."""

    steady = True

    def __init__(self, context_size: int = 128) -> None:
        super().__init__(LOGITS, N_VOCAB, context_size)
        self.gated = False
        self.threads: set[str] = set()
        self._begun = threading.Semaphore(0)
        self._may_end = threading.Semaphore(0)

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        self.threads.add(threading.current_thread().name)
        if self.gated:
            self._begun.release()
            assert self._may_end.acquire(timeout=PATIENCE_S)
        return super().decode(spans)

    def wait_for_pass(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE_S)

    def let_pass(self, n: int = 1) -> None:
        for _ in range(n):
            self._may_end.release()

    def open_gate(self) -> None:
        self.gated = False
        self.let_pass()


@pytest.fixture
def model() -> Gated:
    return Gated()


@pytest.fixture
def ahead(model: Gated) -> Iterator[DraftAhead]:
    made = DraftAhead(DraftModel(model, DraftLimits(frozenset(), N_VOCAB, 32)))
    yield made
    model.open_gate()
    made.close()


def greedy(tokens: Sequence[int], n: int) -> list[int]:
    text = list(tokens)
    for _ in range(n):
        text.append(int(LOGITS(text).argmax()))
    return text[len(tokens) :]


def other(token: int) -> int:
    return (token + 1) % N_VOCAB


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_next_pass_is_begun_with_a_draft_only_where_it_is_to_be_gone_on_with(
    ahead: DraftAhead, model: Gated, goes_on: bool
) -> None:
    ahead.propose([Ask(0, [1, 2, 3], 2, ahead=goes_on)])
    assert len(model.cache[0]) == 3 + 1 + goes_on  # a draft's last token is not read for it


def test_a_draft_model_with_no_thread_of_its_own_begins_nothing_beyond_its_draft() -> None:
    model = Gated()
    bare = DraftModel(model, DraftLimits(frozenset(), N_VOCAB, 32))
    bare.propose([Ask(0, [1, 2, 3], 2, ahead=True)])
    assert len(model.cache[0]) == 3 + 1


def begin(ahead: DraftAhead, model: Gated, text: list[int], window: int = 3) -> list[int]:
    """A draft, and the drafter goes on: its first pass has begun and waits."""
    (draft,) = ahead.propose([Ask(0, text, window)])
    model.gated = True
    ahead.ahead([Further(0, text, len(draft.tokens), window)])
    model.wait_for_pass()
    return list(draft.tokens)


def draft_on(model: Gated, n: int) -> None:
    """So many passes end, and the next one has begun."""
    for _ in range(n):
        model.let_pass()
        model.wait_for_pass()


def accepted(ahead: DraftAhead, model: Gated, n_passes: int) -> list[int]:
    """The text with a whole draft and the target's token, so many of the drafter's passes on."""
    text = [1, 2, 3]
    draft = begin(ahead, model, text)
    draft_on(model, n_passes)
    text += [*draft, greedy([*text, *draft], 1)[0]]  # in place: the drafter looks at it
    return text


def test_until_it_drafts_ahead_there_is_no_thread(model: Gated, ahead: DraftAhead) -> None:
    ahead.propose([Ask(0, [1, 2, 3], 4)])
    ahead.forget(0)
    assert ahead._thread is None
    assert model.threads == {threading.current_thread().name}


def test_while_it_drafts_ahead_nobody_else_calls_the_drafter(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    begin(ahead, model, text)
    assert {name.startswith(THREAD) for name in model.threads} == {True, False}
    model.threads.clear()
    asked = threading.Thread(target=lambda: ahead.propose([Ask(0, [*text, 5, 6], 3)]))
    asked.start()
    asked.join(0.05)
    assert asked.is_alive() and not model.threads  # it waits for the pass that has begun
    model.open_gate()
    asked.join(PATIENCE_S)
    assert model.threads == {asked.name}  # and makes its own then


@pytest.mark.parametrize("n_ready", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("n_accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("right", [True, False])
def test_whenever_the_pass_ends_the_next_draft_is_what_the_drafter_would_draft_alone(
    model: Gated, ahead: DraftAhead, n_ready: int, n_accepted: int, right: bool
) -> None:
    """`n_ready` drafted ahead when the target's pass ends; so many accepted, and the target's own
    token the one guessed or another."""
    text = [1, 2, 3]
    draft = begin(ahead, model, text, window=3)
    n_done = min(n_ready, 3)  # the fourth and the guess are the last: no other pass begins
    draft_on(model, n_done)
    chain = greedy(text, 8)
    assert draft == chain[:3]
    own = chain[n_accepted] if right else other(chain[n_accepted])
    text += [*draft[:n_accepted], own]
    model.open_gate()
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3)
    hit = n_accepted == 3 and right
    assert found.n_ahead <= 3 and (found.n_ahead > 0 or not hit or not n_ready)
    if not right:
        assert found.n_ahead == 0


def test_what_is_ready_is_the_draft_and_nobody_waits_for_the_pass_that_runs(
    model: Gated, ahead: DraftAhead
) -> None:
    text = accepted(ahead, model, 3)  # the guess and two tokens are there, the third is being made
    (found,) = ahead.propose([Ask(0, text, 2)])  # while the drafter's pass still runs
    assert list(found.tokens) == greedy(text, 2) and found.n_ahead == 2
    assert found.hidden_s > 0


def test_a_window_wider_than_what_is_ready_is_drafted_to_its_end(
    model: Gated, ahead: DraftAhead
) -> None:
    text = accepted(ahead, model, 2)
    model.open_gate()
    (found,) = ahead.propose([Ask(0, text, 6)])
    assert list(found.tokens) == greedy(text, 6)
    assert 1 <= found.n_ahead < 6


def test_it_goes_no_further_than_the_next_draft_may_be_long(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    draft = begin(ahead, model, text, window=3)
    draft_on(model, 3)
    model.let_pass()
    text += draft
    ahead.forget(1)  # comes after the last pass
    assert ahead.ready(0, text).n_tokens == 4  # the guess, and a whole draft


def test_a_text_that_goes_another_way_is_drafted_no_further(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    draft = begin(ahead, model, text, window=3)
    text += [draft[0], other(draft[1])]
    n_before = len(model.shapes)
    model.let_pass()  # the one that was under way
    ahead.forget(1)
    assert len(model.shapes) == n_before + 1


def test_an_answer_that_ended_is_drafted_no_further(model: Gated, ahead: DraftAhead) -> None:
    text = [1, 2, 3]
    begin(ahead, model, text, window=3)
    ahead.finish(0, text)
    n_before = len(model.shapes)
    model.let_pass()
    ahead.forget(1)
    assert len(model.shapes) == n_before + 1


def test_a_pass_that_fails_ahead_is_told_with_the_next_draft_and_then_forgotten(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    draft = begin(ahead, model, text, window=3)
    model.fail_next = 1
    model.open_gate()
    text += [*draft, 7]
    with pytest.raises(DecodeError, match="scripted"):
        ahead.propose([Ask(0, text, 3)])
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3) and found.n_ahead == 0


def asking(ahead: DraftAhead, call: str, seq_id: int) -> Callable[[], object]:
    return {
        "forget": lambda: ahead.forget(seq_id),
        "shift": lambda: ahead.shift(seq_id, 1, 1),
        "close": ahead.close,
        "propose": lambda: ahead.propose([Ask(seq_id, [2, 3], 1)]),
    }[call]


@pytest.mark.parametrize("call", ["forget", "shift", "close"])
def test_whoever_changes_the_cache_waits_for_one_pass_at_most(
    model: Gated, ahead: DraftAhead, call: str
) -> None:
    begin(ahead, model, [1, 2, 3], window=8)
    n_before = len(model.shapes)
    caller = threading.Thread(target=asking(ahead, call, 0))
    caller.start()
    while not ahead._walk.called_back:  # it has asked; the pass is still under way
        assert caller.is_alive()
    model.let_pass()
    caller.join(PATIENCE_S)
    assert not caller.is_alive() and len(model.shapes) == n_before + 1
    assert model.closed == (call == "close")


def test_several_sequences_go_on_in_one_pass(model: Gated, ahead: DraftAhead) -> None:
    texts = {0: [1, 2, 3], 1: [4, 5, 6]}
    drafts = ahead.propose([Ask(i, text, 2) for i, text in texts.items()])
    model.shapes.clear()
    ahead.ahead([Further(i, text, 2, 2) for i, text in texts.items()])
    for i, draft in enumerate(drafts):
        texts[i] += [*draft.tokens, greedy([*texts[i], *draft.tokens], 1)[0]]
    texts[1][-1] = other(texts[1][-1])  # one of them was guessed wrong
    found = ahead.propose([Ask(i, text, 2) for i, text in texts.items()])
    assert [list(d.tokens) for d in found] == [greedy(text, 2) for text in texts.values()]
    assert found[1].n_ahead == 0
    assert (1, 1) in model.shapes


def test_after_a_miss_it_sets_out_anew_as_soon_as_its_pass_has_ended_and_nobody_waits(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    draft = begin(ahead, model, text)
    text += [*draft[:1], other(draft[1])]
    model.shapes.clear()
    ahead.set_out(Ask(0, text, 3))
    model.let_pass()  # what it was in the middle of is of no use
    model.wait_for_pass()  # and what is new of the text is read, before anybody asks
    model.open_gate()
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3)
    assert len(model.shapes) == 1 + 3  # no pass was made twice


@pytest.mark.parametrize("n_passes", [0, 2])
def test_after_a_hit_it_goes_on_whoever_sets_out(
    model: Gated, ahead: DraftAhead, n_passes: int
) -> None:
    text = accepted(ahead, model, n_passes)
    ahead.set_out(Ask(0, text, 3))
    assert not ahead._walk.called_back  # what it drafts now is of use
    model.shapes.clear()
    model.open_gate()
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3)
    assert len(model.shapes) <= 4 - n_passes  # the rest of the guess and of the draft


def test_drawn_text_is_guessed_with_the_noise_of_its_place(model: Gated, ahead: DraftAhead) -> None:
    drawn = Sampling(temperature=1.0, seed=7, repeat_penalty=1.2)
    text = [1, 2, 3]
    (draft,) = ahead.propose([Ask(0, text, 3, sampling=drawn, position=5)])
    ahead.ahead([Further(0, text, 3, 3)])
    alone = DraftModel(ScriptedModel(LOGITS, N_VOCAB), DraftLimits(frozenset(), N_VOCAB, 32))
    (long,) = alone.propose([Ask(0, list(text), 7, sampling=drawn, position=5)])
    ahead.forget(1)
    while ahead.ready(0, text).n_tokens < 7:
        ahead.ahead([Further(0, text, 3, 3)])
    text += long.tokens[:4]
    (found,) = ahead.propose([Ask(0, text, 3, sampling=drawn, position=9)])
    assert draft.tokens == long.tokens[:3]
    assert found.tokens == long.tokens[4:] and found.n_ahead == 3


# -- prompts ------------------------------------------------------------------

PROMPT = [4, 5, 6, 7, 8, 9, 10, 11]
N_READS = 3  # passes over it: all but two tokens, and those one by one
N_FIRST = 2  # passes for the first draft, its guess of the target's token apart
LONG = [12] * 70


def drafted_for(ahead: DraftAhead, seq_id: int = 0) -> None:
    """An answer that was drafted ahead for, so that the next prompt is worth reading."""
    ahead.propose([Ask(seq_id, [1, 2, 3], 2)])
    ahead.ahead([Further(seq_id, [1, 2, 3], 2, 2)])
    ahead.finish(seq_id, [1, 2, 3])
    ahead.forget(seq_id)


def begin_reading(ahead: DraftAhead, model: Gated, prompt: list[int] = PROMPT) -> None:
    """The drafter reads a prompt: its first pass has begun and waits."""
    drafted_for(ahead)
    model.shapes.clear()
    model.gated = True
    ahead.read_along(Ask(0, prompt, 0))
    model.wait_for_pass()


def test_a_prompt_is_not_read_along_before_an_answer_was_drafted_ahead_for(
    model: Gated, ahead: DraftAhead
) -> None:
    ahead.read_along(Ask(0, PROMPT, 0))
    ahead.propose([Ask(1, [1, 2, 3], 2)])
    ahead.finish(1, [1, 2, 3])
    ahead.read_along(Ask(0, PROMPT, 0))
    assert not any(name.startswith(THREAD) for name in model.threads)
    assert ahead.n_unread(0, PROMPT) == len(PROMPT)


@pytest.mark.parametrize("n_read", range(N_READS + N_FIRST))
@pytest.mark.parametrize("right", [True, False])
def test_whenever_a_prompt_ends_the_first_draft_is_what_the_drafter_would_draft_alone(
    model: Gated, ahead: DraftAhead, n_read: int, right: bool
) -> None:
    """So many of its passes over the prompt and for the first draft have ended when the target's
    has; the target's own token is the one guessed or another."""
    text = [*PROMPT]
    begin_reading(ahead, model, text)
    draft_on(model, n_read)
    (guess,) = greedy(PROMPT, 1)
    text.append(guess if right else other(guess))
    model.open_gate()
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3)
    assert model.cache[0] == [*text, *found.tokens[:-1]]
    assert found.n_ahead >= n_read - N_READS if right else found.n_ahead == 0


def test_an_answers_first_draft_is_made_while_its_prompt_is_read(
    model: Gated, ahead: DraftAhead
) -> None:
    drafted_for(ahead)
    text = [*PROMPT]
    ahead.read_along(Ask(0, text, 0))
    ahead._own().call(lambda: None)
    text += greedy(PROMPT, 1)
    n_before = len(model.shapes)
    (found,) = ahead.propose([Ask(0, text, N_FIRST)])
    assert list(found.tokens) == greedy(text, N_FIRST) and found.n_ahead == N_FIRST
    assert len(model.shapes) == n_before


def test_a_first_token_that_was_not_guessed_ends_its_draft(model: Gated, ahead: DraftAhead) -> None:
    text = [*PROMPT]
    begin_reading(ahead, model, text)
    draft_on(model, N_READS)
    text.append(other(greedy(PROMPT, 1)[0]))
    model.open_gate()
    ahead._own().call(lambda: None)
    assert model.shapes == [(len(PROMPT) - 2,), *[(1,)] * N_READS]


def test_a_draft_whose_tokens_are_bound_to_their_ask_is_not_made_before_it(
    model: Gated, ahead: DraftAhead
) -> None:
    drafted_for(ahead)
    model.shapes.clear()
    ahead.read_along(Ask(0, PROMPT, 0, rejection=True))
    ahead._own().call(lambda: None)
    assert len(model.shapes) == N_READS and ahead.drafter.chain(0) is None


def test_a_prompt_that_was_read_leaves_one_token_and_the_shape_of_drafts(
    model: Gated, ahead: DraftAhead
) -> None:
    begin_reading(ahead, model)
    draft_on(model, N_READS - 1)
    model.open_gate()
    ahead._own().call(lambda: None)  # the last pass has ended
    assert model.shapes == [(len(PROMPT) - 2,), *[(1,)] * (2 + N_FIRST)]
    text = [*PROMPT, other(greedy(PROMPT, 1)[0])]
    assert ahead.n_unread(0, text) == 1
    ahead.propose([Ask(0, text, 1)])
    assert model.shapes[N_READS + N_FIRST :] == [(1,)]


def test_what_is_not_read_yet_is_told(model: Gated, ahead: DraftAhead) -> None:
    begin_reading(ahead, model)
    assert ahead.n_unread(0, [*PROMPT, 3]) == len(PROMPT) + 1
    draft_on(model, 1)
    assert ahead.n_unread(0, [*PROMPT, 3]) == 3


def test_what_reading_took_is_told_once(model: Gated, ahead: DraftAhead) -> None:
    begin_reading(ahead, model)
    draft_on(model, 1)
    assert ahead.ready(0, PROMPT).read_s > 0
    assert ahead.ready(0, PROMPT).read_s == 0


def test_a_long_prompt_is_read_in_passes_of_the_batch(model: Gated, ahead: DraftAhead) -> None:
    drafted_for(ahead)
    model.shapes.clear()
    ahead.read_along(Ask(0, LONG, 0))
    ahead._own().call(lambda: None)
    assert model.shapes == [(32,), (32,), (4,), *[(1,)] * (2 + N_FIRST)]


def test_a_prompt_longer_than_the_drafters_context_is_left_alone(
    model: Gated, ahead: DraftAhead
) -> None:
    drafted_for(ahead)
    model.shapes.clear()
    ahead.read_along(Ask(0, [1] * model.context_size, 0))
    ahead._own().call(lambda: None)
    assert not model.shapes


def call_meanwhile(ahead: DraftAhead, model: Gated, call: Callable[[], object]) -> None:
    """While a pass over a text is under way, which ends once it was called back."""
    reading = ahead._readings[0]
    caller = threading.Thread(target=call)
    caller.start()
    while not reading.called_back:  # it has asked; the pass is still under way
        assert caller.is_alive()
    model.open_gate()
    caller.join(PATIENCE_S)
    assert not caller.is_alive()


@pytest.mark.parametrize("call", ["forget", "shift", "close", "propose"])
def test_whoever_asks_something_of_it_waits_for_one_pass_over_a_prompt_at_most(
    model: Gated, ahead: DraftAhead, call: str
) -> None:
    begin_reading(ahead, model, LONG)
    call_meanwhile(ahead, model, asking(ahead, call, 1))
    assert model.shapes[:1] == [(32,)] and (32,) not in model.shapes[1:]


def test_an_answer_that_is_cancelled_is_read_for_no_further(
    model: Gated, ahead: DraftAhead
) -> None:
    begin_reading(ahead, model, LONG)
    ahead.finish(0, LONG)
    model.open_gate()
    ahead._own().call(lambda: None)
    assert model.shapes == [(32,)]


def test_told_of_a_prompt_again_it_goes_on_where_it_was_called_back(
    model: Gated, ahead: DraftAhead
) -> None:
    begin_reading(ahead, model, LONG)
    ahead._stop_reading()  # as by a draft for somebody else
    model.open_gate()
    ahead._own().call(lambda: None)
    ahead.read_along(Ask(0, LONG, 0))
    ahead.read_along(Ask(0, LONG, 0))  # under way: nothing to add
    ahead._own().call(lambda: None)
    assert model.shapes == [(32,), (32,), (4,), *[(1,)] * (2 + N_FIRST)]


def test_drafting_ahead_comes_before_a_prompt(model: Gated, ahead: DraftAhead) -> None:
    drafted_for(ahead)
    ahead.propose([Ask(1, [1, 2, 3], 2)])
    model.shapes.clear()
    model.gated = True
    ahead.read_along(Ask(0, LONG, 0))
    model.wait_for_pass()
    ahead.ahead([Further(1, [1, 2, 3], 2, 2)])
    model.open_gate()
    ahead._own().call(lambda: None)
    assert model.shapes == [(32,), *[(1,)] * 3]


def test_a_pass_over_a_prompt_that_fails_is_told_with_the_next_draft_and_then_forgotten(
    model: Gated, ahead: DraftAhead
) -> None:
    begin_reading(ahead, model)
    model.fail_next = 1
    model.open_gate()
    ahead._own().call(lambda: None)
    ahead.read_along(Ask(0, PROMPT, 0))  # nobody reads on before it is told
    ahead._own().call(lambda: None)
    assert not model.shapes
    text = [*PROMPT, 3]
    assert ahead.n_unread(0, text) == len(text)
    with pytest.raises(DecodeError, match="scripted"):
        ahead.propose([Ask(0, text, 3)])
    (found,) = ahead.propose([Ask(0, text, 3)])
    assert list(found.tokens) == greedy(text, 3)


def test_after_a_prompt_that_was_read_in_vain_the_next_is_left_alone(
    model: Gated, ahead: DraftAhead
) -> None:
    drafted_for(ahead)
    ahead.read_along(Ask(0, PROMPT, 0))
    ahead.finish(0, PROMPT)  # nothing was drafted ahead for it
    ahead.forget(0)
    model.shapes.clear()
    ahead.read_along(Ask(0, PROMPT, 0))
    ahead._own().call(lambda: None)
    assert not model.shapes


def test_an_answer_it_had_no_part_in_says_nothing(model: Gated, ahead: DraftAhead) -> None:
    drafted_for(ahead)
    ahead.finish(1, [1, 2])  # of a request without drafts
    model.shapes.clear()
    ahead.read_along(Ask(0, PROMPT, 0))
    ahead._own().call(lambda: None)
    assert len(model.shapes) == N_READS + N_FIRST


def look_at(ahead: DraftAhead, model: Gated, text: list[int], window: int = 4) -> None:
    """The drafter makes a draft beside passes: its first one has begun and waits."""
    model.gated = True
    ahead.look(Ask(0, text, window, keep_going=lambda _sure: True))
    model.wait_for_pass()


def seen(ahead: DraftAhead, seq_id: int = 0) -> Draft:
    """What a look has made, as soon as it has ended."""
    ahead._own().call(lambda: None)
    draft = ahead.looked(seq_id)
    assert draft is not None
    return draft


def test_a_look_is_made_beside_the_target_and_told_once_it_is_made(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    look_at(ahead, model, text)
    assert ahead.looked(0) is None
    model.open_gate()
    draft = seen(ahead)
    assert list(draft.tokens) == greedy(text, 4)
    assert len(draft.confidence) == 4


def test_a_look_that_is_behind_the_text_is_made_to_its_end_as_long_as_it_agrees(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    look_at(ahead, model, text)
    expected = greedy(text, 4)
    text += expected[:2]  # the target was faster than the drafter read
    model.open_gate()
    assert list(seen(ahead).tokens) == expected


def test_a_look_ends_where_the_text_says_something_else(model: Gated, ahead: DraftAhead) -> None:
    text = [1, 2, 3]
    look_at(ahead, model, text)
    expected = greedy(text, 4)
    text.append(other(expected[0]))
    model.open_gate()
    assert list(seen(ahead).tokens) == expected[:1]


def test_whoever_asks_for_a_draft_waits_for_one_pass_of_a_look_at_most(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3]
    look_at(ahead, model, text, window=32)
    call_meanwhile(ahead, model, lambda: ahead.propose([Ask(0, text, 2)]))
    assert len(model.shapes) <= 1 + 3  # the look's, what is missing, two tokens


def test_a_look_at_drafts_that_are_bound_to_their_ask_shows_nothing(
    model: Gated, ahead: DraftAhead
) -> None:
    ahead.look(Ask(0, [1, 2, 3], 4, rejection=True))
    assert ahead.looked(0) == NO_DRAFT
    assert not model.threads


def test_what_was_read_for_a_look_is_not_missing_from_the_next_draft(
    model: Gated, ahead: DraftAhead
) -> None:
    text = [1, 2, 3, 4, 5]
    ahead.look(Ask(0, text, 4, keep_going=lambda _sure: True))
    seen(ahead)
    assert ahead.n_unread(0, text) <= 1

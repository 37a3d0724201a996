"""The draft model keeps its cache in step with any sequence, and wastes no pass on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding.sampling import Sampling, draw
from parlay.decoding.span import Span
from parlay.decoding.verification import verify
from parlay.errors import DecodeError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits, confidence
from parlay.proposers.proposer import Ask, Worth
from tests import tiny_models
from tests.scripted import Logits, ScriptedModel, hashed_logits

N_VOCAB = 16
LOGITS = hashed_logits(N_VOCAB)
TOKENS = st.integers(0, N_VOCAB - 1)


class Steady(ScriptedModel):
    """A model on a GPU: a pass of a new shape costs extra."""

    steady = True


def drafter(
    model: ScriptedModel, *, ends: frozenset[int] = frozenset(), n_batch: int = 32
) -> DraftModel:
    return DraftModel(model, DraftLimits(ends, N_VOCAB, n_batch))


def greedy(logits: Logits, tokens: Sequence[int], n: int) -> tuple[int, ...]:
    text = list(tokens)
    for _ in range(n):
        text.append(int(logits(text)[:N_VOCAB].argmax()))
    return tuple(text[len(tokens) :])


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


# -- any history -------------------------------------------------------------------------------


@dataclass
class Text:
    """A sequence as the runtime would grow it; it remembers its last draft."""

    tokens: list[int]
    draft: tuple[int, ...] = ()


EVENTS = st.one_of(
    st.tuples(st.just("accept"), st.integers(0, 6)),
    st.tuples(st.just("pause"), st.integers(1, 12)),
    st.tuples(st.just("forget"), st.integers(0, 20)),
    st.tuples(st.just("shift"), st.integers(0, 10)),
    st.tuples(st.just("finish"), st.just(0)),
)
STEPS = st.tuples(st.integers(0, 1), EVENTS, st.sampled_from([0, 1, 3, 6]))


@settings(max_examples=100)
@given(
    steps=st.lists(STEPS, min_size=4, max_size=20),
    steady=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whatever_happens_the_cache_is_a_prefix_of_the_text_and_nothing_is_decoded_twice(
    steps: list[tuple[int, tuple[str, int], int]], steady: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    model = (Steady if steady else ScriptedModel)(LOGITS, N_VOCAB, context_size=400)
    proposer = drafter(model)
    texts = {i: Text([i + 1, 2, 3]) for i in range(2)}
    for seq_id, (event, n), window in steps:
        happen(proposer, seq_id, texts[seq_id], event, n, rng)
        if window:  # else the proposer hears nothing of what was said
            check_draft(model, proposer, seq_id, texts[seq_id], window)
    for seq_id, text in texts.items():  # and after all of it the next draft is right
        check_draft(model, proposer, seq_id, text, 3)


def check_draft(
    model: ScriptedModel, proposer: DraftModel, seq_id: int, text: Text, window: int
) -> None:
    known = common(model.cache.get(seq_id, []), text.tokens[:-1])
    model.shapes.clear()
    (draft,) = proposer.draft([Ask(seq_id, text.tokens, window)])
    drafted = greedy(LOGITS, text.tokens, window)
    assert draft.tokens == drafted
    # The cache holds the text and the draft but its last token, which nobody has needed yet.
    assert model.cache[seq_id] == [*text.tokens, *drafted[:-1]]
    assert sum(sum(shape) for shape in model.shapes) == len(text.tokens) - known + window - 1
    text.draft = draft.tokens


def happen(
    proposer: DraftModel, seq_id: int, text: Text, event: str, n: int, rng: np.random.Generator
) -> None:
    def some(n: int) -> list[int]:
        return [int(t) for t in rng.integers(0, N_VOCAB, n)]

    if event == "accept":  # so much of the last draft, and one token of the target's own
        text.tokens += [*text.draft[:n], *some(1)]
    elif event == "pause":  # the target goes on alone
        text.tokens += some(n)
    elif event == "forget":  # another text in the same slot, with a start in common
        text.tokens = [*text.tokens[: min(n, len(text.tokens))], *some(2)]
        proposer.open(seq_id, text.tokens, 0)
    elif event == "shift":
        keep = min(n, len(text.tokens) - 1)
        discard = (len(text.tokens) - 1 - keep) // 2
        if discard:
            del text.tokens[keep : keep + discard]
            proposer.cut(seq_id, keep, discard)
    else:
        proposer.finish(seq_id, text.tokens)
    text.draft = ()


def next_shapes(verdict: Callable[[tuple[int, ...]], list[int]]) -> list[tuple[int, ...]]:
    """The passes of a second draft, after the target's verdict on the first one."""
    model = ScriptedModel(LOGITS, N_VOCAB)
    proposer = drafter(model)
    tokens = [1, 2, 3]
    (draft,) = proposer.draft([Ask(0, tokens, 4)])
    model.shapes.clear()
    proposer.draft([Ask(0, [*tokens, *verdict(draft.tokens)], 4)])
    return model.shapes


def test_a_fully_accepted_draft_costs_the_bonus_and_its_last_token_only() -> None:
    assert next_shapes(lambda draft: [*draft, 9]) == [(2,), (1,), (1,), (1,)]


def test_a_rejected_draft_costs_the_recovered_token_only() -> None:
    assert next_shapes(lambda draft: [draft[0], (draft[1] + 1) % N_VOCAB]) == [(1,)] * 4


# -- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_new", [1, 2, 3, 4])
def test_a_steady_model_sees_single_rows_only_when_it_has_little_to_catch_up_with(
    n_new: int,
) -> None:
    model = Steady(LOGITS, N_VOCAB)
    proposer = drafter(model)
    tokens = [1, 2, 3]
    proposer.draft([Ask(0, tokens, 1)])
    model.shapes.clear()
    tokens += [(greedy(LOGITS, tokens, 1)[0] + 1) % N_VOCAB] * n_new
    proposer.draft([Ask(0, tokens, 4)])
    assert model.shapes == [(1,)] * (n_new + 3)


def test_a_steady_model_reads_a_long_text_in_bulk_and_then_goes_on_in_single_rows() -> None:
    model = Steady(LOGITS, N_VOCAB)
    drafter(model, n_batch=16).draft([Ask(0, [i % N_VOCAB for i in range(50)], 4)])
    assert model.shapes == [(16,), (16,), (16,), (1,), (1,), (1,), (1,), (1,)]


def test_any_other_model_reads_what_it_lacks_in_one_pass() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB)
    drafter(model).draft([Ask(0, list(range(10)), 3)])
    assert model.shapes == [(10,), (1,), (1,)]


@pytest.mark.parametrize("model_type", [ScriptedModel, Steady])
def test_no_pass_is_larger_than_the_batch(model_type: type[ScriptedModel]) -> None:
    model = model_type(LOGITS, N_VOCAB, context_size=200)
    texts = {i: [i, *(j % N_VOCAB for j in range(60 + 5 * i))] for i in range(3)}
    drafts = drafter(model, n_batch=16).draft([Ask(i, text, 2) for i, text in texts.items()])
    assert max(sum(shape) for shape in model.shapes) <= 16
    assert [d.tokens for d in drafts] == [greedy(LOGITS, text, 2) for text in texts.values()]


def test_several_sequences_draft_in_one_pass_per_token() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB)
    texts = {i: [i, 1, 2] for i in range(3)}
    drafts = drafter(model).draft([Ask(i, texts[i], 2 + i) for i in texts])
    assert model.shapes == [(3, 3, 3), (1, 1, 1), (1, 1), (1,)]
    assert [d.tokens for d in drafts] == [greedy(LOGITS, texts[i], 2 + i) for i in texts]


@pytest.mark.parametrize(("lacking", "width"), [((1, 1, 1), 1), ((1, 2, 1), 2), ((4, 1, 3), 4)])
def test_several_that_lack_little_on_a_device_are_read_in_one_pass_of_equal_rows(
    lacking: tuple[int, ...], width: int
) -> None:
    model = Steady(LOGITS, N_VOCAB)
    proposer = drafter(model)
    texts = {i: [i, 1, 2] for i in range(3)}
    proposer.draft([Ask(i, text, 1) for i, text in texts.items()])
    model.shapes.clear()
    for i, n in enumerate(lacking):
        texts[i] += [(greedy(LOGITS, texts[i], 1)[0] + 1) % N_VOCAB] * n
    drafts = proposer.draft([Ask(i, text, 3) for i, text in texts.items()])
    assert model.shapes == [(width,) * 3, (1,) * 3, (1,) * 3]
    assert [d.tokens for d in drafts] == [greedy(LOGITS, text, 3) for text in texts.values()]
    for i, text in texts.items():
        assert model.cache[i] == [*text, *drafts[i].tokens[:-1]]


def test_sequences_go_into_a_pass_in_the_order_of_their_ids_and_drafts_come_as_asked() -> None:
    class Ordered(ScriptedModel):
        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            ids = [span.seq_id for span in spans]
            assert ids == sorted(ids), "llama.cpp would split this pass"
            return super().decode(spans)

    texts = {2: [5, 1, 2], 0: [6, 1, 2], 1: [7, 1]}
    drafts = drafter(Ordered(LOGITS, N_VOCAB)).draft([Ask(i, t, 3) for i, t in texts.items()])
    assert [d.tokens for d in drafts] == [greedy(LOGITS, t, 3) for t in texts.values()]


# -- where a draft ends ------------------------------------------------------------------------


@given(n_tokens=st.integers(1, 20), window=st.integers(0, 20))
def test_a_window_that_does_not_fit_into_the_context_gives_no_draft(
    n_tokens: int, window: int
) -> None:
    model = ScriptedModel(LOGITS, N_VOCAB, context_size=20)
    (draft,) = drafter(model).draft([Ask(0, [i % N_VOCAB for i in range(n_tokens)], window)])
    fits = n_tokens + window <= 20
    assert len(draft.tokens) == (window if fits else 0)
    assert draft.proposer == "model"


def test_a_sequence_without_room_does_not_keep_others_from_drafting() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB, context_size=20)
    full, short = [1] * 20, [1, 2]
    drafts = drafter(model).draft([Ask(0, full, 2), Ask(1, short, 2), Ask(2, short, 0)])
    assert [d.tokens for d in drafts] == [(), greedy(LOGITS, short, 2), ()]
    assert set(model.cache) == {1}


def always(drafted: Mapping[int, Sequence[float]]) -> Collection[int]:
    return drafted.keys()


def test_of_several_drafts_those_go_on_whose_next_token_is_worth_it() -> None:
    model, asked = ScriptedModel(LOGITS, N_VOCAB), list[dict[int, int]]()

    def worth(drafted: Mapping[int, Sequence[float]]) -> list[int]:
        asked.append({seq_id: len(each) for seq_id, each in drafted.items()})
        return [seq_id for seq_id, each in drafted.items() if len(each) <= seq_id]

    drafts = drafter(model).draft([Ask(i, [i, 1, 2], 6) for i in range(3)], worth)
    assert [len(d.tokens) for d in drafts] == [1, 2, 3]
    assert model.shapes == [(3, 3, 3), (1, 1), (1,)]
    assert asked == [{0: 1, 1: 1, 2: 1}, {1: 2, 2: 2}, {2: 3}]


@given(n=st.integers(1, 5), window=st.integers(1, 8))
def test_drafting_stops_where_the_next_token_is_not_worth_it(n: int, window: int) -> None:
    model = ScriptedModel(LOGITS, N_VOCAB)
    asked: list[int] = []

    def worth(drafted: Mapping[int, Sequence[float]]) -> list[int]:
        asked.append(len(drafted[0]))
        return [0] if len(drafted[0]) < n else []

    (draft,) = drafter(model).draft([Ask(0, [1, 2], window)], worth)
    assert draft.tokens == greedy(LOGITS, [1, 2], min(n, window))
    assert asked == list(range(1, min(n, window - 1) + 1))
    assert len(model.shapes) == len(draft.tokens)  # no pass for a token that is not drafted


@pytest.mark.parametrize("worth", [None, always])
def test_drafting_stops_after_an_end_of_text(worth: Worth | None) -> None:
    text = greedy(LOGITS, [1, 2], 6)
    end = text[2]
    model = ScriptedModel(LOGITS, N_VOCAB)
    (draft,) = drafter(model, ends=frozenset({end})).draft([Ask(0, [1, 2], 6)], worth)
    assert draft.tokens == text[: text.index(end) + 1]


def test_ids_beyond_the_targets_vocabulary_are_never_drafted() -> None:
    padded = hashed_logits(N_VOCAB + 40)
    model = ScriptedModel(padded, N_VOCAB + 40)
    proposer = drafter(model)
    for sampling in (Sampling(), Sampling(temperature=1.5, seed=3)):
        (draft,) = proposer.draft([Ask(0, [1, 2], 8, sampling=sampling)])
        assert max(draft.tokens) < N_VOCAB
        assert len(draft.tokens) == 8


# -- faults ------------------------------------------------------------------------------------


class Faulty(ScriptedModel):
    """Writes to its cache and then fails, at the given passes."""

    def __init__(self, faults: set[int]) -> None:
        super().__init__(LOGITS, N_VOCAB)
        self.faults = faults
        self.n_passes = 0

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        rows = super().decode(spans)
        self.n_passes += 1
        if self.n_passes in self.faults:
            raise DecodeError("scripted failure", code=-3)
        return rows


@pytest.mark.parametrize("fault", [1, 2, 4, 6])
def test_after_a_failed_pass_every_cache_starts_over_and_drafts_are_right_again(fault: int) -> None:
    model = Faulty({fault})
    proposer = drafter(model)
    texts = {0: [1, 2, 3], 1: [4, 5, 6]}
    asks = [Ask(i, text, 3) for i, text in texts.items()]
    with pytest.raises(DecodeError):
        for _ in range(3):
            proposer.draft(asks)
            for text in texts.values():
                text += [7, 7]
    assert all(model.length(i) == 0 for i in texts)
    drafts = proposer.draft(asks)
    assert [d.tokens for d in drafts] == [greedy(LOGITS, text, 3) for text in texts.values()]


def test_closing_the_proposer_closes_its_model() -> None:
    model = ScriptedModel(LOGITS, N_VOCAB)
    drafter(model).close()
    assert model.closed


# -- sampling ----------------------------------------------------------------------------------


def perturbed(seed: int, noise: float) -> Logits:
    own = hashed_logits(N_VOCAB, noise, seed)
    return lambda history: LOGITS(history) + own(history)


def acceptance(sampling: Sampling, drafted_with: Sampling) -> float:
    """Share of draft tokens accepted over many texts, drafter near the target but not equal."""
    proposer = drafter(ScriptedModel(perturbed(5, 0.7), N_VOCAB))
    accepted = drafted = 0
    for i in range(150):
        tokens = [i % N_VOCAB, i // N_VOCAB, 3]
        proposer.open(0, tokens, 0)
        (draft,) = proposer.draft([Ask(0, tokens, 3, sampling=drafted_with, position=i)])
        p = np.array([LOGITS([*tokens, *draft.tokens[:j]]) for j in range(4)])
        verdict = verify(draft, p, sampling, tokens, i, ())
        accepted += verdict.n_accepted
        drafted += verdict.n_drafted
    return accepted / drafted


def test_drawing_with_the_targets_noise_raises_acceptance_over_a_greedy_draft() -> None:
    sampling = Sampling(temperature=0.8, seed=11)
    same_noise = acceptance(sampling, sampling)
    assert same_noise > acceptance(sampling, Sampling()) + 0.05
    # Two unrelated draws agree less often still: this is what the shared noise is for.
    assert same_noise > acceptance(sampling, Sampling(temperature=0.8, seed=12)) + 0.1


def test_drafts_for_coupled_verification_are_the_draws_the_target_would_make() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, presence_penalty=4.0, seed=3)
    tokens = [1, 2, 2]
    model = ScriptedModel(LOGITS, N_VOCAB)
    (draft,) = drafter(model).draft([Ask(0, tokens, 5, sampling=sampling, position=17)])
    text = list(tokens)
    for j in range(5):
        text.append(draw(LOGITS(text), sampling, text, 17 + j))
    assert draft.tokens == tuple(text[3:])


@given(
    row=st.lists(st.floats(-500, 500, width=32), min_size=2, max_size=20).map(
        lambda values: np.array(values, np.float32)
    ),
    token=st.integers(0, 19),
    temperature=st.floats(0, 3),
)
def test_confidence_is_a_probability_and_leaves_the_row_as_it_was(
    row: NDArray[np.float32], token: int, temperature: float
) -> None:
    token %= len(row)
    before = row.copy()
    found = confidence(row, token, temperature)
    assert 0 < found <= 1
    np.testing.assert_array_equal(row, before)
    if row.argmax() == token:
        assert found >= 0.5


def test_confidence_is_the_odds_against_the_runner_up() -> None:
    row = np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    assert confidence(row, 0, 1.0) == pytest.approx(0.6 / 0.9, abs=1e-6)
    assert confidence(row, 1, 1.0) == pytest.approx(0.3 / 0.9, abs=1e-6)
    assert confidence(row, 0, 0.0) == confidence(row, 0, 1.0)
    assert confidence(row, 0, 0.5) > confidence(row, 0, 1.0)


def test_there_is_one_confidence_per_drafted_token_where_someone_asks_for_them() -> None:
    proposer = drafter(ScriptedModel(LOGITS, N_VOCAB))
    (draft,) = proposer.draft([Ask(0, [1, 2], 6)], always)
    assert len(draft.confidence) == 6
    assert all(0.5 <= c <= 1 for c in draft.confidence)  # greedy: never behind the runner-up
    (draft,) = proposer.draft([Ask(0, [1, 2], 6)])
    assert draft.confidence == ()


# -- real models -------------------------------------------------------------------------------


@contextmanager
def contexts(path: Path, n: int, cache_type_k: str = "auto") -> Iterator[list[Context]]:
    with Model(path, ModelSettings()) as model:
        made = [
            Context(model, ContextSettings(256, 2, 64, threads=1, cache_type_k=cache_type_k))
            for _ in range(n)
        ]
        yield made
        for context in made:
            context.close()


def own_continuation(context: Context, tokens: Sequence[int], n: int) -> tuple[int, ...]:
    """What the model says by itself, token after token from an empty cache."""
    context.clear(0)
    text: list[int] = []
    row = context.decode([Span(0, 0, list(tokens), 1)])[0][-1]
    for i in range(n):
        text.append(int(row.argmax()))
        row = context.decode([Span(0, len(tokens) + i, text[-1:], 1)])[0][-1]
    return tuple(text)


@pytest.mark.parametrize("write", [tiny_models.write_llama, tiny_models.write_mamba])
def test_a_real_drafter_drafts_its_own_continuation_after_any_acceptance(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    # Q8_0: passes of several rows equal single ones, so nothing may differ.
    path = write(tmp_path / "drafter.gguf", ftype="q8_0")
    rng = np.random.default_rng(0)
    with contexts(path, 2) as (context, reference):
        proposer = DraftModel(context, DraftLimits(frozenset(), context.n_vocab, 64))
        texts = {0: [5, 6, 7, 8], 1: [90, 91, 92]}
        for accepted in (0, 4, 2, 1, 4):
            drafts = proposer.draft([Ask(i, text, 4) for i, text in texts.items()])
            for text, draft in zip(texts.values(), drafts, strict=True):
                assert draft.tokens == own_continuation(reference, text, 4)
                text += [*draft.tokens[:accepted], int(rng.integers(3, 200))]
        proposer.open(0, (), 0)
        texts[0] = [*texts[0][:6], 50, 51]
        (draft,) = proposer.draft([Ask(0, texts[0], 4)])
        assert draft.tokens == own_continuation(reference, texts[0], 4)


@pytest.mark.parametrize("name", tiny_models.RECURRENT)
def test_a_recurrent_drafter_reads_again_only_what_came_after_its_draft_began(
    name: str, tmp_path: Path
) -> None:
    path = tiny_models.WRITERS[name](tmp_path / "drafter.gguf", ftype="q8_0")
    settings = ContextSettings(256, 2, 64, threads=1, n_snapshots=1, prompt_cache_bytes=1 << 24)
    with Model(path, ModelSettings()) as model, closing(Context(model, settings)) as context:
        proposer = DraftModel(context, DraftLimits(frozenset(), context.n_vocab, 64))
        text = [int(t) for t in np.random.default_rng(2).integers(3, 200, 60)]
        for accepted in (0, 4, 2):
            (draft,) = proposer.draft([Ask(0, text, 4)])
            text += [*draft.tokens[:accepted], 9]
        n_rows = _counting(context)
        (draft,) = proposer.draft([Ask(0, text, 4)])
        assert len(draft.tokens) == 4
        # The three tokens since the last draft began, then one by one.
        assert n_rows == [3, 1, 1, 1]


def _counting(context: Context) -> list[int]:
    """Rows of every pass from here on."""
    found: list[int] = []
    decode = context.decode

    def counted(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found.append(sum(len(span.tokens) for span in spans))
        return decode(spans)

    context.decode = counted  # type: ignore[method-assign]
    return found


def slid(proposer: DraftModel) -> list[int]:
    """A text that was drafted for twice, and whose tokens 4 to 13 went."""
    tokens = [int(t) for t in np.random.default_rng(1).integers(3, 200, 40)]
    proposer.draft([Ask(0, tokens, 4)])
    tokens.append(5)
    proposer.draft([Ask(0, tokens, 4)])
    del tokens[4:14]
    proposer.cut(0, 4, 10)
    return tokens


def test_a_real_drafter_goes_on_after_its_sequence_slid(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "drafter.gguf", ftype="q8_0")
    with contexts(path, 1, cache_type_k="f16") as (context,):
        proposer = DraftModel(context, DraftLimits(frozenset(), context.n_vocab, 64))
        tokens = slid(proposer)
        assert context.length(0) == len(tokens) + 3  # what it had drafted has moved along
        (draft,) = proposer.draft([Ask(0, tokens, 4)])
        assert len(draft.tokens) == 4
        assert context.length(0) == len(tokens) + 3


@pytest.mark.parametrize("write", [tiny_models.write_llama, tiny_models.write_mamba])
def test_a_drafter_whose_cache_cannot_slide_reads_the_text_again(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(tmp_path / "drafter.gguf", ftype="q8_0")
    with contexts(path, 2, cache_type_k="bf16") as (context, reference):
        assert not context.can_shift
        proposer = DraftModel(context, DraftLimits(frozenset(), context.n_vocab, 64))
        tokens = slid(proposer)
        (draft,) = proposer.draft([Ask(0, tokens, 4)])
        assert draft.tokens == own_continuation(reference, tokens, 4)

"""Going back on tiny recurrent and hybrid models: snapshots, copies, marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.decoding.span import Span
from parlay.errors import BadRequest, DecodeError
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.undo import Rollback
from tests import tiny_models
from tests.llama.contexts import Open, cold, feed, opening

BOUNDED = ["lfm2", "qwen35", "qwen35moe", "nemotron_h"]
RECURRENT = [*BOUNDED, "mamba"]
TEXT = [int(t) for t in np.random.default_rng(0).integers(3, 250, 48)]
OTHER = [int(t) for t in np.random.default_rng(1).integers(3, 250, 48)]
# A wrong state is off by ten times as much (see test_context.py).
NEAR = 0.15


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Model(write(folder / f"{name}.gguf"), ModelSettings()))
            for name, write in tiny_models.WRITERS.items()
        }


@pytest.fixture
def open_context(models: dict[str, Model]) -> Iterator[Open]:
    with opening(models, prompt_cache_bytes=1 << 24) as found:
        yield found


# -- what kind a model is ----------------------------------------------------------------------


@pytest.mark.parametrize("architecture", tiny_models.WRITERS)
def test_the_kind_of_rollback_is_found_by_trying(architecture: str, open_context: Open) -> None:
    kinds = dict.fromkeys(BOUNDED, Rollback.BOUNDED) | {"mamba": Rollback.CHECKPOINT}
    context = open_context(architecture, n_snapshots=3)
    assert context.rollback is kinds.get(architecture, Rollback.PARTIAL)
    free = {"mamba": 0} | dict.fromkeys(BOUNDED, 3)
    assert context.free_rollback == free.get(architecture, context.context_size)
    assert context.max_rollback == context.context_size


@pytest.mark.parametrize("architecture", RECURRENT)
def test_without_snapshots_states_are_copied(architecture: str, open_context: Open) -> None:
    assert open_context(architecture).rollback is Rollback.CHECKPOINT


def test_snapshots_that_do_not_come_back_right_are_not_believed(
    open_context: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parlay.llama import undo

    real = undo.Undo._cut

    def off_by_one(self: undo.Undo, seq_id: int, length: int) -> list[int]:
        C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        return [1, 1, 1][:length]  # another text of the right length

    monkeypatch.setattr(undo.Undo, "_cut", off_by_one)
    assert open_context("qwen35", n_snapshots=3).rollback is Rollback.CHECKPOINT
    monkeypatch.setattr(undo.Undo, "_cut", real)
    assert open_context("qwen35", n_snapshots=3).rollback is Rollback.BOUNDED


def test_more_snapshots_than_a_batch_holds_are_refused() -> None:
    with pytest.raises(BadRequest, match="64 snapshots"):
        ContextSettings(n_batch=64, n_snapshots=64)


# -- after a draft -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("architecture", BOUNDED)
def test_a_draft_is_taken_back_as_far_as_there_are_snapshots(
    architecture: str, kept: int, open_context: Open
) -> None:
    context = open_context(architecture, n_snapshots=3)
    feed(context, 0, TEXT[:10])
    feed(context, 0, TEXT[10:14], n_logits=4)
    busy = context.busy_s
    if kept < 4:
        context.truncate(0, 10 + kept)
    assert context.busy_s == busy  # nothing was read again
    expected = cold(context, [*TEXT[: 10 + kept], 77])
    np.testing.assert_allclose(feed(context, 0, [77])[0], expected, atol=NEAR)


def test_no_further_back_than_there_are_snapshots(open_context: Open) -> None:
    context = open_context("qwen35", n_snapshots=2)
    feed(context, 0, TEXT[:10])
    feed(context, 0, TEXT[10:16])  # not a draft: nobody will want to take more of it back
    with pytest.raises(DecodeError, match="no checkpoint reaches"):
        context.truncate(0, 12)


def test_a_draft_longer_than_there_are_snapshots_is_taken_back_by_a_copy(
    open_context: Open,
) -> None:
    context = open_context("qwen35", n_snapshots=2)
    feed(context, 0, TEXT[:10])
    feed(context, 0, TEXT[10:16], n_logits=6)
    context.truncate(0, 12)
    expected = cold(context, [*TEXT[:12], 77])
    np.testing.assert_allclose(feed(context, 0, [77])[0], expected, atol=NEAR)


def test_snapshots_of_an_earlier_pass_are_not_taken_for_this_ones(open_context: Open) -> None:
    context = open_context("qwen35", n_snapshots=8)
    feed(context, 0, TEXT[:10], n_logits=4)
    feed(context, 0, TEXT[10:12], n_logits=2)
    with pytest.raises(DecodeError, match="no checkpoint reaches"):
        context.truncate(0, 9)  # llama.cpp itself would have said yes, and been wrong


def test_a_second_cut_after_one_pass_is_refused(open_context: Open) -> None:
    context = open_context("qwen35", n_snapshots=8)
    feed(context, 0, TEXT[:10], n_logits=4)
    context.truncate(0, 9)
    with pytest.raises(DecodeError, match="no checkpoint reaches"):
        context.truncate(0, 8)


@pytest.mark.parametrize("architecture", BOUNDED)
def test_sequences_with_drafts_of_different_length_are_taken_back_too(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture, n_snapshots=4, n_sequences=4)
    for seq_id in (1, 0, 3):  # cells that are not in order of the sequences
        feed(context, seq_id, TEXT[seq_id : seq_id + 9])
    spans = [Span(s, 9, OTHER[s : s + n], n) for s, n in ((0, 2), (1, 4), (3, 4))]
    context.decode(spans)
    for span in spans:
        context.truncate(span.seq_id, 10)
    for span in spans:
        said = [*TEXT[span.seq_id : span.seq_id + 9], span.tokens[0], 77]
        row = feed(context, span.seq_id, [77])[0]
        np.testing.assert_allclose(row, cold(context, said), atol=NEAR)


@pytest.mark.parametrize("architecture", BOUNDED)
def test_snapshots_are_not_trusted_after_a_pass_that_moved_their_cells(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture, n_snapshots=4, n_sequences=5)
    for seq_id in (3, 0, 1, 2):  # the cut with 2 and 3 puts them where 0 was
        feed(context, seq_id, TEXT[seq_id : seq_id + 9])
    context.decode([Span(s, 9, OTHER[s : s + n], n) for s, n in ((0, 4), (2, 3), (3, 3))])
    context.truncate(0, 11)
    row = feed(context, 0, [77])[0]
    expected = feed(context, 4, [*TEXT[:9], *OTHER[:2], 77])[0]
    np.testing.assert_allclose(row, expected, atol=NEAR)


# -- marks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("n_snapshots", [0, 3])
@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_text_goes_on_from_a_mark(
    architecture: str, n_snapshots: int, lasting: bool, open_context: Open
) -> None:
    context = open_context(architecture, n_snapshots=n_snapshots)
    feed(context, 0, TEXT[:16])
    context.mark(0, lasting=lasting)
    feed(context, 0, TEXT[16:30])
    feed(context, 0, TEXT[30:33], n_logits=3)
    assert context.reusable(0, 15) == 0
    assert context.reusable(0, 20) == 16
    context.truncate(0, 16)
    expected = cold(context, [*TEXT[:16], 77])
    np.testing.assert_allclose(feed(context, 0, [77])[0], expected, atol=NEAR)


def test_a_mark_beyond_where_the_text_changed_is_gone(open_context: Open) -> None:
    context = open_context("qwen35")
    for end in (8, 16):
        feed(context, 0, TEXT[end - 8 : end])
        context.mark(0, lasting=True)
    context.truncate(0, 8)
    feed(context, 0, OTHER[:12])
    assert context.reusable(0, 17) == 8


def test_marks_are_bounded_in_number_and_bytes(open_context: Open) -> None:
    context = open_context("qwen35")
    for end in range(4, 44, 4):
        feed(context, 0, TEXT[end - 4 : end])
        context.mark(0, lasting=True)
    assert context.reusable(0, 24) == 0  # only the last four are left
    assert context.reusable(0, 28) == 28
    tight = open_context("qwen35", prompt_cache_bytes=2000)
    feed(tight, 0, TEXT[:8])
    tight.mark(0, lasting=True)
    feed(tight, 0, TEXT[8:16])
    assert tight.reusable(0, 12) == 0


def test_a_cleared_sequence_has_no_marks(open_context: Open) -> None:
    context = open_context("lfm2")
    feed(context, 0, TEXT[:8])
    context.mark(0)
    context.clear(0)
    feed(context, 0, OTHER[:12])
    assert context.reusable(0, 10) == 0


# -- whole sequences ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_snapshots", [0, 3])
@pytest.mark.parametrize("architecture", tiny_models.WRITERS)
def test_a_saved_sequence_goes_on_in_another_place_from_its_end_or_a_mark(
    architecture: str, n_snapshots: int, open_context: Open
) -> None:
    context = open_context(architecture, n_snapshots=n_snapshots)
    feed(context, 0, TEXT[:16])
    context.mark(0)
    feed(context, 0, TEXT[16:24])
    saved = context.save(0)
    assert saved.length == 24
    context.restore(1, saved)
    np.testing.assert_allclose(
        feed(context, 1, [77])[0], cold(context, [*TEXT[:24], 77]), atol=NEAR
    )
    kept = saved.reusable(20)
    slides = ("gemma3", "gpt_oss", "gemma4")  # a copy holds their window and no more
    assert kept == (16 if architecture in RECURRENT else 0 if architecture in slides else 20)
    assert context.reusable(1, 20) == kept
    if not kept:
        return
    for seq_id in (0, 1):  # also what stayed can go back there
        context.truncate(seq_id, kept)
        row = feed(context, seq_id, [78])[0]
        np.testing.assert_allclose(row, cold(context, [*TEXT[:kept], 78]), atol=NEAR)


# -- at random ---------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("draft"), st.integers(0, 2), st.integers(1, 5), st.integers(0, 4)),
        st.tuples(st.just("together"), st.integers(1, 4), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("mark"), st.integers(0, 2), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("return"), st.integers(0, 2), st.just(0), st.just(0)),
        st.tuples(st.just("clear"), st.integers(0, 2), st.just(0), st.just(0)),
    ),
    max_size=14,
)


@pytest.mark.parametrize(("architecture", "n"), [("qwen35", 3), ("nemotron_h", 0), ("lfm2", 2)])
def test_whatever_is_accepted_rejected_marked_or_dropped_the_state_is_that_of_the_text(
    architecture: str, n: int, models: dict[str, Model]
) -> None:
    wanted = ContextSettings(
        256, n_sequences=4, n_batch=64, threads=1, n_snapshots=n, prompt_cache_bytes=1 << 24
    )
    context = Context(models[architecture], wanted)

    @settings(max_examples=12, derandomize=True)
    @given(steps)
    def run(script: list[tuple[str, int, int, int]]) -> None:
        texts: dict[int, list[int]] = {s: list(TEXT[s : s + 4]) for s in range(3)}
        for s in range(4):
            context.clear(s)
        for s, text in texts.items():
            feed(context, s, text)
        for i, (what, *numbers) in enumerate(script):
            _take(context, texts, what, numbers, OTHER[i:] + TEXT)
        for s, text in texts.items():
            row = feed(context, s, [77])[0]
            context.clear(3)
            expected = feed(context, 3, [*text, 77])[-1]
            np.testing.assert_allclose(row, expected, atol=NEAR)

    try:
        run()
    finally:
        context.close()


def _take(
    context: Context, texts: dict[int, list[int]], what: str, numbers: list[int], source: list[int]
) -> None:
    """One step of the script, on the context and on the texts."""
    a, b, c = numbers
    if what == "draft":
        _round(context, texts, [(a, source[: 1 + b], c)])
    elif what == "together":
        ends = [(0, source[: a + 1], b), (1, source[1 : 1 + c + 1], 0), (2, source[2:4], 1)]
        _round(context, texts, ends)
    elif what == "mark":
        context.mark(a, lasting=bool(b))
    elif what == "return":
        kept = context.reusable(a, len(texts[a]) - 1)
        if kept:
            context.truncate(a, kept)
            del texts[a][kept:]
    else:
        context.clear(a)
        texts[a] = source[:3]
        feed(context, a, texts[a])


def _round(
    context: Context, texts: dict[int, list[int]], drafts: list[tuple[int, list[int], int]]
) -> None:
    """One pass: the first token of each draft holds, and so many of the others."""
    context.decode([Span(s, len(texts[s]), tokens, len(tokens)) for s, tokens, _ in drafts])
    for s, tokens, n in drafts:
        held = tokens[: 1 + min(n, len(tokens) - 1)]
        texts[s] += held
        if len(held) < len(tokens):
            context.truncate(s, len(texts[s]))

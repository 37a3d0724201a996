"""Contexts on tiny models of several architectures: passes, the cache, and taking tokens back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlay.decoding.span import Span
from parlay.errors import BadRequest, DecodeError, LoadError
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import CACHE_TYPES, ContextSettings, ModelSettings
from parlay.llama.undo import Rollback
from tests import tiny_models
from tests.llama.contexts import Open, cold, feed, opening

ARCHITECTURES = ["llama", "gemma3", "mamba", "lfm2"]
RECURRENT = ["mamba", "lfm2"]
# Other shapes round differently; a wrong token or position is off by ten times as much.
NEAR = 0.15


class _Tensor(ctypes.Structure):
    """The beginning of ggml's tensors, up to their names."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


rng = np.random.default_rng(0)
TEXTS = [[int(t) for t in rng.integers(3, 250, 20)] for _ in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Model(
                    getattr(tiny_models, f"write_{name}")(folder / f"{name}.gguf"), ModelSettings()
                )
            )
            for name in ARCHITECTURES
        }


@pytest.fixture
def open_context(models: dict[str, Model]) -> Iterator[Open]:
    with opening(models) as found:
        yield found


# -- passes ------------------------------------------------------------------------------------


ON_TENSOR = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


def count_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every part that llama.cpp makes from here on, by its first layer's norm."""
    rows: list[int] = []

    def seen(tensor: Any, ask: bool, _data: Any) -> bool:
        found = ctypes.cast(tensor, ctypes.POINTER(_Tensor)).contents
        if ask and found.name == b"attn_norm-0":
            rows.append(found.ne[1])
        return not ask

    defaults, called = C.llama_context_default_params, ON_TENSOR(seen)

    def watched() -> Any:
        params = defaults()
        params.cb_eval = ctypes.cast(called, ctypes.c_void_p)
        return params

    monkeypatch.setattr(C, "llama_context_default_params", watched)
    return rows


def test_prompts_whose_ids_fall_are_parts_of_their_own_in_one_call(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = count_parts(monkeypatch)
    settings = ContextSettings(256, 3, 32, threads=1).with_passes(4)
    context = Context(models["llama"], settings)
    texts = [[*text, *text][: 30 - i] for i, text in enumerate(TEXTS)]
    alone = []
    for i, text in enumerate(texts):
        alone.append(feed(context, i, text)[-1].copy())
        context.clear(i)
    for order, parts in (([2, 1, 0], [28, 29, 30]), ([0, 1, 2], [30, 30, 24, 2, 1])):
        rows.clear()
        together = context.decode([Span(i, 0, texts[i], 1) for i in order])
        assert rows == parts
        for i, found in zip(order, together, strict=True):
            np.testing.assert_allclose(found[0], alone[i], atol=NEAR)
            context.clear(i)
    context.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sequences_in_one_pass_say_what_each_says_alone(
    architecture: str, open_context: Open
) -> None:
    together, alone = open_context(architecture), open_context(architecture)
    spans = [Span(i, 0, text[: 8 + 4 * i], 2) for i, text in enumerate(TEXTS)]
    rows = [row.copy() for row in together.decode(spans)]
    more = together.decode([Span(i, 8 + 4 * i, [7, 9], 1) for i in range(3)])
    for i, text in enumerate(TEXTS):
        first = feed(alone, i, text[: 8 + 4 * i], 2)
        np.testing.assert_allclose(rows[i], first, atol=NEAR)
        np.testing.assert_allclose(more[i], feed(alone, i, [7, 9]), atol=NEAR)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_pass_over_many_tokens_gives_the_rows_of_single_passes(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture)
    text = TEXTS[0]
    rows = feed(context, 0, text, n_logits=len(text))
    assert rows.shape == (len(text), context.n_vocab)
    for i, token in enumerate(text):
        np.testing.assert_allclose(feed(context, 1, [token])[0], rows[i], atol=NEAR)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_changes_no_row_that_is_read_and_is_taken_back(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture)
    for seq_id, text in enumerate(TEXTS[:2]):
        feed(context, seq_id, text[:8])
    last, draft = TEXTS[0][8], TEXTS[0][9:11]
    spans = [Span(0, 8, [last, *draft, 7], 3, 1), Span(1, 8, [TEXTS[1][8], 7, 7, 7], 1, 3)]
    rows = [np.array(found) for found in context.decode(spans)]
    context.truncate(1, 9)
    assert [len(found) for found in rows] == [3, 1]
    assert np.allclose(rows[0][2], cold(context, TEXTS[0][:11]), atol=NEAR)
    assert np.allclose(feed(context, 1, [5])[-1], cold(context, [*TEXTS[1][:9], 5]), atol=NEAR)


def test_one_cache_for_all_says_what_caches_apart_say(open_context: Open) -> None:
    context = open_context(unified=True)
    assert context.context_size == 256
    for seq_id, text in enumerate(TEXTS[:2]):
        feed(context, seq_id, text[:8])
    rows = context.decode([Span(0, 8, TEXTS[0][8:11], 1), Span(1, 8, TEXTS[1][8:9], 1)])
    found = [np.array(row[-1]) for row in rows]
    assert np.allclose(found[0], cold(context, TEXTS[0][:11]), atol=NEAR)
    assert np.allclose(found[1], cold(context, TEXTS[1][:9]), atol=NEAR)


def test_the_rows_of_a_pass_that_was_started_are_fetched_later(open_context: Open) -> None:
    context, other = open_context(), open_context()
    spans = [Span(0, 0, TEXTS[0][:8], 1), Span(1, 0, TEXTS[1][:8], 2)]
    expected = other.decode(spans)
    context.start(spans)
    fetched = context.fetch(spans)
    assert [rows.tolist() for rows in fetched] == [rows.tolist() for rows in expected]


def test_a_pass_that_is_only_started_is_done_once_it_settles(open_context: Open) -> None:
    context = open_context()
    context.start([Span(0, 0, TEXTS[0][:8], 0)])
    context.settle()
    assert context.length(0) == 8
    assert np.allclose(feed(context, 0, TEXTS[0][8:9])[-1], cold(context, TEXTS[0][:9]), atol=NEAR)


def test_logits_are_a_view_of_llama_cpps_own_memory(open_context: Open) -> None:
    context = open_context()
    first, second = context.decode([Span(0, 0, TEXTS[0], 3), Span(1, 0, TEXTS[1], 2)])
    address = C.llama_get_logits(context._handle)
    assert first.ctypes.data == address
    assert second.ctypes.data == address + first.nbytes
    assert not first.flags.owndata
    assert (first.shape, second.shape) == ((3, context.n_vocab), (2, context.n_vocab))


def test_a_view_is_valid_until_the_next_pass_and_no_longer(open_context: Open) -> None:
    context = open_context()
    (row,) = context.decode([Span(0, 0, TEXTS[0], 1)])
    kept = row.copy()
    context.length(0)
    np.testing.assert_array_equal(row, kept)
    (again,) = context.decode([Span(1, 0, TEXTS[1], 1)])
    assert again.ctypes.data == row.ctypes.data
    assert not np.array_equal(row, kept)


def test_views_follow_the_logits_when_a_pass_asks_for_more_of_them(open_context: Open) -> None:
    context = open_context()
    for n in (1, 5, 2, 8):
        context.clear(0)
        (rows,) = context.decode([Span(0, 0, TEXTS[0], n)])
        assert rows.shape == (n, context.n_vocab)
        assert rows.ctypes.data == C.llama_get_logits(context._handle)


def test_a_pass_without_logits_still_fills_the_cache(open_context: Open) -> None:
    context = open_context()
    (nothing,) = context.decode([Span(0, 0, TEXTS[0], 0)])
    assert nothing.shape == (0, context.n_vocab)
    assert context.length(0) == len(TEXTS[0])
    np.testing.assert_allclose(feed(context, 0, [5])[0], cold(context, [*TEXTS[0], 5]), atol=NEAR)


def test_time_inside_the_model_adds_up(open_context: Open) -> None:
    context = open_context()
    before = context.busy_s
    feed(context, 0, TEXTS[0])
    assert context.busy_s > before


# -- the cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_truncated_tokens_leave_no_trace(architecture: str, open_context: Open) -> None:
    context = open_context(architecture)
    text = TEXTS[0]
    feed(context, 0, text)
    context.truncate(0, 7)
    assert context.length(0) == 7
    np.testing.assert_allclose(
        feed(context, 0, [9, 9])[0], cold(context, [*text[:7], 9, 9]), atol=NEAR
    )


def test_clearing_one_sequence_leaves_the_others(open_context: Open) -> None:
    context = open_context()
    feed(context, 0, TEXTS[0])
    feed(context, 1, TEXTS[1])
    context.clear(0)
    assert (context.length(0), context.length(1)) == (0, len(TEXTS[1]))
    np.testing.assert_allclose(feed(context, 1, [5])[0], cold(context, [*TEXTS[1], 5]), atol=NEAR)


def test_all_of_a_cached_prefix_can_be_reused_where_positions_can_be_removed(
    open_context: Open,
) -> None:
    context = open_context("llama")
    assert context.reusable(0, 5) == 0
    feed(context, 0, TEXTS[0])
    assert [context.reusable(0, n) for n in (0, 5, 20, 99)] == [0, 5, 20, 20]


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_recurrent_cache_can_be_reused_as_a_whole_or_not_at_all(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture)
    feed(context, 0, TEXTS[0])
    assert [context.reusable(0, n) for n in (5, 19, 20, 99)] == [0, 0, 20, 20]


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_a_shifted_cache_goes_on_from_the_moved_positions(
    cache_type: str, open_context: Open
) -> None:
    context = open_context(cache_type_k=cache_type, cache_type_v=cache_type)
    assert context.can_shift
    text = TEXTS[0]
    feed(context, 0, text)
    context.shift(0, keep=4, discard=6)
    assert context.length(0) == len(text) - 6
    row = feed(context, 0, [5])[0]
    assert context.length(0) == len(text) - 5
    # What follows the gap was read with the gap's tokens before it, so it is near, not equal.
    assert np.isfinite(row).all()
    context.truncate(0, 4)
    np.testing.assert_allclose(feed(context, 0, [8])[0], cold(context, [*text[:4], 8]), atol=NEAR)


def test_without_history_in_between_a_shift_is_the_same_as_reading_at_the_new_place(
    tmp_path: Path,
) -> None:
    """One layer, so that a key depends on its own token and position alone."""
    path = tiny_models.write_llama(tmp_path / "one.gguf", n_layers=1)
    settings = ContextSettings(256, 3, 64, threads=1, cache_type_k="f32", cache_type_v="f32")
    with Model(path, ModelSettings()) as model:
        context = Context(model, settings)
        text = TEXTS[0]
        feed(context, 0, text)
        context.shift(0, keep=4, discard=6)
        left = [*text[:4], *text[10:]]
        np.testing.assert_allclose(feed(context, 0, [5])[0], cold(context, [*left, 5]), atol=1e-3)
        context.close()


@pytest.mark.parametrize(
    ("architecture", "cache_type"), [("llama", "bf16"), ("mamba", "f16"), ("lfm2", "f16")]
)
def test_a_cache_that_cannot_slide_says_so_before_llama_cpp_aborts(
    architecture: str, cache_type: str, open_context: Open
) -> None:
    context = open_context(architecture, cache_type_k=cache_type)
    feed(context, 0, TEXTS[0])
    assert not context.can_shift
    with pytest.raises(BadRequest, match="cannot slide"):
        context.shift(0, 4, 6)


def test_closing_twice_is_harmless(models: dict[str, Model]) -> None:
    context = Context(models["llama"], ContextSettings(256, threads=1))
    context.close()
    context.close()


# -- rollback ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "rollback"),
    [
        ("llama", Rollback.PARTIAL),
        ("gemma3", Rollback.PARTIAL),
        ("mamba", Rollback.CHECKPOINT),
        ("lfm2", Rollback.CHECKPOINT),
    ],
)
def test_the_way_to_forget_is_found_by_trying_and_leaves_nothing_behind(
    architecture: str, rollback: Rollback, open_context: Open
) -> None:
    context = open_context(architecture)
    assert context.rollback is rollback
    assert [context.length(i) for i in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("n_kept", range(6))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_after_a_rejected_draft_the_next_row_is_that_of_a_fresh_decode(
    architecture: str, n_kept: int, open_context: Open
) -> None:
    context = open_context(architecture)
    text, draft = TEXTS[0][:10], TEXTS[1][:5]
    feed(context, 0, text)
    feed(context, 0, draft, n_logits=5)
    context.truncate(0, 10 + n_kept)
    assert context.length(0) == 10 + n_kept
    np.testing.assert_allclose(
        feed(context, 0, [77])[0], cold(context, [*text, *draft[:n_kept], 77]), atol=NEAR
    )


@pytest.mark.parametrize("architecture", RECURRENT)
def test_draft_after_draft_can_be_taken_back(architecture: str, open_context: Open) -> None:
    context = open_context(architecture)
    text = list(TEXTS[0][:6])
    feed(context, 0, text)
    for n_kept in (0, 3, 1, 4, 2):
        draft = TEXTS[1][n_kept : n_kept + 4]
        feed(context, 0, draft, n_logits=4)
        context.truncate(0, len(text) + n_kept)
        text += draft[:n_kept]
    np.testing.assert_allclose(feed(context, 0, [77])[0], cold(context, [*text, 77]), atol=NEAR)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_taking_back_one_sequences_draft_leaves_the_others_state_and_logits(
    architecture: str, open_context: Open
) -> None:
    context = open_context(architecture)
    for i in (0, 1):
        feed(context, i, TEXTS[i][:10])
    _, rows = context.decode([Span(i, 10, TEXTS[i][10:14], 4) for i in (0, 1)])
    before = rows.copy()
    context.truncate(0, 12)
    np.testing.assert_array_equal(rows, before)  # the scheduler still reads them
    context.truncate(1, 11)
    for i, n in ((0, 12), (1, 11)):
        expected = cold(context, [*TEXTS[i][:n], 77])
        np.testing.assert_allclose(feed(context, i, [77])[0], expected, atol=NEAR)


def drafted(open_context: Open, architecture: str) -> Context:
    """Ten tokens of a text, and a draft of four after them."""
    context = open_context(architecture)
    feed(context, 0, TEXTS[0][:10])
    feed(context, 0, TEXTS[0][10:14], n_logits=4)
    return context


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_recurrent_cache_refuses_to_go_back_further_than_its_checkpoint(
    architecture: str, open_context: Open
) -> None:
    context = drafted(open_context, architecture)
    with pytest.raises(DecodeError, match="no checkpoint"):
        context.truncate(0, 5)
    context.clear(0)
    feed(context, 0, TEXTS[0][:10])
    with pytest.raises(DecodeError, match="no checkpoint"):  # the old one is gone with its text
        context.truncate(0, 8)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_checkpoint_is_not_used_for_tokens_it_has_not_seen(
    architecture: str, open_context: Open
) -> None:
    context = drafted(open_context, architecture)
    context.truncate(0, 12)
    feed(context, 0, [77])  # not what the draft had there
    with pytest.raises(DecodeError, match="no checkpoint"):
        context.truncate(0, 12)


def test_a_model_that_can_neither_cut_nor_restore_cannot_speculate(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(C, "llama_state_seq_get_data_ext", lambda *_: 0)
    context = Context(models["mamba"], ContextSettings(256, threads=1))
    assert context.rollback is Rollback.NONE
    assert feed(context, 0, TEXTS[0]).shape == (1, context.n_vocab)  # plain decoding still works
    context.close()


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_every_cache_type_decodes_the_same_text(name: str, tmp_path: Path) -> None:
    # Heads of 32: quantised types come in blocks of that size.
    path = tiny_models.write_llama(tmp_path / "model.gguf", n_embd=128)
    with Model(path, ModelSettings()) as model:
        settings = ContextSettings(256, 3, 64, threads=1, cache_type_k=name, cache_type_v=name)
        context = Context(model, settings)
        assert context.cache_types == (name, name)
        row = feed(context, 0, TEXTS[0])[0]
        context.close()
        exact = Context(
            model, ContextSettings(256, 2, threads=1, cache_type_k="f32", cache_type_v="f32")
        )
        same, other = feed(exact, 0, TEXTS[0])[0], feed(exact, 1, TEXTS[1])[0]
        assert np.corrcoef(row, same)[0, 1] > 0.9 > np.corrcoef(row, other)[0, 1]
        exact.close()


def test_where_no_bits_have_to_agree_the_cache_is_llama_cpp_s_own(open_context: Open) -> None:
    assert open_context(same_bits=False).cache_types == ("f16", "f16")
    assert open_context(same_bits=False, cache_type_k="f32").cache_types == ("f32", "f16")


def test_a_model_that_reads_values_out_of_its_keys_keeps_both_in_one_type(tmp_path: Path) -> None:
    with Model(tiny_models.write_deepseek2(tmp_path / "m.gguf"), ModelSettings()) as model:
        for k, v in (("auto", "auto"), ("f16", "auto"), ("auto", "f16")):
            for same_bits in (True, False):
                settings = ContextSettings(256, cache_type_k=k, cache_type_v=v, same_bits=same_bits)
                context = Context(model, settings)
                assert len(set(context.cache_types)) == 1
                context.close()


def test_a_context_holds_at_least_what_was_asked_for_each_sequence(open_context: Open) -> None:
    context = open_context(context_size=300, n_sequences=2)
    assert context.context_size >= 300
    n = context.context_size
    for seq_id in (0, 1):
        for start in range(0, n, 64):
            context.decode([Span(seq_id, start, [5] * min(64, n - start), 0)])
    assert (context.length(0), context.length(1)) == (n, n)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"context_size": 8}, "context size 8 is too small"),
        ({"context_size": 5_000_000_000}, "more than llama.cpp can count"),
        ({"n_sequences": 0}, "0 sequences"),
        ({"n_sequences": 257, "n_batch": 512}, "257 sequences"),
        ({"n_batch": 2}, "batch of 2 rows is too small"),
        ({"n_batch": 20, "n_sequences": 21}, "give at least 21"),
        ({"threads": -1}, "-1 threads"),
        ({"threads": 100_000}, "threads spin"),
        ({"cache_type_k": "q3"}, "unknown cache type 'q3'"),
        ({"cache_type_v": ""}, "unknown cache type ''"),
        ({"flash_attention": "maybe"}, "'maybe' is not one of auto, on, off"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_in_one_line(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said) as caught:
        ContextSettings(**settings)
    assert "\n" not in caught.value.message


def test_what_llama_cpp_itself_refuses_is_an_error_with_its_reason(open_context: Open) -> None:
    with pytest.raises(LoadError, match=r"q8_0.*does not divide") as caught:
        open_context(cache_type_k="q8_0")
    assert "\n" not in caught.value.message
    with pytest.raises(LoadError, match="requires flash_attn"):
        open_context(cache_type_v="q8_0", flash_attention="off")


def test_a_cache_larger_than_free_memory_is_refused_before_it_is_taken(
    open_context: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two layers, two heads of 16, two bytes for K and for V: 256 bytes a token.
    per_token = 2 * 2 * 16 * (2 + 2)
    monkeypatch.setattr(library, "free_ram", lambda: 512 * per_token - 1)
    open_context(context_size=256, n_sequences=1)
    with pytest.raises(LoadError, match=r"512 tokens for 1 sequence.*lower the context size"):
        open_context(context_size=512, n_sequences=1)
    with pytest.raises(LoadError):
        open_context(context_size=256, n_sequences=2)


def test_a_recurrent_model_keeps_no_cache_that_could_be_too_large(
    open_context: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "free_ram", lambda: 1 << 20)
    open_context("mamba", context_size=1 << 20)


# -- what goes wrong in a pass -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "code"),
    [
        (Span(0, 0, [1 << 20], 1), -1),  # no such token
        (Span(0, 0, [-7], 1), -1),
        (Span(9, 0, [5], 1), -1),  # no such sequence
    ],
)
def test_a_bad_pass_raises_and_the_next_good_one_works(
    span: Span, code: int, open_context: Open
) -> None:
    context = open_context()
    with pytest.raises(DecodeError, match="llama_decode failed") as caught:
        context.decode([span])
    assert caught.value.code == code
    assert feed(context, 0, TEXTS[0]).shape == (1, context.n_vocab)


def test_an_empty_pass_raises(open_context: Open) -> None:
    with pytest.raises(DecodeError):
        open_context().decode([])


def test_a_full_context_raises_and_says_what_to_do(open_context: Open) -> None:
    context = open_context()
    for start in range(0, context.context_size, 64):
        context.decode([Span(0, start, [5] * 64, 0)])
    with pytest.raises(DecodeError, match="raise the context size") as caught:
        feed(context, 0, [5])
    assert caught.value.code == 1
    assert context.length(0) == context.context_size
    assert feed(context, 1, TEXTS[1]).shape == (1, context.n_vocab)


def test_more_rows_than_the_batch_holds_are_refused(open_context: Open) -> None:
    with pytest.raises(BadRequest, match="a pass holds 64 rows"):
        open_context().decode([Span(0, 0, [5] * 65, 1)])


def test_more_logits_than_were_planned_for_are_refused_before_llama_cpp_aborts(
    open_context: Open,
) -> None:
    context = open_context(n_outputs=4)
    with pytest.raises(BadRequest, match="a pass gives 4 rows of logits"):
        context.decode([Span(0, 0, [5] * 8, 5)])
    assert feed(context, 0, [5] * 8, n_logits=4).shape == (4, context.n_vocab)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_state_that_cannot_be_restored_raises(
    architecture: str, open_context: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = drafted(open_context, architecture)
    monkeypatch.setattr(C, "llama_state_seq_set_data_ext", lambda *_: 0)
    with pytest.raises(DecodeError, match="could not be restored"):
        context.truncate(0, 12)


@pytest.mark.parametrize(
    ("function", "result", "act", "message"),
    [
        ("llama_memory_seq_rm", False, lambda c: c.truncate(0, 3), "could not be cut to 3"),
        ("llama_get_logits", None, lambda c: feed(c, 1, TEXTS[0]), "no logits"),
    ],
)
def test_a_cut_that_is_refused_and_logits_that_are_missing_raise(
    function: str,
    result: object,
    act: Callable[[Context], object],
    message: str,
    open_context: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = open_context()
    feed(context, 0, TEXTS[0])
    monkeypatch.setattr(C, function, lambda *_: result)
    with pytest.raises(DecodeError, match=message):
        act(context)


# -- recordings of passes ----------------------------------------------------------------------


class Notes:
    """What a context tells about recordings, and the shelf that a trial would find."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def before(self, spans: list[Span]) -> None:
        self.told.append(f"{[len(span.tokens) for span in spans]}")

    def choose(self, _shape: object) -> None:
        """As a shelf."""

    def current(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.told.append("close")


def test_every_pass_is_told_before_it_is_made_and_the_end_once(open_context: Open) -> None:
    context, notes = open_context(), Notes()
    context.recorder = notes
    feed(context, 0, TEXTS[0][:5])
    feed(context, 0, TEXTS[0][5:6])
    context.close()
    context.close()
    assert notes.told == ["[5]", "[1]", "close"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_trial_of_recordings_that_goes_wrong_leaves_them_to_llama_cpp(
    open_context: Open, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    context, notes = open_context(), Notes()
    context.steady = True
    here = frozenset({(C.version, C.ggml_version)})
    monkeypatch.setattr("parlay.llama.fence.PROVED_ON", here)
    monkeypatch.setattr("parlay.llama.hacks.recordings.find", lambda _handle: notes)

    def decode(_spans: object) -> list[Any]:
        raise DecodeError("a pass failed", code=1)

    if fails:
        monkeypatch.setattr(context, "decode", decode)
    assert context._make_recorder() is None
    assert notes.told == ["close"]
    assert context.length(0) == 0

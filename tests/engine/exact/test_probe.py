"""The probe of exact passes, on models whose rounding depends on the shape of the pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact.probe import (
    Budget,
    OutOfTime,
    Walker,
    probe_whole,
    probe_width,
    reaches,
    still_holds,
)
from parlay.engine.exact.shapes import SINGLE, ExactClass
from parlay.errors import DecodeError
from tests.scripted import ScriptedModel, hashed_logits

LOGITS = hashed_logits(16)
MAX_ROWS = 17
# Which kernel serves a row: by the rows of its pass, the tokens before it and its place in it.
Kernel = Callable[[int, int, int], int]


class Kernels(ScriptedModel):
    """Each kernel rounds in its own way, and what it wrote to the cache is read by later rows."""

    def __init__(self, kernel: Kernel, context_size: int = 1024) -> None:
        super().__init__(LOGITS, 16, context_size)
        self._kernel = kernel
        self._written: dict[int, list[int]] = {}

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found = super().decode(spans)
        n, place = sum(len(span.tokens) for span in spans), 0
        for span, rows in zip(spans, found, strict=True):
            written = self._written.setdefault(span.seq_id, [])
            del written[span.start :]
            skipped = len(span.tokens) - span.n_logits
            for j in range(len(span.tokens)):
                written.append(0 if not span.n_logits else self._kernel(n, span.start, place))
                place += 1
                if j >= skipped:
                    rows[j - skipped] += np.float32(1e-4) * sum(written)
        return found


class Pairs(Kernels):
    """A kernel for the sequences and rows of a pass, and another for texts of several pages."""

    def __init__(self, kernel: Callable[[int, int], int], uneven: int = 0) -> None:
        super().__init__(lambda n, start, place: 0)
        self._pair = kernel
        self._uneven = uneven

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found = super().decode(spans)
        used = self._pair(len(spans), sum(len(span.tokens) for span in spans))
        used += self._uneven * (len({span.start // 256 for span in spans}) - 1)
        return [rows + np.float32(1e-4) * used for rows in found]


class Paged(Kernels):
    """As attention on a GPU: parted by the pages that a pass reads; the fourth has another kernel
    for passes over more than one row."""

    steady = True

    def __init__(self) -> None:
        super().__init__(lambda n, start, place: 0, 2048)

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found = super().decode(spans)
        pages = max(-(-(span.start + len(span.tokens)) // 256) for span in spans)
        own = [np.arange(len(rows)) > 0 for rows in found]  # but the first row
        return [
            rows + np.float32(1e-4) * (pages + (other & (pages == 4)))[:, None]
            for rows, other in zip(found, own, strict=True)
        ]


def alike(n: int, start: int, place: int) -> int:
    return 0


def whole(model: ScriptedModel, wide: int = 0, chunk: int = 128) -> ExactClass | None:
    return probe_whole(Walker(model, chunk), MAX_ROWS, wide)


def width(kernel: Kernel, n: int, size: int = 1024) -> ExactClass | None:
    return probe_width(Walker(Kernels(kernel, size), 64), n)


# -- all passes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [0, 40, 65])
def test_where_all_passes_agree_they_are_one_class_and_much_wider_ones_if_those_do(
    wide: int,
) -> None:
    found = whole(Kernels(alike), wide)
    assert found is not None and found.prompts and found.whole
    assert (found.floor, found.limit) == (1, max(MAX_ROWS, wide))
    found = whole(Kernels(lambda n, start, place: int(n in (40, 65))), wide)
    assert found is not None and found.limit == MAX_ROWS


@settings(max_examples=25)
@given(
    odd=st.integers(1, MAX_ROWS),
    after=st.sampled_from([0, 1, 30, 250]),
    place=st.integers(0, MAX_ROWS - 1),
)
def test_a_width_that_rounds_otherwise_anywhere_leaves_no_such_class(
    odd: int, after: int, place: int
) -> None:
    """From some length of text on, or in the rows from some place on."""
    if 5 < odd < MAX_ROWS and after > 30:
        after = 0  # in a long text a few widths stand for all
    model = Kernels(lambda n, start, at: int(n == odd and start >= after and at >= place % odd))
    assert whole(model) is None


def test_where_passes_differ_next_to_nothing_is_spent_before_that_is_seen() -> None:
    model = Kernels(lambda n, start, place: int(n > 1))
    assert whole(model, 65) is None
    assert sum(map(sum, model.shapes)) <= MAX_ROWS + 1


def test_where_all_passes_agree_one_text_shows_it() -> None:
    model = Kernels(alike)
    assert whole(model, 65) is not None
    assert len(model.shapes) <= 36 and sum(map(sum, model.shapes)) <= 600
    assert not any(model.cache.values())


@pytest.mark.parametrize(
    "kernel",
    [
        lambda n, start, place: int(n > 40),  # a prompt's chunks
        lambda n, start, place: -(-(start + n) // 256),  # a page more that is read
    ],
)
def test_chunks_of_prompts_and_pages_that_change_sums_leave_no_such_class(kernel: Kernel) -> None:
    assert whole(Kernels(kernel)) is None


def test_a_chunk_that_rounds_otherwise_is_found_in_the_long_text_that_begins_with_it() -> None:
    class Chunks(Kernels):
        """What is read as a prompt in passes of a whole chunk is rounded in its own way."""

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            found = super().decode(spans)
            for span in spans:
                if span.n_logits < len(span.tokens) == 128:
                    self._written[span.seq_id][span.start] += 1
            return found

    assert whole(Chunks(alike)) is None


def test_a_context_too_short_to_tell_and_a_gpu_have_no_such_class() -> None:
    assert whole(Kernels(alike, 60)) is None
    assert whole(Paged()) is None


def test_without_time_nothing_is_found() -> None:
    with pytest.raises(OutOfTime):
        probe_whole(Walker(Kernels(alike), 128, Budget(-1.0)), MAX_ROWS, 0)
    with pytest.raises(OutOfTime):
        probe_width(Walker(Kernels(alike), 128, Budget(-1.0)), 4)


@pytest.mark.parametrize("n_good", [0, 1, 20])
def test_a_failing_pass_ends_the_probe_with_its_error_and_an_empty_cache(n_good: int) -> None:
    class Failing(ScriptedModel):
        n_left = n_good

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = super().decode(spans)
            self.n_left -= 1
            if self.n_left < 0:
                raise DecodeError("scripted failure", code=-3)
            return rows

    looks: list[Callable[[Walker], ExactClass | None]] = [
        lambda walker: probe_whole(walker, MAX_ROWS, 0),
        lambda walker: probe_width(walker, 4),
    ]
    for look in looks:
        model = Failing(LOGITS, 16, 512)
        with pytest.raises(DecodeError):
            look(Walker(model, 64))
        assert not any(model.cache.values())


def test_a_cache_that_cannot_be_cut_is_read_again_and_probed_at_longer_texts_at_once() -> None:
    class Recurrent(Kernels):
        """Only the rows of the last pass can be taken back."""

        last = 0

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            self.last = spans[0].start
            return super().decode(spans)

        def reusable(self, seq_id: int, length: int) -> int:
            return length if length >= self.length(seq_id) else 0

        def truncate(self, seq_id: int, length: int) -> None:
            assert length >= self.last, "a recurrent cache cannot be cut there"
            super().truncate(seq_id, length)

    found = whole(Recurrent(alike, 1200), chunk=64)
    assert found is not None and found.places == {0, 1, 2, 3}
    switching = Recurrent(lambda n, start, place: int(n > 1 and start > 1000), 1200)
    found = whole(switching, chunk=64)
    assert found is not None and found.places == {0, 1, 2}
    assert probe_width(Walker(Recurrent(alike, 1200), 64), 4) is not None


# -- one width ------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(n=st.sampled_from([1, 2, 4, 8, 16]), kinds=st.lists(st.integers(0, 9), min_size=40))
def test_a_width_agrees_with_itself_whatever_others_do(n: int, kinds: list[int]) -> None:
    found = width(lambda rows, start, place: kinds[rows % 40], n)
    assert found is not None and (found.floor, found.limit) == (n, n) and not found.prompts


@pytest.mark.parametrize("n", [5, 6, 7, 9, 13])
def test_a_width_whose_rows_differ_by_their_place_is_none(n: int) -> None:
    """As with K-quants on a CPU: rows in whole groups of four have a kernel of their own."""
    assert width(lambda rows, start, place: int(place < rows - rows % 4), n) is None
    assert width(lambda rows, start, place: int(place < rows - rows % 4), n - n % 4) is not None


@pytest.mark.parametrize("start", [24, 9, 264])
def test_a_difference_in_one_of_several_texts_is_enough(start: int) -> None:
    assert width(lambda rows, at, place: int(at == start and place > 0), 4) is None


def test_padding_that_changes_a_row_takes_its_width_out() -> None:
    class Careful(Kernels):
        """Rows that repeat a token are served by another kernel."""

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = super().decode(spans)
            repeats = [len(set(s.tokens)) < len(s.tokens) < 9 for s in spans]
            return [own + np.float32(1e-3) * off for own, off in zip(rows, repeats, strict=True)]

    assert probe_width(Walker(Careful(alike), 16), 4) is None


def test_a_pass_that_does_not_repeat_itself_is_no_class() -> None:
    calls = iter(range(10**9))
    assert width(lambda n, start, place: next(calls), 4) is None


# -- later ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_width", [False, True])
def test_a_class_is_known_again_by_a_few_of_its_logits(of_width: bool) -> None:
    kernel = {"kind": 1}
    model = Kernels(lambda n, start, place: kernel["kind"])
    found = probe_width(Walker(model, 64), 4) if of_width else whole(model)
    assert found is not None and still_holds(model, found)
    kernel["kind"] = 2
    assert not still_holds(model, found)


def tried(model: Kernels, found: ExactClass, lengths: Sequence[int]) -> ExactClass:
    """As in the middle of answers with texts so long."""
    for seq_id, length in enumerate(lengths):
        model.clear(seq_id)
        for at in range(0, length, 32):
            model.decode([Span(seq_id, at, [1] * min(32, length - at), 0)])
    before = {seq_id: list(kept) for seq_id, kept in model.cache.items()}
    longer = reaches(model, found, list(enumerate(lengths)), 60.0)
    assert model.cache == before
    return longer


@pytest.mark.parametrize("switches", [False, True])
def test_a_class_is_tried_at_the_end_of_a_longer_text_which_stays_as_it_was(switches: bool) -> None:
    model = Kernels(lambda n, start, place: int(switches and start >= 512 and n > 1), 2048)
    found = whole(model)
    assert found is not None and found.places == {0, 1}
    longer = tried(model, found, [700])
    assert longer.places == ({0, 1} if switches else {0, 1, 2})
    assert list(longer.fitting([700])) == ([1] if switches else list(range(1, MAX_ROWS + 1)))


def test_on_a_gpu_what_holds_after_a_text_says_nothing_of_other_pages() -> None:
    model = Paged()
    found = probe_width(Walker(model, 64), 4)
    assert found is not None and found.by_page and found.is_tried([24])
    assert not found.is_tried([600]) and found.real_rows([600]) == 1
    longer = tried(model, found, [600])
    assert longer.is_tried([600]) and longer.real_rows([600]) > 4
    assert not tried(model, longer, [900]).is_tried([900])  # its kernel differs there


def test_without_time_or_where_a_pass_fails_a_class_reaches_no_further() -> None:
    model = Kernels(alike, 2048)
    found = whole(model)
    assert found is not None
    model.decode([Span(0, 0, [i % 16 for i in range(700)], 0)])
    assert reaches(model, found, [(0, 700)], -1.0) == found
    model.fail_next = 1
    assert reaches(model, found, [(0, 700)], 60.0) == found
    assert model.length(0) == 700


def test_several_share_a_pass_once_they_were_tried_together() -> None:
    model = Pairs(lambda n_sequences, rows: 0)
    found = whole(model)
    assert found is not None
    assert all(len(shape) == 1 for shape in model.shapes)
    assert not found.fitting([24, 24])
    longer = tried(model, found, [24, 24])
    assert list(longer.fitting([30, 20])) == list(found.rows_for(2))
    assert not longer.fitting([24] * 3) and not longer.fitting([24, 300])
    assert tried(model, longer, [24, 300]).fitting([24, 300])


@pytest.mark.parametrize("most", [0, 2, 6])
def test_those_who_round_otherwise_together_take_turns(most: int) -> None:
    model = Pairs(lambda n_sequences, rows: int(n_sequences > 1 and rows > most * n_sequences))
    found = whole(model)
    assert found is not None and not tried(model, found, [24, 24]).fitting([24, 24])
    second = Kernels(alike)
    second._kernel = lambda n, start, place: int(place >= 4 and len(second.shapes[-1]) > 1)
    found = whole(second)  # the first sequence's rows round as ever, the second one's do not
    assert found is not None and not tried(second, found, [24, 24]).fitting([24, 24])


def test_neighbours_with_longer_texts_that_change_sums_are_left_apart() -> None:
    model = Pairs(lambda n_sequences, rows: 0, uneven=1)
    found = whole(model)
    assert found is not None
    longer = tried(model, tried(model, found, [24, 24]), [24, 300])
    assert longer.fitting([24, 24]) and not longer.fitting([24, 300])


def test_of_one_width_nobody_shares_and_single_rows_need_no_trial() -> None:
    found = width(alike, 4)
    assert found is not None and not found.rows_for(2)
    assert SINGLE.is_tried([10**6]) and list(SINGLE.fitting([10**6])) == [1]

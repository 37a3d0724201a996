"""The probe of classes, on models whose rounding depends on the shape of the pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlay.decoding.span import Span
from parlay.engine.exact.class_probe import Probe, probe, reaches, still_holds
from parlay.engine.exact.exactness import ExactClass
from parlay.engine.exact.walking import Budget, Walker
from parlay.engine.exact.whole_probe import WholeProbe
from parlay.errors import DecodeError
from tests.scripted import ScriptedModel, hashed_logits

LOGITS = hashed_logits(16)
MAX_ROWS = 17
# Which kernel serves a row: by the rows of its pass, the tokens before it and its place in it.
Kernel = Callable[[int, int, int], int]


class Kernels(ScriptedModel):
    """Each kernel rounds in its own way, and what it wrote to the cache is read by later rows."""

    def __init__(self, kernel: Kernel, context_size: int = 512) -> None:
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


def classes(kernel: Kernel, max_rows: int = MAX_ROWS, context_size: int = 512) -> list[list[int]]:
    probed = probe(Kernels(kernel, context_size), max_rows, 1)
    assert probed.complete
    return [sorted(found.widths) for found in probed.classes]


EVERY = list(range(1, MAX_ROWS + 1))


def test_a_model_that_rounds_alike_in_every_shape_is_one_class() -> None:
    assert classes(lambda n, start, place: 0) == [EVERY]


def test_kernels_that_switch_with_the_rows_make_a_class_each() -> None:
    """As on a GPU: 1, 2, 3 and 4, 5 to 8, 9 to 16."""
    found = classes(lambda n, start, place: (n > 1) + (n > 2) + (n > 4) + (n > 8) + (n > 16))
    assert found == [[1], [2], [3, 4], [5, 6, 7, 8], list(range(9, 17)), [17]]


def test_a_width_whose_rows_differ_by_their_place_is_in_no_class() -> None:
    """As with K-quants on a CPU: rows in whole groups of four have a kernel of their own."""
    found = classes(lambda n, start, place: int(place < n - n % 4))
    assert found == [[1, 2, 3], [4, 8, 12, 16]]


@pytest.mark.parametrize("chance", range(8))
def test_rows_that_differ_every_other_time_are_told_apart_by_many_texts(chance: int) -> None:
    """As with K-quants of a tiny model: a fifth row is outside the group of four, which shows in
    every other row; the four before it are as in a pass over four."""

    def kernel(n: int, start: int, place: int) -> int:
        tells = random.Random(100 * (start + place) + chance).random() < 0.5
        return int(tells and place < n - n % 4)

    assert classes(kernel) == [[1, 2, 3], [4, 8, 12, 16]]


@settings(max_examples=10)
@given(kinds=st.lists(st.integers(0, 3), min_size=MAX_ROWS, max_size=MAX_ROWS))
def test_whichever_widths_agree_they_are_found(kinds: list[int]) -> None:
    found = classes(lambda n, start, place: kinds[n - 1])
    wanted = [[n for n in EVERY if kinds[n - 1] == kind] for kind in sorted(set(kinds))]
    assert sorted(found) == sorted(wanted)


@settings(max_examples=10)
@given(
    limit=st.integers(1, MAX_ROWS - 1),
    lucky=st.integers(2, MAX_ROWS),
    where=st.sampled_from([24, 9, 264]),
)
def test_agreement_by_chance_in_one_context_is_caught_in_another(
    limit: int, lucky: int, where: int
) -> None:
    """Beyond the limit every width is alone, but one happens to agree in one context."""

    def kernel(n: int, start: int, place: int) -> int:
        return 0 if n <= limit or (n == lucky and start == where) else n

    assert classes(kernel)[0] == list(range(1, limit + 1))


@pytest.mark.parametrize("limit", [1, 3, 5, 16])
def test_a_kernel_that_switches_in_long_contexts_only_is_found_wherever_it_switches(
    limit: int,
) -> None:
    found = classes(lambda n, start, place: int(n > limit and start > 256))
    assert found == [list(range(1, limit + 1)), list(range(limit + 1, MAX_ROWS + 1))]


def test_a_pass_that_does_not_repeat_itself_is_in_no_class() -> None:
    calls = iter(range(10**9))
    assert classes(lambda n, start, place: next(calls) if n > 1 else 0) == [[1]]


def test_padding_that_changes_a_row_takes_its_width_out() -> None:
    class Careful(Kernels):
        """Rows that repeat a token are served by another kernel."""

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = super().decode(spans)
            repeats = [len(set(s.tokens)) < len(s.tokens) < 20 for s in spans]
            return [own + np.float32(1e-3) * off for own, off in zip(rows, repeats, strict=True)]

    probed = probe(Careful(lambda n, start, place: 0, 512), 4, 1)
    assert [sorted(found.widths) for found in probed.classes] == [[1]]


def test_a_context_too_short_for_a_probe_is_probed_as_far_as_it_goes() -> None:
    assert classes(lambda n, start, place: int(n > 5), context_size=100)[0] == [1, 2, 3, 4, 5]
    assert classes(lambda n, start, place: 0, context_size=20) == [[1]]


# -- what else is found ------------------------------------------------------------------------


def test_a_page_more_that_changes_sums_is_noticed() -> None:
    def pages(n: int, start: int, place: int) -> int:
        return -(-(start + n) // 256)

    (found,) = probe(Kernels(pages), MAX_ROWS, 1).classes
    assert found.paged
    (found,) = probe(Kernels(lambda n, start, place: 0), MAX_ROWS, 1).classes
    assert not found.paged


def test_prompts_agree_where_chunks_round_as_the_class_does() -> None:
    (found,) = probe(Kernels(lambda n, start, place: 0), MAX_ROWS, 1, chunk=64).classes
    assert found.prompts
    (found,) = probe(Kernels(lambda n, start, place: int(n > 40)), MAX_ROWS, 1, chunk=64).classes
    assert not found.prompts


def test_a_chunk_that_rounds_otherwise_is_found_in_the_long_text_that_begins_with_it() -> None:
    class Chunks(Kernels):
        """What is read as a prompt in passes of a whole chunk is rounded in its own way."""

        n_off = 0

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            found = super().decode(spans)
            whole = [span for span in spans if span.n_logits < len(span.tokens) == 128]
            for span in whole:
                self._written[span.seq_id][span.start] += self.n_off
            return found

    def prompts(n_off: int) -> bool:
        model = Chunks(lambda n, start, place: 0)
        model.n_off = n_off
        (found,) = probe(model, MAX_ROWS, 1, chunk=128).classes
        return found.prompts

    assert prompts(0)
    assert not prompts(1)


def test_a_class_is_known_again_by_a_few_of_its_logits() -> None:
    kernel = {"kind": 1}
    model = Kernels(lambda n, start, place: kernel["kind"])
    (found,) = probe(model, MAX_ROWS, 1).classes
    assert still_holds(model, found)
    kernel["kind"] = 2
    assert not still_holds(model, found)


# -- longer texts, in the middle of an answer --------------------------------------------------


def after(model: ScriptedModel, length: int, seq_id: int = 0) -> ScriptedModel:
    model.decode([Span(seq_id, 0, [i % 16 for i in range(length)], 0)])
    return model


@pytest.mark.parametrize("switches", [False, True])
def test_a_class_is_tried_at_the_end_of_a_longer_text_which_stays_as_it_was(switches: bool) -> None:
    model = Kernels(lambda n, start, place: int(switches and start >= 512 and n > 1), 2048)
    (found,) = probe(model, MAX_ROWS, 1).classes
    assert found.bands == {0, 1}
    after(model, 700)
    cached = list(model.cache[0])
    longer = reaches(model, found, [(0, 700)], 60.0)
    assert longer.bands == ({0, 1} if switches else {0, 1, 2})
    assert model.cache[0] == cached


def test_sequences_are_tried_together_at_the_ends_of_longer_texts() -> None:
    model = Kernels(lambda n, start, place: int(n > 16), 2048)
    found, _ = probe(model, MAX_ROWS, 2, chunk=32).classes
    assert found.company == {(2, 0)}
    for seq_id in (0, 1):
        after(model, 300, seq_id)
    longer = reaches(model, found, [(0, 300), (1, 300)], 60.0)
    assert longer.company == {(2, 0), (2, 1)}
    assert [model.length(s) for s in (0, 1)] == [300, 300]


def test_without_time_a_class_reaches_no_further() -> None:
    model = Kernels(lambda n, start, place: 0, 2048)
    (found,) = probe(model, MAX_ROWS, 1).classes
    after(model, 700)
    assert reaches(model, found, [(0, 700)], -1.0) == found
    assert model.length(0) == 700


def test_a_pass_that_fails_ends_the_trial_and_nothing_else() -> None:
    model = Kernels(lambda n, start, place: 0, 2048)
    (found,) = probe(model, MAX_ROWS, 1).classes
    after(model, 700)
    model.fail_next = 1
    assert reaches(model, found, [(0, 700)], 60.0) == found
    assert model.length(0) == 700


# -- several sequences -------------------------------------------------------------------------


def joined(kernel: Kernel, n_sequences: int = 4) -> ExactClass:
    return probe(Kernels(kernel), MAX_ROWS, n_sequences, chunk=64).classes[0]


def test_sequences_that_round_alike_together_are_in_the_class() -> None:
    found = joined(lambda n, start, place: int(n > 8))
    assert found.together == {(n, r) for n in (2, 3, 4) for r in range(1, 8 // n + 1)}


def test_every_sequence_of_a_pass_counts_not_only_the_first() -> None:
    """The first sequence's rows lie in a whole group of four, the last one's do not."""
    model = Kernels(lambda n, start, place: int(place >= 4 and n > 4))
    (found,) = probe(model, MAX_ROWS, 2, chunk=64).classes
    assert tried(model, found, [24, 24]).rows_for(2) == [1, 2]


def test_with_one_class_only_company_is_tried_when_there_is_some() -> None:
    model = Kernels(lambda n, start, place: 0)
    (found,) = probe(model, MAX_ROWS, 4, chunk=64).classes
    assert all(len(shape) == 1 for shape in model.shapes)
    assert found.concurrent and not found.fitting([24, 24])
    longer = tried(model, found, [24, 24])
    assert longer.fitting([30, 20]) == tuple(found.rows_for(2))
    assert not longer.fitting([24] * 3)
    assert not longer.fitting([24, 300])
    assert tried(model, longer, [24, 300]).fitting([24, 300])


def test_company_that_rounds_differently_leaves_the_class_when_it_is_first_tried() -> None:
    """Passes over one sequence agree; over two those with more than two rows each do not."""
    model = Pairs(lambda n_sequences, rows: int(n_sequences > 1 and rows > 2 * n_sequences))
    (found,) = probe(model, MAX_ROWS, 2, chunk=64).classes
    longer = tried(model, found, [24, 24])
    assert longer.rows_for(2) == [1, 2]
    assert longer.fitting([24, 24]) == (1, 2)
    never = Pairs(lambda n_sequences, rows: int(n_sequences > 1))
    (found,) = probe(never, MAX_ROWS, 2, chunk=64).classes
    assert not tried(never, found, [24, 24]).concurrent


def test_on_a_cpu_several_have_no_more_rows_in_all_than_one_alone_may_have() -> None:
    """Rows outside a whole group of four mostly round as those inside do: trying does not tell."""
    model = Pairs(lambda n_sequences, rows: int(n_sequences == 1 and rows % 4 > 0))
    fours = next(c for c in probe(model, MAX_ROWS, 4, chunk=64).classes if c.floor == 4)
    assert {(2, 2), (4, 1)} <= fours.together
    assert all(n * rows % 4 == 0 for n, rows in fours.together)


def test_neighbours_with_longer_texts_that_change_sums_are_left_apart() -> None:
    model = Pairs(lambda n_sequences, rows: 0, uneven=1)
    (found,) = probe(model, MAX_ROWS, 2, chunk=64).classes
    longer = tried(model, tried(model, found, [24, 24]), [24, 300])
    assert longer.fitting([24, 24]) and not longer.fitting([24, 300])


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


class Parted(Kernels):
    """As attention on a GPU: parted by the pages that a pass reads, otherwise for several."""

    steady = True

    def __init__(self) -> None:
        super().__init__(lambda n, start, place: 0, 2048)

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        found = super().decode(spans)
        pages = max(-(-(span.start + len(span.tokens)) // 256) for span in spans)
        used = pages + (len(spans) > 1 and pages == 4)
        return [rows + np.float32(1e-4) * used for rows in found]


def of_three(probed: Probe) -> ExactClass:
    return next(found for found in probed.classes if 3 in found.widths)


def test_on_a_gpu_no_class_has_widths_of_two_kernels_even_where_they_agree() -> None:
    found = [sorted(each.widths) for each in probe(Parted(), MAX_ROWS, 1, chunk=64).classes]
    assert found == [[1], [2], [3, 4], [5, 6, 7, 8], list(range(9, 17)), [17]]


def test_in_a_longer_text_every_end_of_a_class_is_tried() -> None:
    """Twelve tokens drawn at random can leave out the only width that differs."""

    class Odd(Parted):
        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            odd = sum(len(span.tokens) for span in spans) == 16 and spans[0].start >= 512
            return [rows + np.float32(1e-4) * odd for rows in super().decode(spans)]

    model = Odd()
    found = next(c for c in probe(model, MAX_ROWS, 1, chunk=64).classes if 9 in c.widths)
    assert 16 in found.widths
    assert list(tried(model, found, [600]).fitting([600])) == [9]


def test_on_a_gpu_what_holds_after_a_text_says_nothing_of_other_pages() -> None:
    model = Parted()
    found = of_three(probe(model, MAX_ROWS, 2, chunk=64))
    assert found.by_page and found.fitting([24]) and list(found.fitting([600])) == [3]
    assert list(tried(model, found, [600]).fitting([600])) == [3, 4]
    longer = tried(model, found, [600, 600])
    assert longer.fitting([600, 650]) and not longer.fitting([300, 300])
    assert not tried(model, longer, [900, 900]).fitting([900, 900])


def test_on_a_gpu_texts_of_several_pages_never_share_a_pass() -> None:
    model = Parted()
    found = of_three(probe(model, MAX_ROWS, 2, chunk=64))
    for lengths in ([24, 24], [600, 600], [24, 600]):
        found = tried(model, found, lengths)
    assert found.fitting([24, 24]) and found.fitting([600, 600])
    assert not found.fitting([24, 600])


def test_one_sequence_needs_no_probe_of_several() -> None:
    model = ScriptedModel(LOGITS, 16, 512)
    (found,) = probe(model, MAX_ROWS, 1).classes
    assert not found.concurrent
    assert all(len(shape) == 1 for shape in model.shapes)


# -- time --------------------------------------------------------------------------------------


def test_without_time_only_single_rows_are_exact_and_the_probe_is_not_complete() -> None:
    probed = probe(Kernels(lambda n, start, place: 0), MAX_ROWS, 1, budget_s=0.0)
    assert not probed.complete
    assert [found.widths for found in probed.classes] == [{1}]


class Clock:
    """A single pass takes a second by this clock."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("lucky", [24, 9, 264])
@pytest.mark.parametrize("budget_s", [20, 100, 400, 10_000])
def test_a_probe_that_runs_out_of_time_calls_nothing_exact_that_is_not(
    budget_s: float, lucky: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever contexts there was time for, agreement in one of them is not enough."""
    monkeypatch.setattr("parlay.engine.exact.walking.perf_counter", Clock())
    model = Kernels(lambda n, start, place: int(n > 5 and start != lucky))
    probed: Probe = probe(model, MAX_ROWS, 1, budget_s=budget_s)
    assert probed.complete == (budget_s == 10_000)
    for found in probed.classes:
        for length in (24, 9, 264):
            fit = found.fitting([length])
            assert max(fit) <= 5 or min(fit) > 5 or length == lucky or len(fit) == 1


def spent(kernel: Kernel) -> tuple[int, int]:
    """Passes and rows of a probe as the default model has it on a CPU."""
    model = Kernels(kernel, 1024)
    assert probe(model, MAX_ROWS, 4, chunk=128, wide=65).complete
    return len(model.shapes), sum(map(sum, model.shapes))


def test_where_all_passes_agree_one_text_shows_it() -> None:
    """Twice a long text and once every width, nearly: most of it reads a prompt past a page."""
    passes, rows = spent(lambda n, start, place: 0)
    assert passes <= 36
    assert rows <= 580


def test_where_passes_differ_next_to_nothing_is_spent_before_it_is_asked_which() -> None:
    model = Kernels(lambda n, start, place: int(n > 1), 1024)
    walker = Walker(model, 128, Budget(60.0))
    assert WholeProbe(walker, MAX_ROWS, 65).find() is None
    assert sum(map(sum, model.shapes)) <= MAX_ROWS + 1


@pytest.mark.parametrize("wide", [0, 40, 65])
def test_much_wider_passes_are_in_the_class_where_they_agree_too(wide: int) -> None:
    def widest(kernel: Kernel) -> int:
        (found,) = probe(Kernels(kernel, 1024), MAX_ROWS, 1, chunk=128, wide=wide).classes
        assert found.prompts
        return max(found.widths)

    assert widest(lambda n, start, place: 0) == max(MAX_ROWS, wide)
    assert widest(lambda n, start, place: int(n in (40, 65))) == MAX_ROWS


# -- what it leaves behind ---------------------------------------------------------------------


def test_the_probe_leaves_every_cache_empty() -> None:
    model = Kernels(lambda n, start, place: int(n > 6))
    probe(model, MAX_ROWS, 3)
    assert not any(model.cache.values())


@pytest.mark.parametrize("n_good", [0, 1, 20, 40])
def test_a_failing_pass_ends_the_probe_with_its_error_and_empty_caches(n_good: int) -> None:
    class Failing(ScriptedModel):
        n_left = n_good

        def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            rows = super().decode(spans)
            self.n_left -= 1
            if self.n_left < 0:
                raise DecodeError("scripted failure", code=-3)
            return rows

    model = Failing(LOGITS, 16, 512)
    with pytest.raises(DecodeError):
        probe(model, MAX_ROWS, 2)
    assert not any(model.cache.values())


def test_no_pass_of_the_probe_is_larger_than_the_chunk_or_the_largest_draft() -> None:
    model = ScriptedModel(LOGITS, 16, 512)
    probe(model, 9, 4)
    assert max(sum(shape) for shape in model.shapes) <= 16


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

    probed = probe(Recurrent(lambda n, start, place: int(n > 4), 1200), MAX_ROWS, 1)
    first = probed.classes[0]
    assert sorted(first.widths) == [1, 2, 3, 4]
    assert first.bands == {0, 1, 2, 3}

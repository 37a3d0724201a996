"""A shape is recorded after it has come a few times, and its recording is there when it returns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pytest

from parlay.decoding.span import Span
from parlay.llama.hacks.recorder import N_CELLS, Recorder, recorder_of


@dataclass
class Recording:
    instance: int = 0
    compared: int = 0
    warm: int = 0


class Device:
    """Passes that are launched, recorded or repeated, as ggml does it, or otherwise."""

    def __init__(
        self,
        *,
        records: bool = True,
        forbids: bool = True,
        by_shape: bool = True,
        returns: bool = True,
        wide: bool = True,
    ) -> None:
        """`returns`: a shape that comes back is the same to the last address; `wide`: passes over
        several rows are recorded, too."""
        self.records, self.forbids, self.by_shape = records, forbids, by_shape
        self.returns, self.wide = returns, wide
        self.chosen: list[Hashable | None] = []
        self.closed = False
        self.cells = 0
        self._kept: dict[Hashable | None, Recording] = {}
        self._seen: dict[Hashable | None, object] = {}
        self._last = 0
        self._n_changes = self._n = 0

    def choose(self, shape: Hashable | None) -> None:
        self.chosen.append(shape)

    def current(self) -> list[Recording]:
        return [self._kept.setdefault(self._name, Recording())]

    @property
    def _name(self) -> Hashable | None:
        return self.chosen[-1] if self.by_shape else "the only one"

    def close(self) -> None:
        self.closed = True

    def decode(self, spans: Sequence[Span]) -> None:
        (span,) = spans
        assert span.start == self.cells
        n = len(span.tokens)
        self.cells += n
        self._n_changes += n != self._last
        self._last = n
        recording = self.current()[0]
        if not self.records or (self.forbids and self.chosen[-1] is None):
            return
        self._n += 1
        recording.compared = self._n
        shape = n, 0 if self.returns else self._n_changes
        recording.warm = int(self._seen.get(self._name) == shape and (self.wide or n == 1))
        self._seen[self._name] = shape
        if recording.warm and not recording.instance:
            recording.instance = self._n


def test_a_device_that_keeps_recordings_is_found_out_within_the_cells_that_it_takes() -> None:
    device = Device()
    assert recorder_of(device, device.decode) is not None
    assert device.cells <= N_CELLS
    assert not device.closed
    assert device.chosen[-1] is None, "what comes next may be of any shape"


@pytest.mark.parametrize("lacking", ["records", "forbids", "by_shape", "returns", "wide"])
def test_a_device_that_does_not_do_what_it_should_is_left_alone(lacking: str) -> None:
    device = Device(**{lacking: False})
    assert recorder_of(device, device.decode) is None
    assert device.closed


def span(n: int = 1, start: int = 0, seq_id: int = 0, n_logits: int = 1) -> Span:
    return Span(seq_id, start, [1] * n, n_logits)


class Kept:
    """What was chosen before every pass."""

    def __init__(self) -> None:
        self.now: Hashable = None
        self.n_choices = 0

    def choose(self, shape: Hashable | None) -> None:
        self.now = shape
        self.n_choices += 1

    def current(self) -> list[Recording]:
        return []

    def close(self) -> None:
        self.now = "closed"


def chosen(recorder: Recorder, *passes: Sequence[Span]) -> list[Hashable]:
    """What each pass is recorded as."""
    told = []
    assert isinstance(recorder.kept, Kept)
    for spans in passes:
        recorder.before(spans)
        told.append(recorder.kept.now)
    return told


FAR = 300  # beyond the first page


def test_a_shape_is_recorded_once_it_has_come_often_enough_in_a_row_or_not() -> None:
    told = chosen(Recorder(Kept()), *([span(start=FAR)], [span(8, FAR)]) * 4)
    assert told[:4] == [None] * 4
    one, eight = told[4:6]
    assert one is not None and eight is not None and one != eight
    assert told[6:] == [one, eight]


def test_in_the_first_page_where_a_start_times_passes_nothing_is_waited_for() -> None:
    one, eight = chosen(Recorder(Kept()), [span()], [span(8)])
    assert one is not None and eight is not None and one != eight


def test_equal_passes_are_not_chosen_anew() -> None:
    recorder = Recorder(kept := Kept())
    chosen(recorder, *[[span(start=i)] for i in range(100)])
    assert kept.n_choices == 1


def test_a_rare_shape_between_leaves_the_others_recorded() -> None:
    passes = [[span(start=FAR)]] * 4, [[span(8, FAR)], [span(5, FAR)], [span(start=FAR)]]
    told = chosen(Recorder(Kept()), *passes[0], *passes[1])
    assert told[4:] == [None, None, told[3]]
    assert told[3] is not None


def test_rows_logits_page_and_sequence_make_a_shape() -> None:
    recorder = Recorder(Kept())
    passes = ([span()], [span(2)], [span(2, n_logits=2)], [span(start=300)], [span(seq_id=1)])
    assert len(set(chosen(recorder, *passes))) == 5
    assert len(set(chosen(recorder, [span(start=10)], [span(start=200)]))) == 1


def test_in_one_cache_for_all_it_does_not_matter_whose_pass_it_is() -> None:
    recorder = Recorder(Kept(), unified=True)
    assert len(set(chosen(recorder, [span()], [span(seq_id=5)]))) == 1
    pairs = ([span(), span(seq_id=1)], [span(seq_id=3), span(seq_id=4)])
    assert len(set(chosen(recorder, *pairs))) == 1
    assert len(set(chosen(Recorder(Kept()), *pairs))) == 2


def test_shapes_without_number_are_forgotten() -> None:
    recorder = Recorder(Kept())
    chosen(recorder, *[[span(1, start=256 * i)] for i in range(2000)])
    assert len(recorder._n_passes) <= 256


def test_close_frees_the_recordings() -> None:
    recorder = Recorder(kept := Kept())
    recorder.close()
    assert kept.now == "closed"

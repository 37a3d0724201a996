"""CUDA's recordings are kept by shape: on C++ containers of the kind that ggml keeps them in."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.llama.hacks import recordings
from parlay.llama.hacks.recordings import CudaCalls, Recordings, _Data, find
from parlay.llama.settings import MOST_RECORDINGS as MOST

COMPILER = shutil.which("c++")
LAUNCHED, RECORDED, REPEATED = range(3)
PART, OTHER_PART = 1000, 2000  # of a pass, as ggml tells them apart
SECOND = 1_000_000  # microseconds
HANDLE = 77

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or COMPILER is None, reason="recordings by shape: Linux, a C++ compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("recordings") / "recordings.so"
    source = Path(__file__).with_name("recordings.cpp")
    command = [str(COMPILER), "-std=c++17", "-shared", "-fPIC", "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(made))
    found.open_data.restype = ctypes.c_void_p
    found.close_data.argtypes = [ctypes.c_void_p]
    found.set_now.argtypes = [ctypes.c_int64]
    found.instances.restype = found.graphs.restype = ctypes.c_int64
    found.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return found


class Machine:
    """A backend that passes run on, and its recordings; time stands still unless it is told."""

    def __init__(self, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
        self.library = library
        self.now_us = 1_000 * SECOND
        self.at: int = library.open_data()
        self.more: list[int] = []  # further backends
        self.has_virtual_memory = True
        self.taken: list[int] = []  # memory that was asked for
        self.freed: list[int] = []
        self.fails_at = -1
        self._patch(monkeypatch)
        library.set_now(self.now_us)
        for shape in (4, 4):  # as a context that has looked whether it can be cut
            self.run(shape)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        libc = ctypes.CDLL(None)
        libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        libc.calloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        destroy = (self.library.cudaGraphExecDestroy, self.library.cudaGraphDestroy)
        for call in destroy:
            call.argtypes = [ctypes.c_void_p]
        runtime = CudaCalls(*destroy, self._attribute, self._calloc, self._free)
        self.libc = libc
        for name, made in (
            ("_cuda_calls", lambda: runtime),
            ("name_of", lambda _backend: b"CUDA0"),
            ("backends", lambda _handle: [self.at, *self.more]),
            ("data_of", lambda backend: backend),
        ):
            monkeypatch.setattr(recordings, name, made)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_us * 1000)

    def _attribute(self, told: Any, which: int, _device: int) -> int:
        told._obj.value = int(self.has_virtual_memory)
        return int(which != 102)

    def _calloc(self, n: int, size: int) -> int:
        if self.fails_at == len(self.taken):
            raise KeyboardInterrupt
        self.taken.append(self.libc.calloc(n, size))
        return self.taken[-1]

    def _free(self, address: int) -> None:
        self.freed.append(address)
        self.libc.free(address)

    def run(self, shape: int, part: int = PART, after: int = 0) -> int:
        """A pass, so many seconds later: was it launched, recorded or repeated?"""
        self.now_us += after * SECOND
        self.library.set_now(self.now_us)
        return int(self.library.run(self.at, part, shape))

    def passes(self, found: Recordings, *shapes: int, part: int = PART) -> list[int]:
        """Passes over shapes, each with its own recording."""
        told = []
        for shape in shapes:
            found.choose(shape)
            told.append(self.run(shape, part))
        return told

    @property
    def n_alive(self) -> tuple[int, int]:
        return self.library.instances(), self.library.graphs()


@pytest.fixture
def machine(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(library, monkeypatch)
    before = made.n_alive
    yield made
    library.close_data(made.at)
    assert before == (1, 1) and made.n_alive == (0, 0), "each was freed, and once"


@pytest.fixture
def found(machine: Machine) -> Iterator[Recordings]:
    kept = find(HANDLE)
    assert kept is not None
    yield kept
    kept.close()


def test_a_shape_that_comes_back_finds_its_recording(machine: Machine, found: Recordings) -> None:
    assert machine.passes(found, 1, 1, 8, 8) == [LAUNCHED, RECORDED, LAUNCHED, RECORDED]
    assert machine.passes(found, 1, 8, 1, 1, 8) == [REPEATED] * 5


def test_as_llama_cpp_has_it_a_change_of_shape_loses_the_recording(machine: Machine) -> None:
    assert [machine.run(shape) for shape in (1, 1, 8, 8, 1, 1)] == [LAUNCHED, RECORDED] * 3


def test_passes_without_a_shape_are_launched_and_lose_nothing(
    machine: Machine, found: Recordings
) -> None:
    machine.passes(found, 1, 1)
    found.choose(None)
    assert [machine.run(8) for _ in range(4)] == [LAUNCHED] * 4
    assert machine.passes(found, 1) == [REPEATED]


def test_a_wrong_shape_costs_time_only(machine: Machine, found: Recordings) -> None:
    found.choose("one")
    assert [machine.run(shape) for shape in (1, 1, 1, 2, 2, 2, 1)] == [
        *(LAUNCHED, RECORDED, REPEATED),
        *(LAUNCHED, RECORDED, REPEATED),
        LAUNCHED,
    ]


def test_of_too_many_shapes_those_used_least_lately_change_hands(
    machine: Machine, found: Recordings
) -> None:
    for shape in (*range(MOST), 0, MOST):
        machine.passes(found, shape, shape)
    assert machine.n_alive[0] <= MOST + 1
    assert machine.passes(found, 0, MOST) == [REPEATED, REPEATED]
    assert machine.passes(found, 1) == [LAUNCHED]


def test_every_part_of_a_pass_has_its_own(machine: Machine, found: Recordings) -> None:
    for shape in (1, 1, 8, 8):
        found.choose(shape)
        machine.run(shape), machine.run(shape, OTHER_PART)
    found.choose(1)
    assert [machine.run(1), machine.run(1, OTHER_PART)] == [REPEATED, REPEATED]


def test_what_llama_cpp_frees_after_a_pause_is_not_used_again(
    machine: Machine, found: Recordings
) -> None:
    machine.passes(found, 1, 1, 8, 8)
    assert machine.run(8, after=60) == LAUNCHED, "it has freed the recording that was in place"
    assert machine.passes(found, 1, 8, 8) == [REPEATED, RECORDED, REPEATED]


def test_what_is_put_in_place_is_not_freed_as_long_unused(
    machine: Machine, found: Recordings
) -> None:
    machine.passes(found, 1, 1, 8, 8)
    for _ in range(5):
        machine.run(8, after=6)
    found.choose(1)
    assert machine.run(1, after=6) == REPEATED
    machine.now_us += 60 * SECOND  # nobody asks for anything
    assert machine.passes(found, 8) == [REPEATED]


def test_a_part_that_was_freed_and_came_back_has_one_recording(
    machine: Machine, found: Recordings
) -> None:
    for shape in (1, 1, 8):
        found.choose(shape)
        machine.run(shape), machine.run(shape, OTHER_PART)
    for _ in range(4):
        machine.run(8, after=6)  # the other part is freed, with the recording of 8
    found.choose(1)  # whose recording of that part nobody could put anywhere
    assert machine.run(1) == REPEATED
    assert machine.run(1, OTHER_PART) == LAUNCHED, "made anew by the library"
    found.choose(8)
    found.choose(1)
    assert machine.run(1, OTHER_PART) == RECORDED


def test_places_that_no_pass_comes_by_any_more_age_and_go(
    machine: Machine, found: Recordings
) -> None:
    """llama.cpp plans its passes anew now and then, and their parts begin elsewhere then."""
    for part in range(1, 30):
        for shape in (1, 2, 3, 1, 2, 3):
            found.choose(shape)
            machine.run(shape, part, after=1)
    assert _Data.from_address(machine.at).recordings.n_places <= 4
    assert machine.n_alive[0] <= 4 * 4


def test_two_devices_whose_parts_begin_at_the_same_node_have_recordings_of_their_own(
    machine: Machine, found: Recordings
) -> None:
    other: int = machine.library.open_data()
    machine.more.append(other)
    for shape in (4, 4):
        machine.library.run(other, PART, shape)
    found.close()
    both = find(HANDLE)
    assert both is not None
    told = []
    for shape in (1, 8, 1, 8, 1):
        both.choose(shape)
        told = [machine.library.run(at, PART, shape) for at in (machine.at, other)]
    assert told == [REPEATED, REPEATED]
    both.close()
    machine.library.close_data(other)


def test_an_interrupted_choice_leaves_every_recording_one_owner(
    machine: Machine, found: Recordings
) -> None:
    for shape in (1, 1):
        found.choose(shape)
        machine.run(shape), machine.run(shape, OTHER_PART)
    machine.fails_at = len(machine.taken) + 1  # at the second place of the next shape
    with pytest.raises(KeyboardInterrupt):
        found.choose(8)
    machine.fails_at = -1
    assert machine.passes(found, 1, 8, 8, 1) == [REPEATED, LAUNCHED, RECORDED, REPEATED]


STEPS = st.tuples(
    st.sampled_from(["choose", "pass", "wait"]), st.integers(0, 30), st.integers(1, 6)
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=80), st.booleans())
def test_whatever_comes_in_whatever_order_each_recording_is_freed_once(
    library: ctypes.CDLL, steps: list[tuple[str, int, int]], interrupts: bool
) -> None:
    before = library.instances(), library.graphs()
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(library, patch)
        found = find(HANDLE)
        assert found is not None
        for what, shape, n in steps:
            machine.fails_at = len(machine.taken) if interrupts and n == 1 else -1
            if what == "choose":
                with contextlib.suppress(KeyboardInterrupt):
                    found.choose(shape or None)
            elif what == "pass":
                machine.run(shape % 4, PART + shape // n)
            else:
                machine.now_us += shape * SECOND
        found.close()
        library.close_data(machine.at)
    assert (library.instances(), library.graphs()) == before


def test_close_leaves_what_the_library_frees_and_allows_it_to_record(
    machine: Machine, found: Recordings
) -> None:
    machine.passes(found, 1, 1, 8, 8)
    found.choose(None)
    found.close()
    assert machine.taken and set(machine.taken) <= set(machine.freed)
    n_own = len(machine.taken)
    assert len(machine.freed) == 3 * n_own, "and what each points to: two lists, or nothing"
    assert [machine.run(8) for _ in range(3)] == [LAUNCHED, RECORDED, REPEATED]
    assert machine.n_alive == (1, 1)


def test_what_the_library_has_freed_is_not_freed_again_at_the_end(
    machine: Machine, found: Recordings
) -> None:
    machine.passes(found, 1, 1, 8, 8)
    machine.run(8, after=60)
    found.close()
    found.close()


def broken_name(data: Any) -> None:
    data.name.inside = b"CUDA1"


def broken_map(data: Any) -> None:
    data.recordings.fullest = 0.5


def broken_mark(data: Any) -> None:
    recording_of(data).warm = 7


def broken_time(data: Any) -> None:
    recording_of(data).used_us += 3600 * SECOND


def broken_list(data: Any) -> None:
    recording_of(data).properties.room -= 8


def broken_count(data: Any) -> None:
    data.recordings.n_places = 2


def broken_fresh_part(data: Any) -> None:
    recording_of(data).compared = 0  # and yet it has been recorded


def recording_of(data: Any) -> Any:
    place = recordings._Place.from_address(data.recordings.first)
    return recordings.GraphRecord.from_address(place.recording)


BREAKS = (
    *(broken_name, broken_map, broken_count),
    *(broken_mark, broken_time, broken_list, broken_fresh_part),
)


@pytest.mark.parametrize("change", BREAKS)
def test_a_record_that_does_not_look_as_it_should_is_left_alone(
    machine: Machine, change: Any
) -> None:
    data = _Data.from_address(machine.at)
    size = ctypes.sizeof(_Data)
    whole = ctypes.string_at(machine.at, size)
    recording = ctypes.addressof(recording_of(data))
    held = ctypes.string_at(recording, ctypes.sizeof(recordings.GraphRecord))
    assert find(HANDLE) is not None
    change(data)
    assert find(HANDLE) is None
    ctypes.memmove(machine.at, whole, size)
    ctypes.memmove(recording, held, len(held))


@pytest.mark.parametrize("what", ["the record", "a place", "a recording", "its list"])
def test_memory_that_is_not_its_own_is_not_looked_into(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    data, recording = _Data.from_address(machine.at), recording_of(_Data.from_address(machine.at))
    hole = {
        "the record": machine.at,
        "a place": data.recordings.first,
        "a recording": ctypes.addressof(recording),
        "its list": recording.properties.begin,
    }[what]
    regions = [(0, hole), (hole + 1, 1 << 62)]
    monkeypatch.setattr(recordings, "own_regions", lambda: regions)
    assert find(HANDLE) is None


def test_without_virtual_memory_on_the_device_nothing_is_kept(machine: Machine) -> None:
    """The memory that kernels work in may be freed there, and a recording would write to it."""
    assert find(HANDLE) is not None
    machine.has_virtual_memory = False
    assert find(HANDLE) is None


def test_a_pass_in_too_many_parts_is_left_to_the_library(machine: Machine) -> None:
    for part in range(5):
        machine.run(1, part=part + 1)
    assert find(HANDLE) is None


def test_a_build_without_the_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings._cuda_calls.cache_clear()
    assert recordings._cuda_calls() is None, "this build of llama.cpp has no CUDA"
    assert find(HANDLE) is None

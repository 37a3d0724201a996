"""Recordings of passes: CUDA's backend records the kernels of a pass that comes twice in a row in
one shape, and repeats the recording for as long as the shape stays.

ggml keeps one recording of a context and makes it anew after every change of shape. It has no call
for more; here the place where it keeps it is given another recording for another shape. Whether one
fits a pass, ggml itself checks, node by node: a wrong choice costs time and changes no result. What
it does not check, the memory that kernels work in, must never be given back: so it is with virtual
memory on the device, which is asked for. ggml's record is changed only where everything that is
known of it is found in it. Knows nothing of passes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from parlay.llama.hacks.records import data_of, name_of
from parlay.llama.kernels import backends
from parlay.llama.large_pages import own_regions
from parlay.llama.library import C
from parlay.llama.settings import MOST_RECORDINGS

log = logging.getLogger("parlay.llama")

_MOST_PLACES = 4  # of one context: those split between a GPU and a CPU have one for each part
_SLACK = 256  # bytes of zeros behind a recording, should ggml's have come to hold more
_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_NAME = b"CUDA"  # how the names of backends begin that record
_WORD = ctypes.sizeof(ctypes.c_size_t)
_DEVICES, _STREAMS = 16, 8  # that ggml's record has room for
_RECENT_US = 60_000_000
_CALLS = ("cudaGraphExecDestroy", "cudaGraphDestroy", "cuDeviceGetAttribute")


class _Text(ctypes.Structure):
    """A `std::string` of libstdc++; a short one is inside of it."""

    _fields_ = (
        ("data", ctypes.c_size_t),
        ("length", ctypes.c_size_t),
        ("inside", ctypes.c_char * 16),
    )


class _List(ctypes.Structure):
    """A `std::vector`."""

    _fields_ = (
        ("begin", ctypes.c_size_t),
        ("end", ctypes.c_size_t),
        ("room", ctypes.c_size_t),
    )


class _Map(ctypes.Structure):
    """A `std::unordered_map` of libstdc++: all that it holds is one chain."""

    _fields_ = (
        ("buckets", ctypes.c_size_t),
        ("n_buckets", ctypes.c_size_t),
        ("first", ctypes.c_size_t),
        ("n_places", ctypes.c_size_t),
        ("fullest", ctypes.c_float),
    )


class _Place(ctypes.Structure):
    """One link of that chain: where ggml keeps the recording of one part of a pass."""

    _fields_ = (
        ("next", ctypes.c_size_t),
        ("part", ctypes.c_size_t),  # the first node of that part
        ("recording", ctypes.c_size_t),
    )


class _Data(ctypes.Structure):
    """What ggml keeps of a CUDA backend (`ggml_backend_cuda_context`), up to its recordings."""

    _fields_ = (
        ("device", ctypes.c_int),
        ("name", _Text),
        ("copied", ctypes.c_size_t),
        ("streams", ctypes.c_size_t * (_DEVICES * _STREAMS)),
        ("cublas", ctypes.c_size_t * (_DEVICES * _STREAMS)),
        ("spaces", ctypes.c_size_t * (_DEVICES * _STREAMS)),
        ("space_sizes", ctypes.c_size_t * _DEVICES),
        ("stream", ctypes.c_int),
        ("recordings", _Map),
    )


class GraphRecord(ctypes.Structure):
    """One recording (`ggml_cuda_graph`). All zeros is one of nothing yet, as ggml begins, too."""

    _fields_ = (
        ("graph", ctypes.c_size_t),
        ("instance", ctypes.c_size_t),  # 0: nothing is recorded
        ("n_nodes", ctypes.c_size_t),
        ("nodes", _List),
        ("forbidden", ctypes.c_uint8),  # ggml's mark for devices that cannot record
        ("warm", ctypes.c_uint8),  # the last two passes were equal
        ("compared", ctypes.c_uint64),  # the number of the graph that it was last compared with
        ("used_us", ctypes.c_int64),  # ggml frees those of a context that were not for ten seconds
        ("properties", _List),  # of the nodes of that pass
    )


_Key = tuple[int, int]  # of a place: which backend's, and the first node of its part


@dataclass(frozen=True)
class CudaCalls:
    """CUDA's and the system's calls that recordings take."""

    destroy_instance: Any
    destroy_graph: Any
    attribute: Any  # of a device
    calloc: Any
    free: Any


class Recordings:
    """Of one context, by shape. Only its owner asks, between two passes."""

    def __init__(self, maps: list[_Map], cuda: CudaCalls) -> None:
        self._maps = maps
        self._cuda = cuda
        self._by_shape: dict[Hashable, dict[_Key, int]] = {}  # used last comes last
        self._none: dict[_Key, int] = {}  # in their place where nothing is to be recorded
        self._chosen = self._none
        self._placed: dict[_Key, int] = {}  # what was put where
        self._told_us: dict[_Key, int] = {}  # when ggml was told that it was used
        self._keys: dict[_Key, None] = {}  # those that there were; seen last comes last

    def choose(self, shape: Hashable | None) -> None:
        """The next passes have this shape, and a recording of their own; None: they are launched
        kernel by kernel, and all recordings stay as they are."""
        places = self._places()
        self._notice(places)
        chosen = self._none if shape is None else self._of(shape)
        try:
            self._put(chosen, places, forbidden=shape is None)
            placed = {key: place.recording for key, place in places.items()}
        except BaseException:  # interrupted: each recording has one owner again
            for key, place in places.items():
                place.recording = self._placed[key]
            raise
        self._chosen, self._placed = chosen, placed

    def _put(self, held: dict[_Key, int], places: dict[_Key, _Place], *, forbidden: bool) -> None:
        """A shape's recordings into their places. A place that no pass came by since the last time
        ages as ever: ggml frees it one day."""
        now_us = time.monotonic_ns() // 1000
        for key, place in places.items():
            if key not in held:
                held[key] = self._new()
            last_us = GraphRecord.from_address(place.recording).used_us
            recording = GraphRecord.from_address(held[key])
            recording.used_us = last_us if last_us == self._told_us.get(key) else now_us
            recording.forbidden = forbidden
            self._told_us[key], place.recording = recording.used_us, held[key]

    def _new(self) -> int:
        made: int | None = self._cuda.calloc(1, ctypes.sizeof(GraphRecord) + _SLACK)
        if not made:
            raise MemoryError("no room for another recording of a pass")
        return made

    def current(self) -> list[GraphRecord]:
        """Those that the next pass is compared with."""
        return [GraphRecord.from_address(place.recording) for place in self._places().values()]

    def close(self) -> None:
        """Free what ggml does not know of: while the device is idle, before it frees the rest."""
        kept = set(self._placed.values())  # ggml frees them, or has
        for held in self._all():
            for address in set(held.values()) - kept:
                self._free(address)
        for recording in self.current():
            recording.forbidden = False
        self._by_shape.clear()
        self._none, self._placed, self._chosen = {}, {}, {}

    def _all(self) -> list[dict[_Key, int]]:
        return [self._none, *self._by_shape.values()]

    def _places(self) -> dict[_Key, _Place]:
        """Those there are now: ggml makes them in passes, and frees what was not used for long."""
        found = {}
        for i, held in enumerate(self._maps):
            at = held.first
            while at:
                place = _Place.from_address(at)
                found[i, place.part] = place
                at = place.next
        return found

    def _notice(self, places: dict[_Key, _Place]) -> None:
        """What ggml has freed and made since the last choice is no more, or the last shape's."""
        there = {key: place.recording for key, place in places.items()}
        for key, placed in self._placed.items():
            if there.get(key) != placed:
                del self._chosen[key]
        for key, found in there.items():
            older, self._chosen[key] = self._chosen.get(key, found), found
            if older != found:
                self._free(older)  # from before ggml had freed and remade that place
            self._keys.pop(key, None)
            self._keys[key] = None
        self._placed = there
        while len(self._keys) > max(_MOST_PLACES, len(there)):
            self._forget(next(iter(self._keys)))

    def _forget(self, key: _Key) -> None:
        """A place that was not there for long, and all recordings that are for it."""
        del self._keys[key]
        self._told_us.pop(key, None)
        for held in self._all():
            if key in held:
                self._free(held.pop(key))

    def _of(self, shape: Hashable) -> dict[_Key, int]:
        """A shape's own; of too many, those that were not used for longest change hands."""
        held = self._by_shape.pop(shape, None)
        if held is None:
            full = len(self._by_shape) >= MOST_RECORDINGS
            held = self._by_shape.pop(next(iter(self._by_shape))) if full else {}
        self._by_shape[shape] = held
        return held

    def _free(self, address: int) -> None:
        recording, cuda = GraphRecord.from_address(address), self._cuda
        if recording.instance:
            cuda.destroy_instance(recording.instance)
        if recording.graph:
            cuda.destroy_graph(recording.graph)
        for memory in (recording.nodes.begin, recording.properties.begin, address):
            cuda.free(memory)


def find(handle: int) -> Recordings | None:
    """The recordings of a context that has just made a few passes; None where there are none, or
    they do not look as they should."""
    cuda = _cuda_calls() if sys.platform == "linux" else None
    if cuda is None:
        return None
    found = [(each, name_of(each)) for each in backends(handle)]
    devices = [(data_of(each), name) for each, name in found if name.startswith(_NAME)]
    regions = own_regions()
    usual = [at for at, name in devices if at is not None and _is_usual(at, name, regions)]
    if not usual or len(usual) != len(devices):
        log.debug("llama.cpp records passes in its own way: its record of them was not found")
        return None
    data = [_Data.from_address(at) for at in usual]
    n_places = sum(each.recordings.n_places for each in data)
    if n_places > _MOST_PLACES or not all(_keeps_memory(cuda, each.device) for each in data):
        return None
    return Recordings([each.recordings for each in data], cuda)


def _keeps_memory(cuda: CudaCalls, device: int) -> bool:
    """Whether ggml's memory for kernels to work in only grows: else it may be freed, and a
    recording does not know."""
    told = ctypes.c_int(0)
    code = cuda.attribute(ctypes.byref(told), _VIRTUAL_MEMORY, device)
    return code == 0 and told.value == 1 and b"NO_VMM" not in C.llama_print_system_info()


@functools.cache
def _cuda_calls() -> CudaCalls | None:
    """None where this build does not give its calls away."""
    libc = ctypes.CDLL(None)
    try:
        destroy_instance, destroy_graph, attribute = [C.lib[name] for name in _CALLS]
        calloc, free = libc.calloc, libc.free
    except AttributeError:
        return None
    for call in (destroy_instance, destroy_graph, free):
        call.argtypes, call.restype = [ctypes.c_void_p], ctypes.c_int
    attribute.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int]
    calloc.argtypes, calloc.restype = [ctypes.c_size_t, ctypes.c_size_t], ctypes.c_void_p
    free.restype = None
    return CudaCalls(destroy_instance, destroy_graph, attribute, calloc, free)


def _is_usual(at: int, name: bytes, regions: list[tuple[int, int]]) -> bool:
    """Whether a CUDA backend's data look as they should, its name among them."""

    def is_own(address: int, size: int) -> bool:
        return address % _WORD == 0 and any(
            a <= address and address + size <= b for a, b in regions
        )

    if not is_own(at, ctypes.sizeof(_Data)):
        return False
    data = _Data.from_address(at)
    inside = at + _Data.name.offset + _Text.inside.offset
    if data.name.data != inside or data.name.inside[: data.name.length] != name:
        return False
    held, now_us = data.recordings, time.monotonic_ns() // 1000
    if held.fullest != 1.0 or not 0 < held.n_places <= held.n_buckets:
        return False
    n, at = 0, held.first
    while at and n <= held.n_places:
        if not is_own(at, ctypes.sizeof(_Place)):
            return False
        place = _Place.from_address(at)
        if not is_own(place.recording, ctypes.sizeof(GraphRecord)):
            return False
        recording = GraphRecord.from_address(place.recording)
        nodes = recording.properties
        known = recording.forbidden == 0 and recording.warm <= 1
        recent = 0 <= now_us - recording.used_us < _RECENT_US
        if recording.compared:
            listed = nodes.begin < nodes.end <= nodes.room
            listed = listed and is_own(nodes.begin, nodes.end - nodes.begin)
        else:  # of a part that was planned and has not been in a pass yet
            listed = not any((nodes.begin, nodes.end, recording.instance, recording.graph))
        if not (known and recent and listed):
            return False
        n, at = n + 1, place.next
    return n == int(held.n_places)

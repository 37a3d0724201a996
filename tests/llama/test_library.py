"""The library: its log, its return codes, its devices, and how many threads may spin."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import psutil
import pytest

from parlay.errors import DecodeError, LoadError
from parlay.llama import library
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings

# -- the log -----------------------------------------------------------------------------------


def own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the library said on this thread, whoever else is at work."""
    return [r for r in caplog.records if r.name == "parlay.llama" and r.threadName == "MainThread"]


def test_llama_cpps_log_goes_to_logging_and_not_to_the_terminal(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "parlay.llama"):
        Model(tiny_llama, ModelSettings()).close()
    assert any("llama_model_loader" in record.message for record in own(caplog))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_load_says_nothing_above_info_when_all_is_well(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "parlay.llama"):
        Model(tiny_llama, ModelSettings()).close()
    assert max(record.levelno for record in own(caplog)) < logging.WARNING


@pytest.mark.parametrize(
    ("level", "shown"),
    [(1, logging.DEBUG), (2, logging.DEBUG), (3, logging.INFO), (4, logging.WARNING)],
)
def test_levels_are_translated_and_a_continued_line_keeps_its_own(
    level: int, shown: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "parlay.llama"):
        library._log(level, b"first\n", None)
        library._log(5, b"and on\n", None)
        library._log(level, b"\n", None)  # an empty line says nothing
    assert [(r.levelno, r.message) for r in own(caplog)] == [(shown, "first"), (shown, "and on")]


def test_a_line_that_is_not_utf_8_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "parlay.llama"):
        library._log(4, b"bad \xff byte %s", None)
    assert own(caplog)[0].getMessage() == "bad \ufffd byte %s"


def test_the_first_complaint_is_the_reason_and_later_ones_are_echoes() -> None:
    library.forget_errors()
    assert library.last_error() == "llama.cpp gave no reason"
    library._log(2, b"all is well", None)
    library._log(4, b"the cause", None)
    library._log(4, b"the echo", None)
    assert library.last_error() == "the cause"
    library.forget_errors()
    assert library.last_error() == "llama.cpp gave no reason"


def test_an_error_of_an_earlier_load_is_not_blamed_on_the_next(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library._log(4, b"an old story", None)
    monkeypatch.setattr(C, "llama_model_load_from_file", lambda *_: None)
    with pytest.raises(LoadError, match="gave no reason"):
        Model(tiny_llama, ModelSettings())


# -- return codes ------------------------------------------------------------------------------


def test_zero_is_the_only_code_that_passes() -> None:
    library.check(0, "llama_decode")
    for code in (1, 2, -1, -2, -3, 77):
        with pytest.raises(DecodeError, match=f"llama_decode failed with code {code}") as caught:
            library.check(code, "llama_decode")
        assert caught.value.code == code
        assert "\n" not in caught.value.message


def test_an_unknown_code_carries_llama_cpps_own_words() -> None:
    library.forget_errors()
    library._log(4, b"compute failed", None)
    with pytest.raises(DecodeError, match="compute failed"):
        library.check(-3, "llama_decode")


def test_a_decode_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DecodeError("broken", code=-3)))
    assert (error.message, error.code) == ("broken", -3)


# -- the machine -------------------------------------------------------------------------------


def test_the_cpu_is_among_the_devices() -> None:
    devices = library.devices()
    cpu = next(device for device in devices if device.kind == "cpu")
    assert cpu.name.startswith("CPU")
    assert cpu.description
    assert cpu.total_bytes > 0
    assert len({device.name for device in devices}) == len(devices)
    assert set(library.device_handles()) == {device.name for device in devices}


def test_there_is_a_gpu_only_if_a_device_says_so() -> None:
    kinds = {device.kind for device in library.devices()}
    assert library.has_gpu() == bool(kinds & {"gpu", "igpu"})


def test_the_version_is_known() -> None:
    assert library.version() not in ("", "unknown")


def test_no_more_threads_than_cores() -> None:
    assert 1 <= library.default_threads() <= (os.cpu_count() or 1)
    assert library.default_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("physical", "allowed", "quota", "threads"),
    [
        (8, 16, None, 8),  # hyper-threads do not count
        (8, 4, None, 4),  # taskset
        (8, 16, 3, 3),  # a container's quota
        (None, 16, None, 6),  # unknown: what the system calls CPUs
        (8, 16, 1, 1),
    ],
)
def test_threads_are_physical_cores_within_affinity_and_quota(
    physical: int | None,
    allowed: int,
    quota: int | None,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(library, "_cgroup_cores", lambda: quota)
    assert library.default_threads.__wrapped__() == threads


GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 10 * GIB),  # no container
        ({"memory.max": "max", "memory.current": "5", "memory.stat": ""}, 10 * GIB),
        ({"memory.max": 8 * GIB, "memory.current": 3 * GIB, "memory.stat": "anon 1"}, 5 * GIB),
        (
            {
                "memory.max": 8 * GIB,
                "memory.current": 8 * GIB,
                "memory.stat": f"inactive_file {2 * GIB}\nactive_file {GIB}",
            },
            3 * GIB,  # mapped weights give way
        ),
        ({"memory.max": GIB, "memory.current": 2 * GIB, "memory.stat": "anon 1"}, 0),
        ({"memory.max": 99 * GIB, "memory.current": 0, "memory.stat": "anon 1"}, 10 * GIB),
    ],
)
def test_free_memory_is_what_the_machine_and_the_container_leave(
    files: dict[str, object], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        available = 10 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    for name, content in files.items():
        (tmp_path / name).write_text(str(content))
    assert library.free_ram(tmp_path) == free

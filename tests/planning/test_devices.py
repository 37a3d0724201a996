"""Memory as drivers, sysfs and cgroups tell it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from parlay.llama.library import Device
from parlay.planning import devices
from parlay.planning.devices import GIB
from parlay.planning.limits import usable_pools


def test_a_container_s_limit_is_the_ram(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(GIB))
    (tmp_path / "memory.current").write_text(str(GIB // 2))
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {GIB // 4}\n")
    pool = devices.ram(tmp_path)
    assert (pool.total, pool.free) == (GIB, GIB // 2 + GIB // 4)
    assert "container" in pool.name


def test_without_a_limit_it_is_the_machine_s(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.ram(tmp_path).total == psutil.virtual_memory().total


def test_amd_cards_are_read_from_sysfs(tmp_path: Path) -> None:
    card = tmp_path / "card0" / "device"
    card.mkdir(parents=True)
    (tmp_path / "card1" / "device").mkdir(parents=True)  # another maker's
    (card / "mem_info_vram_total").write_text(str(16 * GIB))
    (card / "mem_info_vram_used").write_text(str(GIB))
    (pool,) = devices._amd(tmp_path)
    assert (pool.kind, pool.total, pool.free) == ("gpu", 16 * GIB, 15 * GIB)


class _Nvml(SimpleNamespace):
    """As much of nvidia-ml-py as is used."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.closed = False

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=24 * GIB, free=(20 - handle) * GIB)

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"RTX"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[int]:
        return [1] * handle


def test_nvidia_cards_are_asked_of_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = _Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second, *rest = devices.pools()
    assert (first.name, first.kind, first.total, first.free) == ("RTX", "gpu", 24 * GIB, 20 * GIB)
    assert (first.n_processes, second.n_processes) == (0, 1)
    assert nvml.closed
    assert rest[-1].kind == "ram"


@pytest.mark.parametrize("module", [None, _Nvml(fails=True)])
def test_without_a_driver_there_is_no_card(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert list(devices._nvidia()) == []


def test_without_a_driver_s_library_llama_cpp_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("CUDA0", "RTX", "gpu", free_bytes=9 * GIB, total_bytes=12 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("parlay.llama.library.devices", lambda: [gpu])
    first, second = usable_pools()
    assert (first.name, first.free, second.kind) == ("RTX", 9 * GIB, "ram")
    monkeypatch.setattr("parlay.llama.library.devices", list)
    assert [pool.kind for pool in usable_pools()] == ["ram"]


def test_a_card_hidden_from_llama_cpp_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("CUDA0", "RTX", "gpu", free_bytes=9 * GIB, total_bytes=24 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml())  # two cards
    monkeypatch.setattr("parlay.llama.library.devices", lambda: [gpu])
    assert [pool.free for pool in usable_pools()[:-1]] == [9 * GIB]
    monkeypatch.setattr("parlay.llama.library.devices", lambda: [gpu, gpu])
    assert [pool.free for pool in usable_pools()[:-1]] == [20 * GIB, 19 * GIB]


def test_a_mac_shares_its_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    gpu, ram = devices.pools()
    assert (gpu.kind, ram.kind) == ("unified", "ram")
    assert gpu.total == int(psutil.virtual_memory().total * 0.75)

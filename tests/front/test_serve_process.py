"""`parlay serve` as its processes: what each of them has loaded, and one engine after another."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.proofs.engine_deaths import prove
from tests import doors
from tests.serving import PATIENCE_S


def loaded(process: psutil.Process) -> set[str]:
    """Names of the libraries in its memory."""
    return {Path(found.path).name.partition(".")[0] for found in process.memory_maps()}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's tables")
def test_llama_cpp_is_in_the_engine_process_and_never_in_the_front(
    target: Path, tmp_path: Path
) -> None:
    with doors.server_process(tmp_path, target) as server:
        assert server.ask(door="completions").n_generated > 0
        assert any("llama" in name for name in loaded(server.engine()))
        front = psutil.Process(server.process.pid)
        assert not any("llama" in name or "ggml" in name for name in loaded(front))


def test_another_engine_takes_over_without_a_request_being_dropped(
    target: Path, tmp_path: Path
) -> None:
    with doors.server_process(tmp_path, target) as server:
        old = server.engine()
        options = {**doors.ENDLESS, "max_tokens": 2000}
        with server.stream("hello", "completions", **options) as stream:
            stream.first_words()
            doors.deployment(server.file, target, runtime__slots=3, server__max_answer_tokens=7)
            server.signal(signal.SIGHUP)
            doors.until(lambda: server.figures()["queue"]["slots"] == 3)
            assert server.ask(door="completions").n_generated <= 7
            *_, last = stream.events()
        assert last["choices"][0]["finish_reason"] == "length"
        old.wait(PATIENCE_S)
        assert server.engine().pid != old.pid
        # One that cannot be loaded changes nothing, and says so.
        doors.deployment(server.file, tmp_path / "gone.gguf")
        server.signal(signal.SIGHUP)
        doors.until(lambda: "reload" in [each["kind"] for each in server.figures()["alerts"]])
        assert server.ask(door="completions").n_generated > 0


def test_deaths_under_many_streams_leave_nothing_behind(target: Path) -> None:
    """A hundred of them: benchmarks/proofs/engine_deaths.py."""
    out = prove(target, 2, 32)
    assert out.problems == []
    assert (out.n_told, out.n_answered) == (32, 32)

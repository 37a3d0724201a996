"""The request log: whatever happens to its file, it writes to a file of its own and to no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from parlay.deployment import DeploymentError, load_deployment
from parlay.front.request_log import RequestLog, check_log


def lines(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RequestLog(path, max_bytes=10_000, keep=2)
    log.write({"n": 1})
    path.rename(tmp_path / "taken")
    log.write({"n": 2})
    log.close()
    assert lines(tmp_path / "taken") == [1] and lines(path) == [2]


def test_a_full_file_that_was_moved_away_costs_no_other_file_anything(tmp_path: Path) -> None:
    path, victim = tmp_path / "log", tmp_path / "victim"
    log = RequestLog(path, max_bytes=15, keep=2)
    log.write({"n": 1})
    path.rename(tmp_path / "taken")
    log.write({"n": 22222})  # there is no room for it in the file that went
    other = os.open(victim, os.O_RDWR | os.O_CREAT)  # gets the first number that is free
    log.write({"n": 3})
    log.close()
    assert os.fstat(other).st_size == 0  # still ours, and still empty
    os.close(other)
    assert lines(path) == [3]


def test_a_folder_that_went_costs_lines_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    log = RequestLog(folder / "log", max_bytes=20, keep=1)
    log.write({"n": 1})
    (folder / "log").rename(tmp_path / "taken")
    folder.rmdir()
    log.write({"n": 2})
    assert "cannot be written" in caplog.text
    folder.mkdir()
    log.write({"n": 3})
    log.close()
    assert lines(folder / "log") == [3]


def test_a_path_that_cannot_be_written_is_a_mistake_in_the_deployment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = {"monitoring.request_log": str(tmp_path / "file" / "log")}
    with pytest.raises(DeploymentError, match=r"monitoring\.request_log"):
        RequestLog.of(load_deployment(environ={}, overrides=given).monitoring)
    with pytest.raises(DeploymentError, match=r"monitoring\.request_log"):
        check_log(load_deployment(environ={}, overrides=given).monitoring)


def test_a_check_refuses_a_folder_and_makes_nothing(tmp_path: Path) -> None:
    given = {"monitoring.request_log": str(tmp_path)}
    with pytest.raises(DeploymentError, match="it is a folder"):
        check_log(load_deployment(environ={}, overrides=given).monitoring)
    given = {"monitoring.request_log": str(tmp_path / "new" / "log")}
    check_log(load_deployment(environ={}, overrides=given).monitoring)
    assert not list(tmp_path.iterdir())

"""The request log: one JSON line per answered request, on disk before its last byte is sent.

Knows files and numbers; prompts and answers only if the deployment asks for them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from parlay import store
from parlay.deployment import DeploymentError, MonitoringSection

log = logging.getLogger("parlay.server")
_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/infill": "infill",
}


def check_log(monitoring: MonitoringSection) -> None:
    """Refuse a log that could not be written; begins none."""
    if monitoring.request_log is None:
        return
    path = Path(monitoring.request_log)
    if path.is_dir():
        raise _unwritable(monitoring.request_log, "it is a folder")
    fine = os.access(path, os.W_OK) if path.exists() else store.can_hold(path.parent)
    if not fine:
        raise _unwritable(monitoring.request_log, "no permission, or no folder")


def _unwritable(name: str, why: str | None) -> DeploymentError:
    return DeploymentError(
        f"monitoring.request_log: {name} cannot be written ({why}); name another file"
    )


class RequestLog:
    """Appends lines and starts a new file when one is full."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()

    @classmethod
    def of(cls, monitoring: MonitoringSection) -> RequestLog | None:
        """The log a deployment asks for, if any."""
        if monitoring.request_log is None:
            return None
        n_bytes = int(monitoring.request_log_max_mb * 1e6)
        try:
            return cls(Path(monitoring.request_log), n_bytes, monitoring.request_log_keep)
        except OSError as error:
            raise _unwritable(monitoring.request_log, error.strerror) from None

    def write(self, record: dict[str, Any]) -> None:
        """One line, handed to the system at once: killing the server loses none."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size and size + len(line) > self._max_bytes:
                self._rotate()
            elif self._moved():
                self._exchange()
            self._file.write(line)
        except OSError as error:  # a full disk must not cost an answer
            log.error("the request log cannot be written: %s", error.strerror)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> FileIO:
        opener = partial(os.open, mode=0o600)
        return FileIO(self._path, "a", opener=opener)

    def _exchange(self) -> None:
        """Go on in a new file; the old one is let go once there is a new one, and only then."""
        old, self._file = self._file, self._open()
        old.close()

    def _moved(self) -> bool:
        """Whether somebody took the file away, as those who rotate logs do."""
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def _rotate(self) -> None:
        """log -> log.1 -> log.2 ...; the oldest goes."""
        if not self._moved():
            for n in range(self._keep - 1, 0, -1):
                with suppress(FileNotFoundError):
                    self._numbered(n).replace(self._numbered(n + 1))
            with suppress(FileNotFoundError):
                self._path.replace(self._numbered(1))
        self._exchange()

    def _numbered(self, n: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{n}")


def timestamp() -> str:
    """Now, as every line has it."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


def endpoint_of(path: str) -> str:
    """A route's name in lines and metrics: never what a client made up."""
    return _ENDPOINTS.get(path, "other")

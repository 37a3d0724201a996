"""The request log: one JSON line per answered request, on disk before its last byte is sent.

Knows files and numbers; prompts and answers only if the deployment asks for them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from parlay.deployment import MonitoringSection

log = logging.getLogger("parlay.server")


class RequestLog:
    """Appends lines and starts a new file when one is full."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    @classmethod
    def of(cls, monitoring: MonitoringSection) -> RequestLog | None:
        """The log a deployment asks for, if any."""
        if monitoring.request_log is None:
            return None
        n_bytes = int(monitoring.request_log_max_mb * 1e6)
        return cls(Path(monitoring.request_log), n_bytes, monitoring.request_log_keep)

    def write(self, record: dict[str, Any]) -> None:
        """One line, handed to the system at once: killing the server loses none."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            if self._size and self._size + len(line) > self._max_bytes:
                self._rotate()
            os.write(self._file, line)
            self._size += len(line)
        except OSError as error:  # a full disk must not cost an answer
            log.error("the request log cannot be written: %s", error.strerror)

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        """log -> log.1 -> log.2 ...; the oldest goes."""
        os.close(self._file)
        for n in range(self._keep - 1, 0, -1):
            older = self._numbered(n)
            if older.exists():
                older.replace(self._numbered(n + 1))
        self._path.replace(self._numbered(1))
        self._open()

    def _numbered(self, n: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{n}")


def timestamp() -> str:
    """Now, as every line has it."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"

"""The samples file: one JSON line for each finished request, written at once, read to resume.

Append-only. Knows samples and a header that says which run they belong to; measures nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parlay.bench.sample import Sample
from parlay.errors import BadRequest

Key = tuple[int, str, str]  # repeat, prompt, arm


def key_of(sample: Sample) -> Key:
    return sample.repeat, sample.prompt, sample.arm


class SampleFile:
    """Samples with their texts; the text stays in this file and never reaches a result."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Start the file, or go on with one that has the same header."""
        self.path = path
        self.samples: dict[Key, Sample] = {}
        self.texts: dict[Key, str] = {}
        self.n_sittings = 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._read(header)
            else:
                self._append({"header": header})
        except OSError as error:
            raise BadRequest(f"{path.name}: {error.strerror}; choose another --out") from error

    def add(self, sample: Sample, text: str) -> None:
        """Keep one; it is on the disk when this returns."""
        self._append({"sample": sample.model_dump(exclude_defaults=True), "text": text})
        self._keep(sample, text)

    def drop_partial(self, arms: set[str]) -> None:
        """Forget pairs that an interruption cut in two: their halves lie too far apart."""
        by_pair: dict[tuple[int, str], set[str]] = {}
        for repeat, prompt, arm in self.samples:
            by_pair.setdefault((repeat, prompt), set()).add(arm)
        whole = {pair for pair, seen in by_pair.items() if seen >= arms}
        for key in [key for key in self.samples if key[:2] not in whole]:
            del self.samples[key], self.texts[key]

    def _keep(self, sample: Sample, text: str) -> None:
        # A pair that was run again replaces the halves of the first attempt.
        self.samples[key_of(sample)] = sample
        self.texts[key_of(sample)] = text

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, header: dict[str, Any]) -> None:
        whole = self._cut_torn_line()
        lines = whole.splitlines()
        if not lines:
            self._append({"header": header})
            return
        self._check_header(lines[0], header)
        for number, line in enumerate(lines[1:], 2):
            self._take(line, number)
        self.n_sittings += sum('"resumed"' in line for line in lines[1:]) + 1
        self._append({"resumed": len(self.samples)})

    def _cut_torn_line(self) -> str:
        """An interruption can leave half a line at the end; it is cut off."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return whole.decode("utf-8", "replace")

    def _check_header(self, line: str, header: dict[str, Any]) -> None:
        try:
            found = json.loads(line)["header"]
        except (ValueError, KeyError, TypeError):
            found = None
        if found != json.loads(json.dumps(header)):
            raise BadRequest(
                f"{self.path.name} belongs to another run;"
                " use the same options to resume it, or choose another --out"
            )

    def _take(self, line: str, number: int) -> None:
        try:
            row = json.loads(line)
            if "sample" in row:
                self._keep(Sample.model_validate(row["sample"]), str(row["text"]))
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise BadRequest(
                f"{self.path.name} line {number} is damaged; remove the file or choose another"
                " --out"
            ) from error

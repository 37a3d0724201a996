"""The variants of a repository: its GGUF files by quantisation, split files as one.

Knows file names and sizes; opens no file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_TAG = re.compile(
    r"(?:^|[-._/])((?:UD[-_])?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))"
    r"(?=$|[-._/])",
    re.IGNORECASE,
)
_UNQUANTISED = ("F32", "F16", "BF16")
# Parts of models and data about them, which are no language models of their own.
_ASIDE = re.compile(
    r"(^|[-._/])(mmproj|imatrix|mtp|eagle3?|dflash|draft|drafter|assistant)([-._/]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    n_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One model: a file, or several that belong together."""

    stem: str
    quantisation: str | None
    files: tuple[RemoteFile, ...]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)

    @property
    def path(self) -> str:
        """The file to open; llama.cpp finds the others of a split model."""
        return self.files[0].path

    @property
    def quantised(self) -> bool:
        return self.quantisation is not None and self.quantisation not in _UNQUANTISED

    @property
    def label(self) -> str:
        return self.quantisation or self.stem.rsplit("/", 1)[-1]


def variants(files: Iterable[RemoteFile]) -> list[Variant]:
    """Every complete model, the smallest first; parts of a split one stand together."""
    groups: defaultdict[tuple[str, int], list[RemoteFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.path):
        if file.path.lower().endswith(".gguf"):
            groups[split_of(file.path)].append(file)
    found = [
        Variant(stem, quantisation_of(stem), tuple(parts))
        for (stem, count), parts in groups.items()
        if len(parts) == count
    ]
    return sorted(found, key=lambda variant: (variant.n_bytes, variant.stem))


def is_model(variant: Variant) -> bool:
    """Not a projector, an importance matrix or a drafter's head."""
    return _ASIDE.search(variant.stem) is None


def split_of(path: str) -> tuple[str, int]:
    """A path without its ending and part number, and how many parts there are."""
    stem = path[: -len(".gguf")]
    found = _SPLIT.fullmatch(stem)
    return (found["stem"], int(found["count"])) if found else (stem, 1)


def is_first_part(path: str) -> bool:
    found = _SPLIT.fullmatch(path[: -len(".gguf")])
    return found is None or int(found["number"]) == 1


def quantisation_of(stem: str) -> str | None:
    """The last mark such as Q4_K_M in a name."""
    found: list[str] = _TAG.findall(stem)
    return found[-1].upper().replace("UD_", "UD-") if found else None


def matching(found: Sequence[Variant], quantisation: str) -> list[Variant]:
    """Variants of that quantisation; a plain Q4_K_M goes before UD-Q4_K_M, which it also finds."""
    wanted = quantisation.upper()
    exact = [v for v in found if v.quantisation == wanted]
    return exact or [v for v in found if wanted in v.stem.upper()]

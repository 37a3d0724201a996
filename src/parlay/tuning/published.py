"""Drafters that are published for a target under the usual names: found, checked, fetched.

Asks the hub and reads headers before anything is fetched; what pays is found out by racing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from parlay.errors import ModelUnavailable
from parlay.hub.card import CardFacts, could_draft, read_card
from parlay.hub.fetching import Say, fetch
from parlay.hub.place import Entry, hub_name
from parlay.hub.repository import Repository, read_repository, search
from parlay.hub.variant import Variant, quantisation_of, split_of
from parlay.hub.variant_fit import laid_out

_KINDS = ("eagle3", "dflash", "draft")
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", re.IGNORECASE)
_MAX_REPOS = 12
# A draft model should be quick before it is good: small types first, if they are there.
_TYPES = ("Q4_0", "Q4_K_M", "Q4_K_S", "Q8_0")


def published(target: Path, say: Say) -> list[Entry]:
    """Files fetched for the race, by their names on the hub."""
    says = read_card(target)
    if says is None:
        return []
    found: list[Entry] = []
    for repo in _repositories(base_name(target)):
        try:
            found += _from(repo, says, say)
        except ModelUnavailable as error:
            say(f"passed over: {error.message}")
    return found


def base_name(target: Path) -> str:
    """A file's name without its quantisation, as repositories are called."""
    stem = split_of(target.name)[0] if target.suffix == ".gguf" else target.name
    mark = quantisation_of(stem)
    return stem[: -len(mark)].rstrip("-._") if mark and stem.upper().endswith(mark) else stem


def _repositories(base: str) -> list[str]:
    heads = [repo for kind in _KINDS for repo in search(f"{base} {kind}")]
    return list(dict.fromkeys([*heads, *_siblings(base)]))[:_MAX_REPOS]


def _siblings(base: str) -> Iterator[str]:
    """Of the same family and kind, but smaller; one repository for each size."""
    own = _SIZE.search(base)
    if own is None:
        return
    family, rest = base[: own.start()].rstrip("-_. "), base[own.end() :].strip("-_. ").lower()
    sizes: set[float] = set()
    for repo in search(family):
        found = _SIZE.search(repo)
        if found is None or rest not in repo.lower():
            continue
        size = _billions(found)
        if size <= _billions(own) / 2 and size not in sizes:
            sizes.add(size)
            yield repo


def _billions(found: re.Match[str]) -> float:
    return float(found[1]) / (1000 if found[2] in "mM" else 1)


def _from(repo: str, target: CardFacts, say: Say) -> list[Entry]:
    repository = read_repository(repo)
    variant = _small(repository)
    if not _could_draft(repository, variant, target):
        return []
    path = fetch(repository, variant, say)
    return [Entry(hub_name(repository.name, variant.path), path, "hub")]


def _small(repository: Repository) -> Variant:
    by_type = {v.quantisation: v for v in reversed(repository.variants)}
    return next((by_type[t] for t in _TYPES if t in by_type), repository.variants[0])


def _could_draft(repository: Repository, variant: Variant, target: CardFacts) -> bool:
    """By the header alone, which is read before the file is fetched."""
    with laid_out(repository.name, variant) as path:
        says = read_card(path)
    return says is not None and could_draft(says, target)

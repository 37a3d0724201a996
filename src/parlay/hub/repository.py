"""A repository of the hub: its GGUF files, its licence, and in one line why it cannot be had.

Knows the hub's library and its errors; stores nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parlay.errors import ModelUnavailable
from parlay.hub.variant import RemoteFile, Variant, variants

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_N_NEAREST, _N_SEARCHED, _SEARCH_S = 3, 30, 10.0


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of it now."""

    name: str
    licence: str | None
    gated: bool
    variants: tuple[Variant, ...]


def endpoint() -> str | None:
    """A mirror, if the hub's own variable names one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids to ask."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def api() -> HfApi:
    """The hub's own client: tokens, mirrors, proxies and offline mode are its variables."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name="parlay")


def read_repository(name: str) -> Repository:
    """Its files, in one request. A repository that was renamed comes under its new name."""
    with explained(name):
        info: Any = api().model_info(name, files_metadata=True)
    files = [_file(sibling) for sibling in info.siblings or ()]
    found = variants(files)
    if not found:
        raise ModelUnavailable(f"{name} holds no GGUF files{_conversions(name)}")
    card = info.card_data or {}
    return Repository(str(info.id), _licence(card), bool(info.gated), tuple(found))


def _file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(sibling.rfilename, int(sibling.size or 0), lfs.sha256 if lfs else None)


def _licence(card: Any) -> str | None:
    name, other = card.get("license"), card.get("license_name")
    return str(other if name == "other" and other else name) if name else None


@contextmanager
def explained(name: str) -> Iterator[None]:
    """The hub's errors, each in one line with what to do."""
    from huggingface_hub import errors

    # What the library speaks HTTP with, by whatever name it has it.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except errors.GatedRepoError:
        page = f"{endpoint() or 'https://huggingface.co'}/{name}"
        raise ModelUnavailable(
            f"{name} is gated: accept its terms at {page}, then 'hf auth login' or set HF_TOKEN"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        known = f"the hub has no model {name}, or it is private"
        raise ModelUnavailable(known + _nearest(name)) from None
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise unreachable(name, error) from None
        raise ModelUnavailable(f"{name} has no such file; parlay pull {name} lists them") from None
    except (errors.OfflineModeIsEnabled, HTTPError) as error:
        raise unreachable(name, error) from None


def unreachable(name: str, error: Exception) -> ModelUnavailable:
    """No network, no hub, or offline by wish."""
    from huggingface_hub import errors

    cause = error.__cause__ or error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return ModelUnavailable(
            f"{name} is not on this machine and HF_HUB_OFFLINE forbids to fetch it; unset it, or"
            " choose one that is here: parlay list --find"
        )
    reason = " ".join(str(cause).split())[:120] or type(cause).__name__
    return ModelUnavailable(
        f"the hub did not answer for {name} ({reason}); try again, or choose a model that is here:"
        " parlay list --find"
    )


def _nearest(name: str) -> str:
    """Repositories with GGUF files whose names are spelt alike."""
    owner, _, model = name.partition("/")
    words = model.removesuffix("-GGUF").removesuffix("-gguf")
    known = [*search(words), *search("", author=owner)]
    by_lower = {found.lower(): found for found in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=_N_NEAREST, cutoff=0.5)
    names = ", ".join(by_lower[found] for found in near)
    return f"; did you mean {names}?" if names else "; check the spelling"


def _conversions(name: str) -> str:
    named = search(name.partition("/")[2])
    found = [other for other in named if other != name][:_N_NEAREST]
    return f"; these do: {', '.join(found)}" if found else "; look for a repository ending in -GGUF"


def search(words: str, author: str | None = None) -> list[str]:
    """Names of repositories with GGUF files; none where the hub does not answer at once.

    Asked without the library's list of models, which tries again for half a minute.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    given = {"search": words, "author": author, "filter": "gguf", "limit": _N_SEARCHED}
    asked = {name: value for name, value in given.items() if value}
    headers = build_hf_headers(library_name="parlay")
    url = f"{endpoint() or constants.ENDPOINT}/api/models"
    try:
        found = get_session().get(url, params=asked, headers=headers, timeout=_SEARCH_S)
        rows = found.json() if found.is_success else []
    except (OSError, HTTPError, ValueError):
        return []
    return [str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row]

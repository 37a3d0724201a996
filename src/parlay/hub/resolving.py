"""From a model's name to its file: here already, or fetched.

The one way in for everybody who is given a name; knows nothing of what is done with the file.
"""

from __future__ import annotations

import difflib
import logging
from pathlib import Path

from parlay import models
from parlay.errors import BadRequest, ModelUnavailable
from parlay.hub import place
from parlay.hub.fetching import Say, fetch
from parlay.hub.name import DefaultName, FileName, HubName, OllamaName, ShortName, parse_name
from parlay.hub.place import Entry
from parlay.hub.repository import Repository, offline, read_repository
from parlay.hub.variant import Variant, matching, split_of
from parlay.hub.variant_fit import choose

log = logging.getLogger("parlay.hub")
_N_NEAREST = 3


def resolve_model(name_or_path: str, say: Say | None = None) -> Path:
    """A file that is here; what a name stands for is looked for here first, then fetched."""
    name, say = parse_name(name_or_path), say or log.warning
    match name:
        case DefaultName():
            return models.default_model(say)
        case FileName(path):
            return path
        case HubName():
            return _here(name) or pull(name, say)
        case OllamaName():
            return _from_ollama(name)
        case ShortName(text):
            return _by_short_name(text)


def missing_model(name_or_path: str) -> str | None:
    """A repository of the hub that would have to be fetched; None: what is named is here, or is
    no such name."""
    name = parse_name(name_or_path)
    return str(name) if isinstance(name, HubName) and _here(name) is None else None


def resolve_drafter(name_or_path: str, say: Say | None = None) -> Path:
    """A shipped drafter by its name, the default model itself for "smollm2", else a model."""
    return models.SHIPPED_DRAFTERS.get(name_or_path) or resolve_model(name_or_path, say)


# -- the hub ----------------------------------------------------------------------------------


def pull(name: HubName, say: Say) -> Path:
    """Ask the hub, choose, fetch what is not here; where it may not be asked, what is here."""
    found = _here(name) if offline() else None
    if found is not None:
        say(f"{name} is here; HF_HUB_OFFLINE is set, so the hub was not asked")
        return found
    repository = read_repository(name.repo)
    if repository.name != name.repo:
        say(f"{name.repo} is called {repository.name} now")
    return fetch(repository, _wanted(repository, name, say), say)


def _wanted(repository: Repository, name: HubName, say: Say) -> Variant:
    if name.file is not None:
        return _the_file(repository, name.file)
    if name.quantisation is not None:
        return _quantised(repository, name.quantisation)
    choice = choose(repository)
    say(f"{repository.name}: {choice}")
    return choice.variant


def _the_file(repository: Repository, file: str) -> Variant:
    names = {f.path: v for v in repository.variants for f in v.files}
    if file in names:
        return names[file]
    near = difflib.get_close_matches(file, names, n=1, cutoff=0.0)
    raise ModelUnavailable(f"{repository.name} has no file {file}; did you mean {near[0]}?")


def _quantised(repository: Repository, quantisation: str) -> Variant:
    found = matching(repository.variants, quantisation)
    if found:
        return found[0]
    labels = ", ".join(dict.fromkeys(v.label for v in repository.variants))
    raise ModelUnavailable(f"{repository.name} has no {quantisation}; it has {labels}")


def _here(name: HubName) -> Path | None:
    """In the hub's cache already: nothing is asked, nothing fetched."""
    entries = place.hub_cache(name.repo)
    if name.file is not None:
        wanted = [e for e in entries if e.path.as_posix().endswith(f"/{name.file}")]
    elif name.quantisation is not None:
        wanted = [
            e for e in entries if e.name.upper() == f"{name.repo}:{name.quantisation}".upper()
        ]
    else:
        wanted = [e for e in entries if ":" in e.name]
    whole = [entry.path for entry in wanted if _is_whole(entry.path)]
    return max(whole, key=lambda path: path.stat().st_size, default=None)


def _is_whole(path: Path) -> bool:
    """Every part of a split model is here."""
    stem, count = split_of(path.name)
    return count == 1 or len(list(path.parent.glob(f"{stem}-*-of-{count:05}.gguf"))) == count


# -- what other programs left -----------------------------------------------------------------


def _from_ollama(name: OllamaName) -> Path:
    entries = place.ollama()
    found = next((e.path for e in entries if e.name == str(name)), None)
    if found is not None:
        return found
    near = _near(str(name), [e.name for e in entries])
    raise ModelUnavailable(
        f"Ollama has no {name.model}:{name.tag} on this machine{near};"
        f" 'ollama pull {name.model}:{name.tag}' gets it"
    )


def _by_short_name(text: str) -> Path:
    entries = place.everything()
    found = {e.path.resolve(): e for e in entries if text.lower() in e.aliases}
    if len(found) == 1:
        return next(iter(found.values())).path
    if found:
        names = ", ".join(e.name for e in list(found.values())[:6])
        raise BadRequest(f"{text} could be {names}; name one of them")
    raise _unknown(text, entries)


def _unknown(text: str, entries: list[Entry]) -> ModelUnavailable:
    near = _near(text.lower(), [a for e in entries for a in e.aliases] + [*models.DEFAULT_NAMES])
    return ModelUnavailable(
        f"no file and no model here is called {text}{near}; parlay list --find shows them, and"
        " org/repo:Q4_K_M is fetched"
    )


def _near(text: str, names: list[str]) -> str:
    near = difflib.get_close_matches(text, dict.fromkeys(names), n=_N_NEAREST, cutoff=0.5)
    return f" (did you mean {', '.join(near)}?)" if near else ""

"""Which variant of a repository fits this machine: the largest, with room for drafter and context.

Reads one header over the network, plans with it, and scales the weights for the other variants.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from parlay.errors import ModelFileError, ModelUnavailable
from parlay.hub.repository import Repository, endpoint, explained
from parlay.hub.variant import RemoteFile, Variant, is_model
from parlay.llama.header import read_parts
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.limits import plan_here
from parlay.planning.needs import Load
from parlay.planning.plan import Plan
from parlay.planning.shape import Shape, Weight, read_shape

GIB = 1 << 30
_FIRST, _WHOLE = 8 << 20, 40 << 20  # bytes of a header: most, and all of the largest vocabularies
# Of the weights: what is kept free for a drafter and its cache. Usual pairs take 2 to 10 %.
DRAFTER_SHARE = 0.1

Fits = Callable[[Shape], Plan]


@dataclass(frozen=True, slots=True)
class FittingChoice:
    """A variant, and what else there was."""

    variant: Variant
    fits: bool
    others: tuple[Variant, ...]

    def __str__(self) -> str:
        others = ", ".join(f"{v.label} {v.n_bytes / 1e9:.1f} GB" for v in self.others)
        how = "the largest that fits" if self.fits else "the smallest; it does not fit the GPU"
        beside = f" (there are also {others})" if others else ""
        return f"{self.variant.label}, {self.variant.n_bytes / 1e9:.2f} GB: {how}{beside}"


def choose(repository: Repository, context_size: int = 4096, slots: int = 1) -> FittingChoice:
    """The largest that fits; unquantised files only where there is nothing else."""
    models = [v for v in repository.variants if is_model(v)] or list(repository.variants)
    usual = [v for v in models if v.quantised] or models
    if len(usual) == 1:
        return FittingChoice(usual[0], True, _others(models, usual[0]))
    shape = remote_shape(repository.name, usual[0])
    context = ContextSettings(context_size, slots)
    return largest(usual, models, lambda variant: _plan(shape, usual[0], variant, context))


def largest(
    usual: Sequence[Variant], models: Sequence[Variant], plan: Callable[[Variant], Plan]
) -> FittingChoice:
    """By one plan for each variant, the largest first; else the smallest that RAM can help with."""
    for variant in sorted(usual, key=lambda v: -v.n_bytes):
        if plan(variant).verdict == "fits":
            return FittingChoice(variant, True, _others(models, variant))
    smallest = min(usual, key=lambda v: v.n_bytes)
    made = plan(smallest)
    if made.verdict == "spills":
        return FittingChoice(smallest, False, _others(models, smallest))
    needed, free = made.on_gpu + made.in_ram, made.gpu_free + made.ram_free
    raise ModelUnavailable(
        f"the smallest variant, {smallest.label}, needs {needed / GIB:.1f} GB and"
        f" {free / GIB:.1f} GB are free; choose a smaller model"
    )


def _others(models: Sequence[Variant], chosen: Variant) -> tuple[Variant, ...]:
    return tuple(v for v in models if v != chosen)


def _plan(shape: Shape, read: Variant, variant: Variant, context: ContextSettings) -> Plan:
    grown = scaled(shape, variant.n_bytes / read.n_bytes * (1 + DRAFTER_SHARE))
    return plan_here([Load("target", grown, ModelSettings(), context)])


def scaled(shape: Shape, ratio: float) -> Shape:
    """The same model with weights of another size."""

    def grown(weights: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(replace(one, n_bytes=int(one.n_bytes * ratio)) for one in weights)

    return replace(
        shape,
        layers=tuple(replace(one, weights=grown(one.weights)) for one in shape.layers),
        input_bytes=int(shape.input_bytes * ratio),
        outputs=grown(shape.outputs),
        tied_bytes=int(shape.tied_bytes * ratio),
    )


# -- a header over the network ----------------------------------------------------------------


def remote_shape(repo: str, variant: Variant) -> Shape:
    """A model's shape before any of its weights are here."""
    with laid_out(repo, variant) as path:
        try:
            return read_shape(path)
        except ModelFileError as error:
            raise ModelUnavailable(f"{repo}: {error.message}") from None


@contextmanager
def laid_out(repo: str, variant: Variant) -> Iterator[Path]:
    """Its files with the first bytes only, and holes behind them; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="parlay-header-") as folder:
        path = Path(folder) / Path(variant.path).name
        for n_bytes in (_FIRST, _WHOLE):
            for file in variant.files:
                _lay_out(Path(folder), repo, file, n_bytes)
            with suppress(ModelFileError):  # where the header goes on beyond what was fetched
                read_parts(path)
                break
        yield path


def _lay_out(folder: Path, repo: str, file: RemoteFile, n_bytes: int) -> None:
    with (folder / Path(file.path).name).open("wb") as out:
        out.write(_beginning(repo, file.path, n_bytes)[:n_bytes])
        out.truncate(file.n_bytes)


def _beginning(repo: str, path: str, n_bytes: int) -> bytes:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = build_hf_headers(library_name="parlay")
    headers["Range"] = f"bytes=0-{n_bytes - 1}"
    with explained(repo):
        url = hf_hub_url(repo, path, endpoint=endpoint())
        response = get_session().get(url, headers=headers, timeout=60)
        hf_raise_for_status(response)
        content: bytes = response.content
    return content

"""What is decided and loaded before an engine answers: what fits, and what drafts.

Knows files, memory and the target that proposers draft for; nothing of prices, passes or sequences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from parlay.engine.settings import EngineSettings, LoadSettings
from parlay.errors import BadRequest, ParlayError, RollbackUnsupported, VocabularyMismatch
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings
from parlay.llama.state_context import StateContext, is_lone_head, kind_of
from parlay.llama.undo import Rollback
from parlay.llama.vocabulary import Vocabulary
from parlay.planning.limits import Wanted, engine_contexts, fit_here, load_list, plan_here
from parlay.planning.needs import Load
from parlay.planning.plan import Plan
from parlay.planning.room import with_snapshots, with_wide_passes
from parlay.planning.shape import read_shape
from parlay.proposers.block import DFlashProposer
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.follower import Follower
from parlay.proposers.lookup import Lookup
from parlay.proposers.prediction import PREDICTION, PredictionProposer
from parlay.proposers.proposer import Proposer
from parlay.proposers.skeleton import SKELETON, SkeletonProposer
from parlay.proposers.stepwise import AssistantProposer, ChainProposer, HeadProposer
from parlay.proposers.translated import TranslatedProposer

log = logging.getLogger("parlay.engine")
chosen = logging.getLogger("parlay.chosen")

# Made with the tokens of past texts to remember, by those that can.
FREE_PROPOSERS: dict[str, Callable[[int], Proposer]] = {
    "suffix": lambda n: Lookup(remember_tokens=n),
}
MODEL = "model"
FREE = frozenset({*FREE_PROPOSERS, PREDICTION, SKELETON})  # no model behind them

# RAM for the marks of a draft model that is recurrent; half of it is used.
_MARK_BYTES = 1 << 28

Closing = list[Callable[[], None]]  # how to free what was made, last made first


class Loader:
    """Makes proposers for one target."""

    def __init__(self, settings: EngineSettings, model: Model, target: Context) -> None:
        self._settings = settings
        self._model = model
        self._target = target

    def proposers(self, closing: Closing) -> dict[str, Proposer]:
        """All that the settings name, but a drafter that comes later."""
        if self._settings.draft and self._target.rollback is Rollback.NONE:
            raise RollbackUnsupported(
                f"{self._settings.target.name} cannot forget rejected tokens; use --draft none"
            )
        made = self._from_requests() if self._settings.draft else {}
        for name in self._settings.draft:
            if name in FREE_PROPOSERS:
                made[name] = FREE_PROPOSERS[name](self._settings.remember_tokens)
        if not self._settings.drafter_later:
            made |= self.draft_models(drafter_files(self._settings.draft), closing)
        return made

    def draft_models(self, paths: Sequence[Path], closing: Closing) -> dict[str, Proposer]:
        """Files as proposers by their names: model, model2 and so on."""
        made: dict[str, Proposer] = {}
        for name, path in zip(model_names(len(paths)), paths, strict=True):
            drafter = self.draft_model(path, closing, name)
            reading = [other for other in made.values() if isinstance(other, Follower)]
            if reading and isinstance(drafter, Follower):
                raise BadRequest(
                    f"{path.name} reads the target's states, as another drafter does; name one such"
                )
            made[name] = drafter
        return made

    def _from_requests(self) -> dict[str, Proposer]:
        """Those that draft from what comes with a request; first, for they know most."""
        return {
            PREDICTION: PredictionProposer(),
            SKELETON: SkeletonProposer(),
        }

    def draft_model(self, path: Path, closing: Closing, name: str = MODEL) -> Proposer:
        """A file as a proposer: a model of its own, or a head on the target's states."""
        settings = self._settings
        drafter = self._drafter_weights(path, closing)
        difference = self._model.vocabulary.first_difference(drafter.vocabulary)
        reads_states = kind_of(drafter) != "model"
        if difference is not None and (reads_states or not settings.translate):
            way_out = "" if reads_states else " --translate,"
            raise VocabularyMismatch(
                f"{path.name} cannot draft for {settings.target.name}: {difference};"
                f" use a drafter of the same family,{way_out} or --draft suffix"
            )
        if reads_states:
            return self._follower(drafter, closing, name)
        context = Context(drafter, self._draft_model_context(drafter))
        context.share_threads(self._target)
        closing.append(context.close)
        if context.rollback is Rollback.NONE:
            raise RollbackUnsupported(f"{path.name} cannot forget rejected tokens; use another")
        if difference is not None:
            own = drafter.vocabulary
            model = DraftModel(context, self._limits(own), name)
            return TranslatedProposer(model, self._model.vocabulary, own)
        return DraftModel(context, self._limits(self._model.vocabulary), name)

    def _limits(self, vocabulary: Vocabulary) -> DraftLimits:
        return DraftLimits(vocabulary.ends, vocabulary.size, self._settings.context.n_batch)

    def _drafter_weights(self, path: Path, closing: Closing) -> Model:
        """A drafter's file, loaded; a target with a head of its own is there already."""
        if same_file(path, self._settings.target) and kind_of(self._model) == "mtp":
            return self._model
        own_head = is_lone_head(path)
        drafter = Model(path, replace(self._settings.drafter_model, own_head=own_head))
        closing.append(drafter.close)
        return drafter

    def _drafter_context(self, n_outputs: int) -> ContextSettings:
        settings = self._settings
        return replace(
            settings.context,
            context_size=self._target.context_size,
            n_outputs=n_outputs,
            n_snapshots=0,  # it drafts token by token: a pass leaves nothing to take back
            prompt_cache_bytes=0,
            cache_type_k=settings.drafter_cache_type_k,
            cache_type_v=settings.drafter_cache_type_v,
            same_bits=False,  # a draft is a guess, whichever way it was rounded
        )

    def _draft_model_context(self, drafter: Model) -> ContextSettings:
        """A recurrent one comes back to where its draft began: to a copy on the device, which
        snapshots leave alone."""
        context = self._drafter_context(self._settings.context.n_sequences)
        if drafter.facts.recurrent is None:
            return context
        return replace(context, n_snapshots=1, prompt_cache_bytes=_MARK_BYTES)

    def _follower(self, drafter: Model, closing: Closing, name: str) -> Proposer:
        """A drafter that reads the target's hidden states."""
        settings = self._settings.context
        n_outputs = (self._settings.widest + 1) * settings.n_sequences
        context = StateContext(drafter, self._drafter_context(n_outputs), self._target)
        context.share_threads(self._target)
        closing.append(context.close)
        common = context, self._limits(self._model.vocabulary)
        if context.kind == "assistant":
            return AssistantProposer(*common, name)
        if context.n_links > 1:
            return ChainProposer(*common, name=name)
        if context.kind != "dflash":
            return HeadProposer(*common, lead=1 if context.kind == "mtp" else 0, name=name)
        if context.n_candidates:
            raise BadRequest(
                f"{drafter.path.name} drafts by a selector of candidates, which is not supported;"
                " use another drafter"
            )
        return DFlashProposer(
            *common,
            block_size=context.block_size,
            mask=context.mask,
            from_anchor=context.from_anchor,
            name=name,
        )


def drafter_files(draft: Sequence[str]) -> tuple[Path, ...]:
    """The files among what drafts."""
    return tuple(Path(name) for name in draft if name not in FREE_PROPOSERS)


def model_names(n: int) -> list[str]:
    """What so many draft models are called."""
    return [MODEL, *(f"{MODEL}{i}" for i in range(2, n + 1))][:n]


def same_file(path: Path, other: Path) -> bool:
    return path.exists() and path.samefile(other)


def behind(drafter: Proposer | None) -> Proposer | None:
    """Whose passes a drafter's time is spent in."""
    return drafter.drafter if isinstance(drafter, TranslatedProposer) else drafter


def close_all(closing: Closing) -> None:
    """Free what was made, last made first."""
    while closing:
        closing.pop()()


# Every pass, a plain one too, writes something for each of them: on an H200 sixteen took 11 % of a
# 27B's plain pass. A draft model's drafts come every round and mostly end in a rejection: they are
# worth it. What is found in the text is drafted seldom, and far where it is sure; drafts wider than
# these are taken back by copies. On a CPU they take next to nothing.
_MOST_SNAPSHOTS, _MOST_FOR_FINDS = 7, 1


def choose_snapshots(settings: EngineSettings) -> int:
    """As many as the widest window that pays, if memory allows; 0 where nothing is drafted."""
    if settings.snapshots is not None and settings.draft and settings.window != 0:
        return settings.snapshots
    most = useful_snapshots(settings)
    if not most:
        return 0

    def plan(tried: Sequence[Load]) -> Plan:
        return plan_here(tried, budget_gb=settings.vram_budget_gb)

    chosen = with_snapshots(load_list(*wanted_files(settings)), most, plan)[0].context.n_snapshots
    log.info("%d snapshots of the recurrent state: so many tokens can be taken back", chosen)
    return chosen


def choose_rows(settings: EngineSettings, n_snapshots: int) -> int:
    """Of a pass: as many as the batch, or as let a GPU read several prompts at once."""
    if not settings.widens or not _on_gpu(settings):
        return settings.context.n_batch
    kept = replace(settings.context, n_snapshots=n_snapshots)
    loads = load_list(*wanted_files(replace(settings, context=kept)))
    plan = partial(plan_here, budget_gb=settings.vram_budget_gb)
    chosen = with_wide_passes(loads, plan)[0].context.n_batch
    log.info("passes of %d rows over prompts", chosen)
    return chosen


def room_for_prompts(settings: EngineSettings) -> int:
    """Bytes of RAM in which earlier prompts are kept: as many as asked for, if they are free."""
    if not settings.context.prompt_cache_bytes:
        return 0
    made = plan_here(load_list(*wanted_files(settings)), budget_gb=settings.vram_budget_gb)
    return sum(item.n_bytes for item in made.items if item.what == "prompt cache")


def useful_snapshots(settings: EngineSettings) -> int:
    """As many as windows could use, whether or not there is room for them."""
    if not settings.draft or settings.window == 0 or not read_shape(settings.target).takes_back:
        return 0
    if settings.snapshots is not None:
        return settings.snapshots
    if settings.window is not None:
        return min(settings.window, _MOST_SNAPSHOTS)
    most = (
        _MOST_SNAPSHOTS
        if drafter_files(settings.draft) or not _on_gpu(settings)
        else _MOST_FOR_FINDS
    )
    return min(settings.widest, most, settings.context.rows_at_once - 1)


def _on_gpu(settings: EngineSettings) -> bool:
    return settings.model.gpu_layers != 0 and any(d.kind == "gpu" for d in library.devices())


def wanted_files(settings: EngineSettings) -> tuple[Wanted, list[Wanted]]:
    """Target and drafters as they will be loaded."""
    types = (settings.drafter_cache_type_k, settings.drafter_cache_type_v)
    ours, own = engine_contexts(settings.context, settings.widest, types)
    paths: Sequence[Path] = drafter_files(settings.draft)
    if settings.drafter_later:  # whoever loads it says what is wrong with it
        paths = [path for path in paths if _is_readable(path)]
    drafters = [Wanted(path, settings.drafter_model, own) for path in paths]
    return Wanted(settings.target, settings.model, ours), drafters


def _is_readable(path: Path) -> bool:
    try:
        read_shape(path)
    except ParlayError:
        return False
    return True


def fitted(given: LoadSettings, target: Path, draft: tuple[str, ...]) -> EngineSettings:
    """For this file and these proposers; what is left to us is fitted to the machine."""
    context, layers = given.context_size == "auto", given.gpu_layers == "auto"
    return fit_engine(given.for_engine(target, draft), context=context, layers=layers)


def fit_engine(settings: EngineSettings, *, context: bool, layers: bool) -> EngineSettings:
    """The longest context, the most layers on the GPU, or both; told in a line."""
    if not context and not layers:
        return settings
    target, drafters = wanted_files(settings)
    kept = replace(target.context, n_snapshots=useful_snapshots(settings))
    loads = load_list(replace(target, context=kept), drafters)
    found = fit_here(
        loads,
        context=context,
        layers=layers,
        budget_gb=settings.vram_budget_gb,
    )
    chosen.info(found.line)
    return replace(
        settings,
        context=replace(settings.context, context_size=found.context_size),
        snapshots=kept.n_snapshots or settings.snapshots,  # there is room: they were counted
        model=replace(settings.model, gpu_layers=found.gpu_layers, n_cpu_moe=found.n_cpu_moe),
    )

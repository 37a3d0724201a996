"""Loads what drafts: proposers by name, draft models and heads from their files.

Knows the target they draft for; knows nothing of prices, passes or sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from parlay.engine.settings import EngineSettings
from parlay.errors import BadRequest, RollbackUnsupported, VocabularyMismatch
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings
from parlay.llama.state_context import StateContext, is_lone_head, kind_of
from parlay.llama.undo import Rollback
from parlay.llama.vocabulary import Vocabulary
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

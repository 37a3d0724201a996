"""The engine: a target, its proposers and the worker, put together from settings.

The one place that joins llama.cpp to the scheduler; knows nothing of prompts as text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from parlay import store
from parlay.control.controller import Controller, FixedWindow
from parlay.control.cost import CostTable
from parlay.control.profit import ProfitController
from parlay.control.trace import Sink as TraceSink
from parlay.control.trace import Traced
from parlay.decoding.constraint import Constraint
from parlay.decoding.round import Fallback
from parlay.decoding.span import Passes
from parlay.errors import BadRequest, PromptTooLong, RollbackUnsupported, VocabularyMismatch
from parlay.llama import library
from parlay.llama.context import Context, Rollback
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.state_context import StateContext, kind_of, refuse_lone_head
from parlay.llama.vocabulary import Detokenizer
from parlay.planning.limits import Wanted, check_fits, engine_contexts
from parlay.proposers.dflash import DFlashProposer
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.follower import Follower
from parlay.proposers.head import HeadProposer
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.proposer import Proposer
from parlay.proposers.suffix import SuffixProposer
from parlay.proposers.translated import TranslatedProposer
from parlay.runtime.bets import Bets
from parlay.runtime.exactness import NOTHING_EXACT, ExactShapes, probe
from parlay.runtime.request import Mode, Request
from parlay.runtime.scheduler import Scheduler
from parlay.runtime.sequence import Sequence, Sink
from parlay.runtime.slots import Slots
from parlay.runtime.worker import Worker
from parlay.timing.measuring import (
    Progress,
    Stopwatch,
    measure,
    measure_drafter,
    measure_follower,
    quietly,
)


class _Closable(Protocol):
    def close(self) -> None: ...


Closable = TypeVar("Closable", bound=_Closable)

log = logging.getLogger("parlay.runtime")

# Made with the tokens of past texts to remember, by those that can.
FREE_PROPOSERS: dict[str, Callable[[int], Proposer]] = {
    "ngram": lambda _n: NgramProposer(),
    "suffix": lambda n: SuffixProposer(remember_tokens=n),
}
MODEL = "model"
# A prompt is read in passes of this many tokens: small enough that others are not kept waiting.
_CHUNK = 128
# Rows over all sequences up to which the probe looks; beyond it no pass is called exact.
_MAX_EXACT_ROWS = 32


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What to load and how to bet."""

    target: Path
    draft: tuple[str, ...] = ("suffix",)  # ngram, suffix, or paths of drafters; (): none
    window: int | None = None  # None: the controller's choice, by measured time
    max_window: int = 16
    mode: Mode | None = None  # None: exact where that allows a useful window
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    drafter_model: ModelSettings = field(default_factory=ModelSettings)
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"
    vram_budget_gb: float | None = None  # refuse to load beyond this
    translate: bool = False  # let a drafter of another vocabulary draft through text
    remember_tokens: int = 0  # of finished answers and their prompts, for suffix drafts of others
    drafter_later: bool = False  # `load_drafter` will bring the draft model
    measure_again: bool = False  # believe no measurement of an earlier run

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 0:
            raise BadRequest(f"the window is {self.window}; give 0 or more")
        if self.remember_tokens < 0:
            raise BadRequest(f"{self.remember_tokens} tokens to remember; give 0 or more")
        if self.remember_tokens and "suffix" not in self.draft:
            raise BadRequest("remember_tokens is for suffix drafts; add suffix to the drafters")
        rows = (self.widest + 1) * self.context.n_sequences
        if rows > self.context.n_batch:
            raise BadRequest(
                f"a window of {self.widest} for {self.context.n_sequences}"
                f" sequence(s) needs passes of {rows} rows, the batch holds"
                f" {self.context.n_batch}; lower the window or raise the batch"
            )

    @property
    def widest(self) -> int:
        """The largest window that may come up."""
        return max(self.window or 0, self.max_window)


class Engine:
    """Models loaded, worker running. Close it, or use it in a `with` block."""

    def __init__(
        self,
        settings: EngineSettings,
        controller: Controller | None = None,
        progress: Progress = quietly,
    ) -> None:
        """`progress` is told, on the worker's thread, what is being measured."""
        self.settings = settings
        self._progress = progress
        self._closing: list[Callable[[], None]] = []
        self._drafter_closing: list[Callable[[], None]] = []
        self._worker: Worker | None = None
        self._learned: Callable[[], None] | None = None
        try:
            self._worker = Worker(lambda: self._open(settings, controller))
        except BaseException:
            self.close()
            raise

    def _open(self, settings: EngineSettings, controller: Controller | None) -> Scheduler:
        """Load everything; runs on the worker's thread."""
        if settings.vram_budget_gb is not None:
            self._check_budget(settings.vram_budget_gb)
        own_head = any(self._is_target(Path(name)) for name in settings.draft)
        self.model = self._keep(Model(settings.target, replace(settings.model, own_head=own_head)))
        rows = (settings.widest + 1) * settings.context.n_sequences
        self.target = self._keep(
            Context(self.model, replace(settings.context, n_outputs=max(rows, _MAX_EXACT_ROWS)))
        )
        proposers = self._proposers()
        self._attach(proposers.get(MODEL))  # before the probe: captured passes are probed as such
        self.watched = Stopwatch(self.target)  # the probe's passes also tell what passes cost
        self.exact = self._exact_shapes(self.watched)
        # Without drafts a single sequence is plain decoding itself.
        exact = self.exact.useful or not settings.draft
        self.mode: Mode = settings.mode or ("exact" if exact else "faithful")
        n_batch = settings.context.n_batch
        self.bets = Bets(
            controller or self._controller(self.watched, proposers.get(MODEL)),
            proposers,
            frozenset(FREE_PROPOSERS),
            self.exact,
            self.target.context_size,
            settings.widest,
        )
        if settings.drafter_later:
            self.bets.absent[MODEL] = Fallback.DRAFTER_LOADING
        self.slots = Slots(self.target, settings.context.n_sequences)
        self._scheduler = Scheduler(
            self.target,
            self.slots,
            self.bets,
            self.exact,
            mode=self.mode,
            ends=self.model.vocabulary.ends,
            chunk=n_batch if self.model.on_gpu else min(_CHUNK, n_batch),
            n_batch=n_batch,
        )
        self._progress(1.0, "ready")
        return self._scheduler

    def _check_budget(self, budget_gb: float) -> None:
        """Refuse before allocating; without a later drafter, both models count."""
        settings = self.settings
        types = (settings.drafter_cache_type_k, settings.drafter_cache_type_v)
        ours, own = engine_contexts(settings.context, settings.widest, types)
        paths = [Path(name) for name in settings.draft if name not in FREE_PROPOSERS]
        drafter = Wanted(paths[0], settings.drafter_model, own) if paths else None
        if settings.drafter_later:
            drafter = None
        check_fits(Wanted(settings.target, settings.model, ours), drafter, budget_gb=budget_gb)

    @property
    def threads(self) -> int:
        """CPU threads of every pass."""
        return self.settings.context.threads or self.model.threads

    def submit(
        self, request: Request, sink: Sink, constraint: Constraint | None = None
    ) -> Sequence:
        """Start an answer; `sink` gets its pieces on the worker's thread."""
        size = self.target.context_size
        if len(request.prompt) >= size:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt)} tokens, the context holds {size};"
                " shorten it or raise the context size"
            )
        self._check_ids(request)
        if request.sources is not None:
            for name in request.sources:
                if name not in self.bets.proposers and name not in self.bets.absent:
                    known = ", ".join(self.bets.proposers) or "none"
                    raise BadRequest(f"no proposer {name!r} is loaded; loaded: {known}")
        vocabulary = self.model.vocabulary
        seq = Sequence(request, Detokenizer(vocabulary), vocabulary.ends, sink, constraint)
        self._running.submit(seq)
        return seq

    def _check_ids(self, request: Request) -> None:
        """A pass with an unknown id would fail, and every answer in it with it."""
        last = self.model.vocabulary.size - 1
        for token in (min(request.prompt), max(request.prompt)):
            if not 0 <= token <= last:
                raise BadRequest(f"token {token} is not in the vocabulary (0 to {last})")
        unknown = [token for token in request.sampling.logit_bias if token > last]
        if unknown:
            raise BadRequest(
                f"logit_bias names token {unknown[0]}; use ids of the vocabulary (0 to {last})"
            )

    @property
    def active(self) -> tuple[Sequence, ...]:
        """The sequences that have a slot now."""
        return self._scheduler.active

    @property
    def n_waiting(self) -> int:
        return self._scheduler.n_waiting

    def call(self, function: Callable[[], None]) -> None:
        """Run something on the worker's thread, between two rounds."""
        self._running.call(function)

    @property
    def _running(self) -> Worker:
        assert self._worker is not None, "an engine that failed to open is never handed out"
        return self._worker

    def close(self) -> None:
        """End unfinished answers and free everything, last made first."""
        if self._worker is not None:
            self._worker.close()
        if self._learned is not None:
            self._learned()
            self._learned = None
        self._free_drafter()  # before the target, whose weights it may borrow
        _close(self._closing)

    # -- a drafter that comes and goes ----------------------------------------

    def load_drafter(self, path: Path) -> None:
        """Load a draft model on the caller's thread; the worker bets on it from its next round.

        Loading computes, so that thread should end: OpenMP keeps threads for it while it lives.
        """
        closing: list[Callable[[], None]] = []
        try:
            made = self._draft_model(path, closing)
        except BaseException:
            _close(closing)
            raise

        def take_over() -> None:
            self._free_drafter()
            self._drafter_closing = closing
            self._attach(made)
            self.bets.absent.pop(MODEL, None)
            self.bets.proposers[MODEL] = made
            priced = self.priced
            inner = _behind(made)
            if priced is not None and isinstance(inner, DraftModel):
                priced.costs.drafter = measure_drafter(inner.passes)
            elif priced is not None and isinstance(made, Follower):
                priced.costs.drafter = measure_follower(made)

        if MODEL not in self.bets.proposers:  # a request that names it may come before the worker
            self.bets.absent.setdefault(MODEL, Fallback.DRAFTER_LOADING)
        self.call(take_over)

    def drop_drafter(self, reason: Fallback) -> None:
        """Give the draft model up before the next round; its rounds will say why."""

        def drop() -> None:
            self.bets.absent[MODEL] = reason
            if self.bets.proposers.pop(MODEL, None) is not None:
                self._free_drafter()

        self.call(drop)

    def _free_drafter(self) -> None:
        if self._drafter_closing:
            self.target.release()
        _close(self._drafter_closing)

    def _attach(self, drafter: Proposer | None) -> None:
        """Let a drafter that reads hidden states follow the target; others cost it nothing."""
        if isinstance(drafter, Follower):
            self.target.capture(drafter.layers, drafter.follow)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _keep(self, made: Closable) -> Closable:
        self._closing.append(made.close)
        return made

    # -- proposers ------------------------------------------------------------

    def _proposers(self) -> dict[str, Proposer]:
        if self.settings.draft and self.target.rollback is Rollback.NONE:
            raise RollbackUnsupported(
                f"{self.settings.target.name} cannot forget rejected tokens; use --draft none"
            )
        made: dict[str, Proposer] = {}
        for name in self.settings.draft:
            if name in FREE_PROPOSERS:
                made[name] = FREE_PROPOSERS[name](self.settings.remember_tokens)
            elif MODEL in made:
                raise BadRequest("only one draft model can be loaded; name one file")
            elif not self.settings.drafter_later:
                made[MODEL] = self._draft_model(Path(name), self._closing)
        return made

    def _draft_model(self, path: Path, closing: list[Callable[[], None]]) -> Proposer:
        settings = self.settings
        drafter = self._drafter_weights(path, closing)
        difference = self.model.vocabulary.first_difference(drafter.vocabulary)
        reads_states = kind_of(drafter, self.model) != "model"
        if difference is not None and (reads_states or not settings.translate):
            way_out = "" if reads_states else " --translate,"
            raise VocabularyMismatch(
                f"{path.name} cannot draft for {settings.target.name}: {difference};"
                f" use a drafter of the same family,{way_out} or --draft suffix"
            )
        if reads_states:
            return self._follower(drafter, closing)
        context = Context(drafter, self._drafter_context(settings.context.n_sequences))
        closing.append(context.close)
        if context.rollback is Rollback.NONE:
            raise RollbackUnsupported(f"{path.name} cannot forget rejected tokens; use another")
        n_batch = settings.context.n_batch
        if difference is not None:
            own = drafter.vocabulary
            model = DraftModel(context, own.ends, own.size, n_batch, MODEL)
            return TranslatedProposer(model, self.model.vocabulary, own)
        return DraftModel(context, self.model.vocabulary.ends, self.target.n_vocab, n_batch, MODEL)

    def _drafter_weights(self, path: Path, closing: list[Callable[[], None]]) -> Model:
        """A drafter's file, loaded; a target with a head of its own is there already."""
        if self._is_target(path) and kind_of(self.model, self.model) == "mtp":
            return self.model
        refuse_lone_head(path)
        drafter = Model(path, self.settings.drafter_model)
        closing.append(drafter.close)
        return drafter

    def _is_target(self, path: Path) -> bool:
        return path.exists() and path.samefile(self.settings.target)

    def _drafter_context(self, n_outputs: int) -> ContextSettings:
        settings = self.settings
        return replace(
            settings.context,
            context_size=self.target.context_size,
            n_outputs=n_outputs,
            cache_type_k=settings.drafter_cache_type_k,
            cache_type_v=settings.drafter_cache_type_v,
        )

    def _follower(self, drafter: Model, closing: list[Callable[[], None]]) -> Proposer:
        """A drafter that reads the target's hidden states."""
        settings = self.settings.context
        n_outputs = (self.settings.widest + 1) * settings.n_sequences
        context = StateContext(drafter, self._drafter_context(n_outputs), self.target)
        closing.append(context.close)
        ends, n_vocab = self.model.vocabulary.ends, self.target.n_vocab
        if context.kind == "dflash":
            return DFlashProposer(
                context,
                ends,
                n_vocab,
                settings.n_batch,
                block_size=context.block_size,
                mask=context.mask,
                name=MODEL,
            )
        lead = 1 if context.kind == "mtp" else 0
        return HeadProposer(context, ends, n_vocab, settings.n_batch, lead=lead, name=MODEL)

    # -- control --------------------------------------------------------------

    @property
    def priced(self) -> ProfitController | None:
        """The controller that prices rounds, if it is the one that chooses."""
        controller: Controller | None = self.bets.controller
        while controller is not None and not isinstance(controller, ProfitController):
            controller = getattr(controller, "controller", None)  # guard rails, a trace, a count
        return controller

    def trace(self, sink: TraceSink) -> None:
        """Give every decision from now on to `sink`, a line of JSON per round."""
        priced = self.priced
        seconds = None if priced is None else priced.costs.plain_s
        self.bets.controller = Traced(self.bets.controller, seconds, sink)

    def _controller(self, target: Stopwatch, drafter: Proposer | None) -> Controller:
        """A fixed window where one was given, else the controller that prices rounds."""
        settings = self.settings
        if settings.window is not None:
            return FixedWindow(settings.window)
        key = self.pair_key([Path(name) for name in settings.draft if name not in FREE_PROPOSERS])
        made = ProfitController(self._costs(key, target, drafter), store.load("learned", key))
        self._learned = lambda: store.save("learned", key, made.to_dict())
        return made

    def _costs(self, key: str, target: Stopwatch, drafter: Proposer | None) -> CostTable:
        """Measured once per machine, build, pair and settings; a busy machine is not believed."""
        known = None if self.settings.measure_again else store.load("costs", key)
        if known is not None:
            return CostTable.from_dict(known)
        inner = _behind(drafter)
        passes = inner.passes if isinstance(inner, DraftModel) else None
        settings = self.settings
        found = measure(
            target,
            passes,
            max_window=settings.widest,
            n_sequences=settings.context.n_sequences,
            progress=self._progress,
        )
        if isinstance(drafter, Follower):
            found.drafter = measure_follower(drafter)
        if found.stable:
            store.save("costs", key, found.to_dict())
        else:
            log.info("the machine is busy: what passes cost here will be measured again")
        return found

    def pair_key(self, drafters: Iterable[Path]) -> str:
        """Under what prices and what was learned of these drafters are kept."""
        identities = [store.file_identity(path) for path in drafters]
        return store.fingerprint(self._probe_key(self.settings.widest), identities)

    # -- exactness ------------------------------------------------------------

    def _exact_shapes(self, target: Passes) -> ExactShapes:
        """Probe once per machine, build, file and settings; remember it."""
        settings = self.settings
        if settings.mode == "faithful" or not settings.draft:
            return NOTHING_EXACT
        n = settings.context.n_sequences
        widest = settings.widest + 1
        rows = widest if n == 1 else max(widest, _MAX_EXACT_ROWS)
        key = self._probe_key(rows)
        known = None if settings.measure_again else store.load("exact", key)
        if known is not None:
            return ExactShapes(frozenset(known["rows"]), bool(known["concurrent"]))
        self._progress(0.0, "which passes are exact")
        probed = probe(target, rows, n)
        found = probed.shapes
        if probed.complete:
            record = {"rows": sorted(found.rows), "concurrent": found.concurrent}
            store.save("exact", key, record)
        return found

    def _probe_key(self, rows: int) -> str:
        settings = self.settings
        devices = [(d.name, d.description) for d in library.devices()]
        return store.fingerprint(
            store.file_identity(settings.target),
            library.version(),
            devices,
            settings.model,
            replace(settings.context, threads=self.threads),
            self.target.cache_types,
            rows,
            *self.target.captured,
        )


def _behind(drafter: Proposer | None) -> Proposer | None:
    """Whose passes a drafter's time is spent in."""
    return drafter.drafter if isinstance(drafter, TranslatedProposer) else drafter


def _close(closing: list[Callable[[], None]]) -> None:
    """Free what was made, last made first."""
    while closing:
        closing.pop()()

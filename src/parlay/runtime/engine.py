"""The engine: a target, its proposers and the worker, put together from settings.

The one place that joins llama.cpp to the scheduler; knows nothing of prompts as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from parlay import store
from parlay.control.controller import Controller, FixedWindow
from parlay.errors import BadRequest, PromptTooLong, RollbackUnsupported, VocabularyMismatch
from parlay.llama import library
from parlay.llama.context import Context, Rollback
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.vocabulary import Detokenizer
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.ngram import NgramProposer
from parlay.proposers.proposer import Proposer
from parlay.proposers.suffix import SuffixProposer
from parlay.runtime.bets import Bets
from parlay.runtime.exactness import NOTHING_EXACT, ExactShapes, probe
from parlay.runtime.request import Mode, Request
from parlay.runtime.scheduler import Scheduler
from parlay.runtime.sequence import Sequence, Sink
from parlay.runtime.slots import Slots
from parlay.runtime.worker import Worker


class _Closable(Protocol):
    def close(self) -> None: ...


Closable = TypeVar("Closable", bound=_Closable)

FREE_PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "ngram": NgramProposer,
    "suffix": SuffixProposer,
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
    window: int = 4
    max_window: int = 16
    mode: Mode | None = None  # None: exact where that allows a useful window
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    drafter_model: ModelSettings = field(default_factory=ModelSettings)
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"

    def __post_init__(self) -> None:
        if self.window < 0:
            raise BadRequest(f"the window is {self.window}; give 0 or more")
        rows = (max(self.window, self.max_window) + 1) * self.context.n_sequences
        if rows > self.context.n_batch:
            raise BadRequest(
                f"a window of {max(self.window, self.max_window)} for {self.context.n_sequences}"
                f" sequence(s) needs passes of {rows} rows, the batch holds"
                f" {self.context.n_batch}; lower the window or raise the batch"
            )


class Engine:
    """Models loaded, worker running. Close it, or use it in a `with` block."""

    def __init__(self, settings: EngineSettings, controller: Controller | None = None) -> None:
        self.settings = settings
        self._closing: list[Callable[[], None]] = []
        try:
            self._open(settings, controller or FixedWindow(settings.window))
        except BaseException:
            self.close()
            raise

    def _open(self, settings: EngineSettings, controller: Controller) -> None:
        self.model = self._keep(Model(settings.target, settings.model))
        rows = (max(settings.window, settings.max_window) + 1) * settings.context.n_sequences
        self.target = self._keep(
            Context(self.model, replace(settings.context, n_outputs=max(rows, _MAX_EXACT_ROWS)))
        )
        proposers = self._proposers()
        self.exact = self._exact_shapes()
        self.mode: Mode = settings.mode or ("exact" if self.exact.useful else "faithful")
        n_batch = settings.context.n_batch
        self.bets = Bets(
            controller,
            proposers,
            frozenset(FREE_PROPOSERS),
            self.exact,
            self.target.context_size,
            max(settings.window, settings.max_window),
        )
        self._scheduler = Scheduler(
            self.target,
            Slots(self.target, settings.context.n_sequences),
            self.bets,
            self.exact,
            mode=self.mode,
            ends=self.model.vocabulary.ends,
            chunk=min(_CHUNK, n_batch),
            n_batch=n_batch,
        )
        self._worker = self._keep(Worker(self._scheduler))

    def submit(self, request: Request, sink: Sink) -> Sequence:
        """Start an answer; `sink` gets its pieces on the worker's thread."""
        size = self.target.context_size
        if len(request.prompt) >= size:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt)} tokens, the context holds {size};"
                " shorten it or raise the context size"
            )
        if request.sources is not None:
            for name in request.sources:
                if name not in self.bets.proposers:
                    known = ", ".join(self.bets.proposers) or "none"
                    raise BadRequest(f"no proposer {name!r} is loaded; loaded: {known}")
        vocabulary = self.model.vocabulary
        seq = Sequence(request, Detokenizer(vocabulary), vocabulary.ends, sink)
        self._worker.submit(seq)
        return seq

    def close(self) -> None:
        """End unfinished answers and free everything, last made first."""
        while self._closing:
            self._closing.pop()()

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
                made[name] = FREE_PROPOSERS[name]()
            elif MODEL in made:
                raise BadRequest("only one draft model can be loaded; name one file")
            else:
                made[MODEL] = self._draft_model(Path(name))
        return made

    def _draft_model(self, path: Path) -> DraftModel:
        settings = self.settings
        drafter = self._keep(Model(path, settings.drafter_model))
        difference = self.model.vocabulary.first_difference(drafter.vocabulary)
        if difference is not None:
            raise VocabularyMismatch(
                f"{path.name} cannot draft for {settings.target.name}: {difference};"
                " use a drafter of the same family, or --draft suffix"
            )
        context = Context(
            drafter,
            replace(
                settings.context,
                context_size=self.target.context_size,
                n_outputs=settings.context.n_sequences,
                cache_type_k=settings.drafter_cache_type_k,
                cache_type_v=settings.drafter_cache_type_v,
            ),
        )
        self._keep(context)
        if context.rollback is Rollback.NONE:
            raise RollbackUnsupported(f"{path.name} cannot forget rejected tokens; use another")
        ends = self.model.vocabulary.ends
        return DraftModel(context, ends, self.target.n_vocab, settings.context.n_batch, MODEL)

    # -- exactness ------------------------------------------------------------

    def _exact_shapes(self) -> ExactShapes:
        """Probe once per machine, build, file and settings; remember it."""
        settings = self.settings
        if settings.mode == "faithful" or not settings.draft:
            return NOTHING_EXACT
        n = settings.context.n_sequences
        widest = max(settings.window, settings.max_window) + 1
        rows = widest if n == 1 else max(widest, _MAX_EXACT_ROWS)
        key = self._probe_key(rows)
        known = store.load("exact", key)
        if known is not None:
            return ExactShapes(frozenset(known["rows"]), bool(known["concurrent"]))
        probed = probe(self.target, rows, n)
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
            replace(
                settings.context, threads=settings.context.threads or library.default_threads()
            ),
            self.target.cache_types,
            rows,
        )

"""The engine: a target, its proposers and the worker, put together from settings.

The one place that joins llama.cpp to the scheduler; knows nothing of prompts as text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from parlay import store
from parlay.control.choice import Controller, FixedWindow
from parlay.control.prices.cost import CostTable
from parlay.control.prices.cutting import Cutting
from parlay.control.trace import Sink as TraceSink
from parlay.control.trace import Trace
from parlay.decoding.round import Fallback
from parlay.decoding.span import nothing
from parlay.engine.calibration import (
    Calibration,
    keep_learned,
    learned_controller,
    price_drafters,
)
from parlay.engine.cores import Cores, Others
from parlay.engine.drafter_pause import DrafterPause, bits_stay
from parlay.engine.drafts import Drafts
from parlay.engine.exact.choice import ExactChoice
from parlay.engine.exact.probe import N_JOINED
from parlay.engine.exact.prompts import Boundaries, marks_of
from parlay.engine.exact.shapes import (
    MAX_EXACT_ROWS,
    SINGLE,
    Composition,
    ExactClass,
    Inexact,
)
from parlay.engine.exact.thread_bits import ThreadBits
from parlay.engine.loop import Listener, Loop, ReadListener
from parlay.engine.plan import PROMPTS_A_ROUND, Planner
from parlay.engine.request import Mode, Request
from parlay.engine.sequence import Sequence, Sink
from parlay.engine.settings import EngineSettings
from parlay.engine.slots import Copying, PromptCache, Slots
from parlay.engine.start import (
    FREE,
    MODEL,
    Closing,
    Loader,
    choose_rows,
    choose_snapshots,
    close_all,
    drafter_files,
    model_names,
    room_for_prompts,
    same_file,
    wanted_files,
)
from parlay.engine.worker import Worker
from parlay.errors import BadRequest, Closed, PromptTooLong
from parlay.llama.context import Context
from parlay.llama.kernels import PROMPT_ROWS
from parlay.llama.model import Model
from parlay.llama.settings import MIN_BATCH
from parlay.llama.undo import Rollback
from parlay.llama.vocabulary import Detokenizer
from parlay.planning.limits import check_fits
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Proposer
from parlay.timing.measuring import Progress, Stopwatch, quietly


class _Closable(Protocol):
    def close(self) -> None: ...


Closable = TypeVar("Closable", bound=_Closable)
T = TypeVar("T")

# Tokens of a prompt in one pass, so few that others are not kept waiting: on a CPU, on a GPU.
_CHUNK, _GPU_CHUNK = 128, 512
_DEEP = 1024  # tokens, where a band of lengths begins


class Engine:
    """Models loaded, worker running. Close it, or use it in a `with` block."""

    def __init__(
        self,
        settings: EngineSettings,
        controller: Controller | None = None,
        progress: Progress = quietly,
        after_pass: Callable[[], None] = nothing,
    ) -> None:
        """`progress` is told, on the engine's thread, what is being measured; `after_pass` is
        called there once a pass, when all sinks have been given what it brought."""
        self.settings = settings = _that_fits(settings)
        self._told = progress
        self._after_pass = after_pass
        self._closing: Closing = []
        self._drafter_closing: Closing = []
        self._loading = threading.Lock()  # held by whoever loads a drafter, on any thread
        self._worker: Worker | None = None
        self._learned: Callable[[], None] | None = None
        self.prices: CostTable | None = None  # what the controller chooses by; None: no prices
        try:
            self._worker = Worker(lambda: self._open(settings, controller), self._rest)
            self._worker.wait_until_open()
        except BaseException:  # if interrupted, what it opens is freed once it has stopped
            self.close()
            raise

    def _rest(self) -> None:
        self.cores.look()

    @property
    def _is_wanted(self) -> bool:
        """False: it was closed before it was open."""
        return self._worker is None or not self._worker.closed

    def _progress(self, share: float, what: str) -> None:
        """On the worker's thread; measuring stops here if nobody waits for it any more."""
        if not self._is_wanted:
            raise Closed("the engine was closed before it was open")
        self._told(share, what)

    def _open(self, settings: EngineSettings, controller: Controller | None) -> Loop:
        """Load, calibrate, and put together who works in a round; runs on the worker's thread."""
        if settings.vram_budget_gb is not None:
            self._check_budget(settings.vram_budget_gb)
        self._load_target()
        proposers = self._loader.proposers(self._closing)
        drafters = _models(proposers)
        self._calibrate(drafters)
        made = controller or self._controller(self.watched, drafters)
        self.drafts = self._make_drafts(made, proposers)
        self._loop = self._make_loop()
        self._loop.spoiled = self._spoiled()
        self._pause_unless_paid(drafters)
        self._progress(1.0, "ready")
        return self._loop

    def _load_target(self) -> None:
        settings = self.settings
        n_snapshots = choose_snapshots(settings)  # while the memory of the weights is still free
        self._n_rows = choose_rows(settings, n_snapshots)
        room = room_for_prompts(settings)
        own_head = any(same_file(Path(name), settings.target) for name in settings.draft)
        model = replace(settings.model, own_head=own_head)
        self.model = self._keep(Model(settings.target, model, lambda: self._is_wanted))
        # Beside one sequence that drafts, all others may be at the end of their prompts.
        n_outputs = max(settings.most_rows, MAX_EXACT_ROWS) + settings.context.n_sequences - 1
        given = replace(settings.context, n_batch=self._n_rows)
        if self.model.on_gpu:  # it computes one prompt while the next is made ready
            given = given.with_passes(max(1, PROMPTS_A_ROUND * self._chunk // self._n_rows))
        context = replace(
            given,
            n_outputs=n_outputs,
            n_snapshots=n_snapshots,
            prompt_cache_bytes=room,
        )
        self.target = self._keep(Context(self.model, context))
        self.widest = min(settings.widest, self.target.max_rollback)
        self.most_rows = min(settings.most_rows, self.target.max_rollback + 1)
        self._loader = Loader(settings, self.model, self.target)

    def _calibrate(self, drafters: Mapping[str, Proposer]) -> None:
        """Which passes are exact and what they cost, as far as it is not known from before."""
        settings = self.settings
        self._calibration = Calibration(settings, self.model, self.target, self._progress)
        self.watched = Stopwatch(self.target)  # the probe's passes also tell what passes cost
        self._classes = ExactChoice(settings, self.target, self.threads, self._chunk)
        self.chosen = self._classes.choose(self.watched, self._progress)
        self.mode: Mode = settings.mode or self._default_mode()
        self._attach(drafters)
        if self.model.facts.n_experts:  # but a mixture's depend on the text, and the probe has none
            self.watched.forget()

    @property
    def _chunk(self) -> int:
        """Tokens of a prompt in one pass."""
        n_batch = self.settings.context.n_batch
        default = _GPU_CHUNK if self.model.on_gpu else _CHUNK
        return self.settings.prompt_chunk or min(default, n_batch)

    def _make_drafts(self, controller: Controller, proposers: Mapping[str, Proposer]) -> Drafts:
        size = self.target.context_size
        drafts = Drafts(controller, proposers, size, self.widest, self.most_rows)
        if self.settings.drafter_later:
            drafts.absent |= dict.fromkeys(self._awaited, Fallback.DRAFTER_LOADING)
        return drafts

    def _make_loop(self) -> Loop:
        chunk, context = self._chunk, self.settings.context
        cache = PromptCache(self._cache_bytes())
        n, copying = context.n_sequences, Copying(from_device=self.target.steady)
        self.slots = Slots(
            self.target, n, cache, worth=chunk, boundaries=self._boundaries(), copying=copying
        )
        composition = Composition(
            self.chosen.found,
            self.target.context_size,
            self._scout,
            self.chosen.cost_percent,
        )
        self.cores = self._keep(self._make_cores())
        planner = Planner(
            self.target,
            self.slots,
            composition,
            self.cutting,
            mode=self.mode,
            chunk=chunk,
            n_batch=self._n_rows,
            n_call=self.target.settings.n_batch,
            # Whoever sets a bound on what others wait for is kept to.
            widest_chunk=0 if self.settings.prompt_chunk else self._n_rows * self.target.steady,
            n_joined=N_JOINED * chunk if self.chosen.found.joined else 0,
            prices=lambda: self.prices,
        )
        return Loop(
            self.target,
            self.slots,
            self.drafts,
            planner,
            ends=self.model.vocabulary.ends,
            ready=self.cores.ready,
            after_pass=self._after_pass,
        )

    def _boundaries(self) -> Boundaries:
        """Where prompts agree with other passes they may be gone on with anywhere; but deep in a
        text kernels of their own save more time than a next turn loses by reading a little again,
        and in what others say they cost it nothing. A recurrent target is cut at few places only.
        """
        kernels = self.target.kernels is not None
        if not self.chosen.found.prompts:
            return Boundaries(self._chunk, kernels=kernels)
        if not kernels or self._chunk < PROMPT_ROWS:
            return Boundaries(self._chunk, self.target.context_size, kernels=kernels)
        cuts = self.target.rollback is Rollback.PARTIAL
        deep = -(-_DEEP // self._chunk) * self._chunk
        return Boundaries(self._chunk, deep, marks_of(self.model) if cuts else None, kernels)

    def _make_cores(self) -> Cores:
        """What follows other work on these cores."""
        target, rule = self.target, self.threads
        cuts = target.rollback is Rollback.PARTIAL
        bits = ThreadBits(target, target.threads, rule, cuts=cuts)
        return Cores(target.threads, rule, bits, Others() if self.settings.follow_load else None)

    def _scout(self, found: ExactClass, placed: Seq[tuple[int, int]]) -> ExactClass:
        """What a class holds for is found with the threads it was probed with."""
        with self.cores.comparing():
            return self._classes.scout(found, placed)

    def _cache_bytes(self) -> int:
        """For conversations without a slot; a recurrent target's marks take the other half."""
        most = self.target.settings.prompt_cache_bytes
        return most if self.target.rollback is Rollback.PARTIAL else most - most // 2

    @property
    def cutting(self) -> Cutting:
        """How the target's passes over several sequences are cut."""
        recurrent = self.target.rollback is not Rollback.PARTIAL
        context = self.target.settings
        n_tail = 1 + context.n_snapshots if recurrent and context.n_snapshots else 0
        return Cutting(context.unified, recurrent, n_most=context.rows_at_once, n_tail=n_tail)

    def _check_budget(self, budget_gb: float) -> None:
        """Refuse before allocating; without a later drafter, both models count."""
        target, drafters = wanted_files(self.settings)
        check_fits(target, [] if self.settings.drafter_later else drafters, budget_gb=budget_gb)

    @property
    def exact(self) -> ExactClass:
        """The class that exact passes stay in."""
        return self._loop.planner.composition.found

    @property
    def exact_name(self) -> str:
        """Of that class."""
        return self._loop.planner.composition.name

    @property
    def spoiled(self) -> Inexact | None:
        """Why no answer is exact now, whatever its mode."""
        return self._loop.spoiled

    def _default_mode(self) -> Mode:
        """Exact wherever that costs little."""
        cheap = self.chosen.cheap and not self.settings.context.unified
        return "exact" if cheap else "faithful"

    @property
    def threads(self) -> int:
        """CPU threads of every pass."""
        return self.settings.context.threads or self.model.threads

    def submit(self, request: Request, sink: Sink) -> Sequence:
        """Start an answer; `sink` gets its pieces on the engine's thread."""
        size = self.target.context_size
        if len(request.prompt) >= size:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt)} tokens, the context holds {size};"
                " shorten it or raise the context size"
            )
        self._check_ids(request)
        if request.proposers is not None:
            for name in request.proposers:
                if name not in self.drafts.proposers and name not in self.drafts.absent:
                    known = ", ".join(self.drafts.proposers) or "none"
                    raise BadRequest(f"no proposer {name!r} is loaded; loaded: {known}")
        vocabulary = self.model.vocabulary
        text = Detokenizer(vocabulary, request.shown)
        seq = Sequence(request, text, vocabulary.ends, sink)
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
        return self._loop.active

    @property
    def n_waiting(self) -> int:
        return self._loop.n_waiting

    @property
    def alive(self) -> bool:
        """False: the worker's thread has died, and nothing will be answered any more."""
        return self._running.alive

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run something on the engine's thread, between two rounds; what came of it, or its error,
        for whoever needs the effect. Not done if cancelled in time."""
        return self._running.call(work)

    @property
    def _running(self) -> Worker:
        assert self._worker is not None, "an engine that failed to open is never handed out"
        return self._worker

    def close(self) -> None:
        """End unfinished answers and free everything, last made first."""
        if self._worker is not None and not self._worker.close():
            return  # it computes on, and reads the models
        with self._loading:  # a drafter that is being loaded reads the target until it fails here
            self._free()

    def _free(self) -> None:
        if self._learned is not None:
            self._learned()
            self._learned = None
        self._free_drafters()  # before the target, whose weights it may borrow
        close_all(self._closing)

    # -- drafters that come and go --------------------------------------------

    def load_drafters(self, paths: Seq[Path]) -> None:
        """Load draft models on the caller's thread; the worker bets on them from its next round.

        Loading computes, so that thread should end: OpenMP keeps threads for it while it lives.
        """
        with self._loading:
            closing: Closing = []
            try:
                if self._running.closed:
                    raise Closed("the engine is closed; open a new one")
                self._hand_over(self._loader.draft_models(paths, closing), closing)
            except BaseException:
                close_all(closing)
                raise

    def _hand_over(self, made: Mapping[str, Proposer], closing: Closing) -> None:
        """To the worker, which bets on them from its next round. Those before are off the table
        before they are freed, whatever comes of the new ones."""

        def take_over() -> None:
            self._pause_unless_paid({})
            self._forget_drafters()
            self._free_drafters()
            try:
                self._take_on(made)
            except BaseException:  # whoever loaded them frees them
                self._pause_unless_paid({})
                self._forget_drafters()
                self.target.release()
                self._loop.spoiled = self._spoiled()
                raise
            self._drafter_closing = closing

        for name in made.keys() - self.drafts.proposers.keys():
            # A request that names it may come before the worker.
            self.drafts.absent.setdefault(name, Fallback.DRAFTER_LOADING)
        self.call(take_over).result()  # whoever loads them hears if the target refuses one

    def _take_on(self, made: Mapping[str, Proposer]) -> None:
        self._attach(made)
        self._loop.spoiled = self._spoiled()
        self.drafts.proposers |= made
        self._pause_unless_paid(made)
        if self.prices is not None:
            price_drafters(self.prices, made)

    def drop_drafters(self, reason: Fallback) -> None:
        """Give the draft models up before the next round; its rounds will say why."""

        def drop() -> None:
            was_paused = self._pause_unless_paid({})
            dropped = self._forget_drafters()
            self.drafts.absent |= dict.fromkeys(dropped or self._awaited or [MODEL], reason)
            if dropped or was_paused:
                self._free_drafters()

        self.call(drop)

    def _forget_drafters(self) -> list[str]:
        """Take all draft models off the table; those that were on it."""
        names = list(_models(self.drafts.proposers))
        for name in names:
            del self.drafts.proposers[name]
        for name in tuple(self.drafts.absent):  # whoever loads one may add to it now
            if name not in FREE:
                del self.drafts.absent[name]
        return names

    @property
    def _awaited(self) -> list[str]:
        """The names of the draft models that the settings ask for."""
        return model_names(len(drafter_files(self.settings.draft)))

    def _free_drafters(self) -> None:
        if self._drafter_closing:
            self.target.release()
            self._loop.spoiled = self._spoiled()
        close_all(self._drafter_closing)

    def _attach(self, drafters: Mapping[str, Proposer]) -> None:
        """Let a drafter that reads hidden states follow the target; others cost it nothing."""
        for drafter in drafters.values():
            if isinstance(drafter, Follower):
                self.target.capture(drafter.layers, drafter.follow)
                self.watched.forget()  # passes cost more from now on

    def _spoiled(self) -> Inexact | None:
        """Whether what a target computes depends on more than the text: where its cells lie, or
        that its states are read out."""
        if self.settings.context.unified:
            return Inexact.UNIFIED
        if not self.target.captured or self.chosen.found is SINGLE:
            return None
        if (spare := self.slots.spare()) is None:
            return Inexact.STATES
        with self.cores.comparing():
            same = self._classes.unchanged(self.chosen.found, spare)
        return None if same else Inexact.STATES

    def _pause_unless_paid(self, drafters: Mapping[str, Proposer]) -> bool:
        """Pause a drafter where it does not pay; whether the one before was paused.

        In exact mode only where that changes no bit, which cannot be probed while answers run.
        """
        before, self.drafts.pause = self.drafts.pause, None
        for drafter in drafters.values():
            if isinstance(drafter, Follower) and (self.mode == "faithful" or self._bits_stay()):
                self.drafts.pause = DrafterPause(self.drafts, self.target, drafter)
        return before is not None and before.paused

    def _bits_stay(self) -> bool:
        """Whether states may be left inside; the probe takes the first slot."""
        if self.active:
            return False
        self.slots.keep(0, 0)
        self.slots.release(0, ())
        self.cores.by_rule()
        return bits_stay(self.target)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, made: Closable) -> Closable:
        self._closing.append(made.close)
        return made

    # -- control --------------------------------------------------------------

    def control(self, controller: Controller, prices: CostTable | None = None) -> None:
        """Another controller, from the next round on; `prices`: those that it chooses by. On the
        engine's thread."""
        self.drafts.controller, self.prices = controller, prices

    @property
    def listeners(self) -> list[Listener]:
        """Who hears of every round; changed on the engine's thread."""
        return self._loop.listeners

    @property
    def readers(self) -> list[ReadListener]:
        """Who hears of first tokens that prompts' own passes gave."""
        return self._loop.readers

    def trace(self, sink: TraceSink) -> None:
        """Give every decision from now on to `sink`, a line of JSON per round."""
        seconds = None if self.prices is None else self.prices.plain_s
        self.listeners.append(Trace(seconds, sink))

    def _controller(self, target: Stopwatch, drafters: Mapping[str, Proposer]) -> Controller:
        """A fixed window where one was given, else the controller that prices rounds."""
        settings = self.settings
        if settings.window is not None:
            return FixedWindow(settings.window)
        key = self._pair_key
        costs = self._calibration.costs(key, target, drafters)
        made = learned_controller(costs, key, self.cutting, settings.promise)
        self._learned = lambda: keep_learned(key, made)
        self.prices = made.costs
        return made

    @property
    def _pair_key(self) -> str:
        return self.pair_key(drafter_files(self.settings.draft))

    @property
    def firm_key(self) -> str:
        """Of all that what is cached of a prompt depends on, beside its text."""
        return store.fingerprint(self.pair_key(()), self.slots.boundaries)

    def pair_key(self, drafters: Iterable[Path]) -> str:
        """Under what prices and what was learned of these drafters are kept."""
        return self._calibration.pair_key(drafters)


def _that_fits(settings: EngineSettings) -> EngineSettings:
    """With a batch that is not larger than all its sequences: llama.cpp cuts it down to those, and
    aborts where a pass has more rows than that."""
    context = settings.context
    n_batch = min(context.n_batch, max(MIN_BATCH, context.context_size * context.n_sequences))
    n_ubatch = min(context.n_ubatch, n_batch)
    fitting = replace(context, n_batch=n_batch, n_ubatch=n_ubatch)
    return settings if fitting == context else replace(settings, context=fitting)


def _models(proposers: Mapping[str, Proposer]) -> dict[str, Proposer]:
    """The draft models among them."""
    return {name: proposer for name, proposer in proposers.items() if name not in FREE}

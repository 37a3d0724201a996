"""Settings of a model and of an answer, by the names of the Python interface: each exists once.

Knows names, types, defaults and limits; whether a path holds a model is found when it is opened.
The keys of a deployment that have these names mean the same.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec

from parlay.control.budget import Promise
from parlay.decoding.sampling import Sampling
from parlay.engine.request import ContextFull, Mode
from parlay.errors import BadRequest
from parlay.llama.settings import (
    Adapter,
    ContextSettings,
    FlashAttention,
    ModelSettings,
    Override,
    RopeSettings,
    SplitMode,
)
from parlay.option_types import check_options, texts
from parlay.timing.measuring import Progress, quietly

P = ParamSpec("P")
MAX_WINDOW, WIDE_WINDOW = 16, 64
_CONTEXT, _BATCH = 4096, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BettingSettings:
    """How to bet, as it is said and as an engine takes it."""

    window: int | None = None  # None: the controller's choice, by measured time
    mode: Mode | None = None  # None: exact where that costs little
    exact_class: str | None = None  # by name or width; None: the cheapest
    exact_cost_pct: float = 5.0  # of the speed, up to which exact is the default
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"
    vram_budget_gb: float | None = None  # refuse to load beyond this
    translate: bool = False  # let a drafter of another vocabulary draft through text
    remember_tokens: int = 0  # of finished answers and their prompts, for suffix drafts of others
    # Tokens of a draft that a recurrent target takes back without a copy; None: by price and room.
    snapshots: int | None = None
    follow_load: bool = True  # fewer threads, or sleeping ones, where others use the cores
    # Who is not slower than plain decoding among several answers: their sum, or each of them.
    promise: Promise = "sum"
    measure_again: bool = False  # believe no measurement of an earlier run


@dataclass(frozen=True, slots=True)
class EngineSettings(BettingSettings):
    """What to load and how to bet."""

    target: Path
    draft: tuple[str, ...] = ("suffix",)  # suffix, or paths of drafters; (): none
    _: KW_ONLY
    max_window: int = MAX_WINDOW  # of every sequence, however many there are
    # The widest window where there is room for it in a pass, as when one sequence is alone. Such
    # passes are not measured at start-up but when they first come up.
    wide_window: int = WIDE_WINDOW
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    drafter_model: ModelSettings = field(default_factory=ModelSettings)
    # Tokens of a prompt in one pass while others decode: so long they wait for their next token.
    prompt_chunk: int | None = None  # None: 512 on a GPU, 128 on a CPU, and not more than the batch
    widens: bool = False  # passes over prompts have more rows than the batch, where a GPU has room
    drafter_later: bool = False  # `load_drafters` will bring the draft models

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 0:
            raise BadRequest(f"the window is {self.window}; give 0 or more")
        if self.prompt_chunk is not None and not 1 <= self.prompt_chunk <= self.context.n_batch:
            raise BadRequest(
                f"chunks of {self.prompt_chunk} tokens; give 1 to {self.context.n_batch}, the batch"
            )
        if self.context.unified and self.mode == "exact":
            raise BadRequest(
                "exact mode needs a cache for each sequence; leave unified_cache or use faithful"
            )
        if self.exact_class is not None and self.mode == "faithful":
            raise BadRequest("an exact class is for exact mode; leave it out or use mode exact")
        if not 0 <= self.exact_cost_pct <= 100:
            raise BadRequest(f"exact_cost_pct is {self.exact_cost_pct}; give 0 to 100")
        if self.remember_tokens < 0:
            raise BadRequest(f"{self.remember_tokens} tokens to remember; give 0 or more")
        if self.remember_tokens and "suffix" not in self.draft:
            raise BadRequest("remember_tokens is for suffix drafts; add suffix to the drafters")
        rows = (self.widest + 1) * self.context.n_sequences
        if rows > self.context.rows_at_once:
            name = "ubatch" if self.context.n_ubatch else "batch"
            raise BadRequest(
                f"a window of {self.widest} for {self.context.n_sequences}"
                f" sequence(s) needs passes of {rows} rows, the {name} holds"
                f" {self.context.rows_at_once}; lower the window or raise the {name}"
            )

    @property
    def widest(self) -> int:
        """The largest window that may come up."""
        return max(self.window or 0, self.max_window)

    @property
    def most_rows(self) -> int:
        """Rows of all that decode in a pass: everybody's usual window, or one wide one."""
        wide = min(self.wide_window + 1, self.context.rows_at_once)
        return max((self.widest + 1) * self.context.n_sequences, wide)


@dataclass(frozen=True, slots=True)
class LoadSettings(BettingSettings):
    """What was said, and what holds where nothing was."""

    target: str | Path = "default"
    _: KW_ONLY
    draft: str = "auto"
    context_size: int | Literal["auto"] = _CONTEXT
    slots: int = 1
    threads: int = 0
    gpu_layers: int | Literal["auto"] = -1
    devices: str | Sequence[str] = ()
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    drafter_gpu_layers: int = -1
    mmap: bool = True
    mlock: bool = False
    large_pages: bool = True
    batch: int = 0
    ubatch: int = 0
    prompt_chunk: int = 0
    unified_cache: bool = False
    split_mode: SplitMode = "layer"
    tensor_split: Sequence[float] = ()
    main_gpu: int = 0
    n_cpu_moe: int = 0
    tensor_overrides: str | Sequence[str] = ()
    lora: str | Sequence[str] = ()
    rope: RopeSettings | None = None
    prompt_cache_mb: int = 1024
    progress: Progress = quietly

    def __post_init__(self) -> None:
        check_options(self)

    def for_engine(
        self,
        target: Path,
        draft: tuple[str, ...],
        *,
        max_window: int | None = None,
        wide_window: int = WIDE_WINDOW,
        drafter_later: bool = False,
    ) -> EngineSettings:
        """For this file and these proposers; `auto` is taken for what is usual."""
        said = {item.name: getattr(self, item.name) for item in fields(BettingSettings)}
        return EngineSettings(
            target,
            draft,
            max_window=max(self.window or 0, MAX_WINDOW) if max_window is None else max_window,
            wide_window=wide_window,
            model=self.model,
            context=self.context,
            drafter_model=self.model.for_drafter(self.drafter_gpu_layers),
            prompt_chunk=self.prompt_chunk or None,
            widens=not self.batch and not self.ubatch,
            drafter_later=drafter_later,
            **said,
        )

    @property
    def model(self) -> ModelSettings:
        """Where the target's weights go."""
        return ModelSettings(
            -1 if self.gpu_layers == "auto" else self.gpu_layers,
            texts(self.devices),
            self.mmap,
            self.mlock,
            self.large_pages,
            split_mode=self.split_mode,
            tensor_split=tuple(self.tensor_split),
            main_gpu=self.main_gpu,
            n_cpu_moe=self.n_cpu_moe,
            overrides=tuple(Override.parse(text) for text in texts(self.tensor_overrides)),
            adapters=tuple(Adapter.parse(text) for text in texts(self.lora)),
        )

    @property
    def context(self) -> ContextSettings:
        """The target's context, before the engine says how many rows of logits it reads."""
        return ContextSettings(
            _CONTEXT if self.context_size == "auto" else self.context_size,
            self.slots,
            n_batch=self.batch or _BATCH,
            threads=self.threads,
            flash_attention=self.flash_attention,
            cache_type_k=self.cache_type_k,
            cache_type_v=self.cache_type_v,
            n_ubatch=self.ubatch,
            unified=self.unified_cache,
            same_bits=self.mode != "faithful" and not self.unified_cache,
            prompt_cache_bytes=self.prompt_cache_mb << 20,
            rope=self.rope or RopeSettings(),
        )


Init = Callable[[Any, LoadSettings], None]


def by_keywords(
    settings: Callable[P, LoadSettings],
) -> Callable[[Init], Callable[Concatenate[Any, P], None]]:
    """A constructor that takes what the settings take, and gets them as one value."""

    def wrap(init: Init) -> Callable[Concatenate[Any, P], None]:
        @functools.wraps(init)
        def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, settings(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = inspect.signature(settings).parameters.values()
        made.__signature__ = inspect.Signature([own, *taken])  # type: ignore[attr-defined]
        return made

    return wrap


_DRAWN = [item.name for item in fields(Sampling) if item.init]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """What was said, and what holds where nothing was; beside the fields of `Sampling`."""

    max_tokens: int = 256
    stop: str | Sequence[str] | None = ()
    draft: str | None = None
    window: int | None = None
    mode: Mode | None = None
    context_full: ContextFull = "stop"
    logprobs: int | None = None
    raw: bool = False
    tools: Sequence[Mapping[str, Any]] | None = ()
    prediction: str | None = ""
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        check_options(self)


_OWN = [item.name for item in fields(AnswerSettings)]


def options_of(given: Mapping[str, Any]) -> tuple[AnswerSettings, dict[str, Any]]:
    """Keywords by where they belong; what was said of samplers is as good as it will be taken."""
    for name in given:
        if name not in _OWN and name not in _DRAWN:
            nearest = difflib.get_close_matches(name, [*_OWN, *_DRAWN], n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise BadRequest(f"unknown option: {name}{hint}")
    own = {name: value for name, value in given.items() if name in _OWN}
    drawn = {name: value for name, value in given.items() if name in _DRAWN}
    Sampling(**drawn)
    return AnswerSettings(**own), drawn

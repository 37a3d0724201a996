"""What a target is loaded with, by the names of the Python interface.

Knows names and defaults, and what they are to an engine; files are found by whoever asks. The keys
of a deployment that have these names mean the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec

from parlay.control.budget import Promise
from parlay.engine.request import Mode
from parlay.engine.settings import (
    MAX_WINDOW,
    WIDE_WINDOW,
    EngineSettings,
)
from parlay.engine.startup.fitting import fit_engine
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
_CONTEXT, _BATCH = 4096, 512


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What was said, and what holds where nothing was."""

    target: str | Path = "default"
    _: KW_ONLY
    draft: str = "auto"
    window: int | None = None
    mode: Mode | None = None
    exact_class: str | None = None
    exact_cost_pct: float = 5.0
    context_size: int | Literal["auto"] = _CONTEXT
    slots: int = 1
    threads: int = 0
    gpu_layers: int | Literal["auto"] = -1
    devices: str | Sequence[str] = ()
    flash_attention: FlashAttention = "auto"
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    drafter_gpu_layers: int = -1
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"
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
    vram_budget_gb: float | None = None
    translate: bool = False
    remember_tokens: int = 0
    prompt_cache_mb: int = 1024
    snapshots: int | None = None
    follow_load: bool = True
    promise: Promise = "sum"
    measure_again: bool = False
    progress: Progress = quietly

    def __post_init__(self) -> None:
        check_options(self)

    def engine(self, target: Path, draft: tuple[str, ...]) -> EngineSettings:
        """For this file and these proposers; what is left to us is fitted to the machine."""
        context, layers = self.context_size == "auto", self.gpu_layers == "auto"
        unfitted = self.unfitted(target, draft, max_window=max(self.window or 0, MAX_WINDOW))
        return fit_engine(unfitted, context=context, layers=layers)

    def unfitted(
        self,
        target: Path,
        draft: tuple[str, ...],
        *,
        max_window: int,
        wide_window: int = WIDE_WINDOW,
        drafter_later: bool = False,
    ) -> EngineSettings:
        """The same, `auto` taken for what is usual."""
        return EngineSettings(
            target=target,
            draft=draft,
            window=self.window,
            max_window=max_window,
            wide_window=wide_window,
            mode=self.mode,
            exact_class=self.exact_class,
            exact_cost_pct=self.exact_cost_pct,
            model=self.model,
            context=self.context,
            drafter_model=self.model.for_drafter(self.drafter_gpu_layers),
            drafter_cache_type_k=self.drafter_cache_type_k,
            drafter_cache_type_v=self.drafter_cache_type_v,
            prompt_chunk=self.prompt_chunk or None,
            widens=not self.batch and not self.ubatch,
            vram_budget_gb=self.vram_budget_gb,
            translate=self.translate,
            remember_tokens=self.remember_tokens,
            snapshots=self.snapshots,
            drafter_later=drafter_later,
            follow_load=self.follow_load,
            promise=self.promise,
            measure_again=self.measure_again,
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

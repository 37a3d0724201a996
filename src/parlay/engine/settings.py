"""What to load and how to bet: everything an engine is made from.

Knows limits, not files: whether a path holds a model is found out when it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from parlay.control.budget import Promise
from parlay.engine.request import Mode
from parlay.errors import BadRequest
from parlay.llama.settings import ContextSettings, ModelSettings

MAX_WINDOW, WIDE_WINDOW = 16, 64
# Whether a draft model goes on while the target verifies; auto: on a GPU, where it pays.


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What to load and how to bet."""

    target: Path
    draft: tuple[str, ...] = ("suffix",)  # suffix, or paths of drafters; (): none
    window: int | None = None  # None: the controller's choice, by measured time
    max_window: int = MAX_WINDOW  # of every sequence, however many there are
    # The widest window where there is room for it in a pass, as when one sequence is alone. Such
    # passes are not measured at start-up but when they first come up.
    wide_window: int = WIDE_WINDOW
    mode: Mode | None = None  # None: exact where that costs little
    exact_class: str | None = None  # by name or width; None: the cheapest
    exact_cost_pct: float = 5.0  # of the speed, up to which exact is the default
    model: ModelSettings = field(default_factory=ModelSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    drafter_model: ModelSettings = field(default_factory=ModelSettings)
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"
    # Tokens of a prompt in one pass while others decode: so long they wait for their next token.
    prompt_chunk: int | None = None  # None: 512 on a GPU, 128 on a CPU, and not more than the batch
    widens: bool = False  # passes over prompts have more rows than the batch, where a GPU has room
    vram_budget_gb: float | None = None  # refuse to load beyond this
    translate: bool = False  # let a drafter of another vocabulary draft through text
    remember_tokens: int = 0  # of finished answers and their prompts, for suffix drafts of others
    drafter_later: bool = False  # `load_drafters` will bring the draft models
    # Tokens of a draft that a recurrent target takes back without a copy; None: by price and room.
    snapshots: int | None = None
    follow_load: bool = True  # fewer threads, or sleeping ones, where others use the cores
    # Who is not slower than plain decoding among several answers: their sum, or each of them.
    promise: Promise = "sum"
    measure_again: bool = False  # believe no measurement of an earlier run

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

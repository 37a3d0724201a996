"""The exact class of an engine: probed once, chosen once by price, kept, and checked at each start.

Knows the target and what is on disk; knows no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from parlay import store
from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import MAX_ROWS
from parlay.decoding.span import Passes
from parlay.engine.exact.class_choice import Price, Seen, Valuation, Worth
from parlay.engine.exact.class_prices import class_prices
from parlay.engine.exact.class_probe import probe, reaches, still_holds
from parlay.engine.exact.composition import Rate
from parlay.engine.exact.exact_rows import ExactRows
from parlay.engine.exact.exactness import SINGLE, ExactClass, pinned
from parlay.engine.exact.joined_probe import N_JOINED, joins
from parlay.engine.settings import EngineSettings
from parlay.engine.start import FREE, FREE_PROPOSERS
from parlay.errors import BadRequest
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.kernels import PROMPT_ROWS
from parlay.llama.undo import Rollback
from parlay.timing import measuring
from parlay.timing.measuring import Progress, Stopwatch

log = logging.getLogger("parlay.engine")
# Rows of a pass over one sequence, and over several, up to which the probe looks.
MAX_EXACT_ROWS = 32
_MIN_WIDTHS = 17
_MIN_CHUNK = 16  # of the probe's texts: any batch holds it
_TOLD = "exactness"  # what is told of it, by file
_PROBE_S = 60.0  # for the probe of a start
_SCOUT_S = 5.0  # for a look at a longer text, in the middle of an answer
_FORMAT = 8  # of the records; others are probed again
_CHOICE = 3  # of the way to choose; what was chosen in another way is chosen again
_PRICES_S = 3.0  # for the prices that a choice hangs on
# What was exact by default stays so until it costs this much more than is allowed: prices waver.
_WAVERING = 1.2


@dataclass(frozen=True, slots=True)
class Chosen:
    """The class an engine runs in, and what is known of the others."""

    found: ExactClass
    classes: tuple[ExactClass, ...]
    cost: float | None  # the part of the speed it costs; None: nobody measured
    cheap: bool = False  # whether that is little enough to be exact by default
    rate: Rate = float  # of so many sequences in one pass

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def cost_percent(self) -> float | None:
        """As people are told it."""
        return None if self.cost is None else round(100 * self.cost, 2)


def exactness_told(target: Path) -> str | None:
    """What the last start with this file found exactness to cost here; None: there was none."""
    return store.read(_TOLD, store.file_identity(target), _tell)


def exact_rows_told(target: Path, n_sequences: int) -> ExactRows | None:
    """The rows of the class that the last start with this file ran in; None: it was not exact by
    default, had room for fewer sequences, or there was none."""
    rows = store.read(_TOLD, store.file_identity(target), _rows_told)
    return None if rows is None or n_sequences not in rows.by_number else rows


def _rows_told(record: dict[str, Any]) -> ExactRows | None:
    rows = {int(n): tuple(map(int, each)) for n, each in record["rows"].items()}
    return ExactRows(rows) if record["exact"] else None


def _tell(record: dict[str, Any]) -> str:
    others = ", ".join(map(str, record["classes"]))
    cost = float(record["cost_percent"])
    default = "exact" if record["exact"] else "faithful"
    return (
        f"class {record['class']} (of {others}) costs {cost:.1f} % of the speed here:"
        f" the default is {default}"
    )


class ClassCalibration:
    """Finds and keeps the classes of one target."""

    def __init__(self, settings: EngineSettings, target: Context, threads: int, chunk: int) -> None:
        self._settings = settings
        self._target = target
        self._threads = threads
        self._chunk = max(chunk, _MIN_CHUNK)

    def choose(
        self,
        target: Stopwatch,
        known: CostTable | None,
        learned: Mapping[str, Seen],
        progress: Progress,
    ) -> Chosen:
        """The pinned class, the one chosen at an earlier start, or the cheapest by these prices."""
        if self._needs_no_probe:
            return Chosen(SINGLE, (SINGLE,), cost=0.0, cheap=True)
        classes = self._recalled()
        if classes:
            table = known or self._prices(classes, target, progress)
            chosen = self._priced(classes, table, learned)
            if still_holds(self._target, chosen.found, self._chunk):
                return chosen
            log.info("passes round differently than they did: looking again which are exact")
        classes = self._probed(target, progress)
        table = known or self._prices(classes, target, progress)
        return self._priced(classes, table, learned)

    @property
    def _needs_no_probe(self) -> bool:
        """Single rows of one sequence at a time agree with themselves."""
        settings = self._settings
        alone = not settings.draft and settings.context.n_sequences == 1
        unasked = settings.exact_class is None and not self._decided()
        return settings.mode == "faithful" or settings.context.unified or (alone and unasked)

    def scout(self, found: ExactClass, placed: Sequence[tuple[int, int]]) -> ExactClass:
        """Try the class at the ends of longer texts, in their own caches, and keep what is found.

        A cache that cannot be cut anywhere was probed at long texts from the start.
        """
        if self._target.rollback is not Rollback.PARTIAL:
            return found
        longer = reaches(self._target, found, placed, _SCOUT_S)
        log.info("exact class %s tried after %s tokens", found.name, max(n for _, n in placed))
        if longer != found:
            known = [longer if c.widths == found.widths else c for c in self._recalled()]
            self._save(known or [longer])
        return longer

    def unchanged(self, found: ExactClass, seq_id: int) -> bool:
        """Whether the target still gives what it gave when the class was probed."""
        return still_holds(self._target, found, self._chunk, seq_id)

    # -- what is kept ---------------------------------------------------------

    @cached_property
    def _key(self) -> str:
        """All that kernels depend on, and nothing that says who drafts."""
        settings = self._settings
        return store.fingerprint(
            store.file_identity(settings.target),
            library.build(),
            [(d.name, d.description) for d in library.devices()],
            settings.model,
            [store.file_identity(adapter.path) for adapter in settings.model.adapters],
            self._target.settings.n_snapshots,
            replace(settings.context, threads=self._threads),
            self._target.cache_types,
            self._target.kernels is not None,
            self._n_widths,
            self._chunk,
        )

    @property
    def _choice_key(self) -> str:
        """Who asks for exact text chooses by another measure than who only gets it."""
        return store.fingerprint(self._key, self._settings.mode, _CHOICE)

    @property
    def _n_widths(self) -> int:
        wanted = max(self._settings.widest + 1, _MIN_WIDTHS)
        return min(wanted, self._settings.context.n_batch, self._target.max_rollback + 1)

    def _recalled(self) -> tuple[ExactClass, ...]:
        """The classes as far as a record tells; a bad one tells nothing."""
        again = self._settings.measure_again
        return (None if again else store.read("exact", self._key, _read)) or ()

    def _decided(self) -> dict[str, Any]:
        """What an earlier start decided; nothing, where it was busy and could only guess."""
        again = self._settings.measure_again
        record = None if again else store.load("exact-class", self._choice_key)
        return record if record is not None and record.get("firm", True) else {}

    def _kept(self, classes: Sequence[ExactClass]) -> ExactClass | None:
        """The pinned class, or the one an earlier start chose."""
        possible = self._possible(classes)
        if self._settings.exact_class is not None:
            return pinned(possible, self._settings.exact_class)
        try:
            return pinned(possible, str(self._decided()["class"]))
        except (LookupError, BadRequest):
            return None

    def _save(self, classes: Iterable[ExactClass]) -> None:
        record = {"format": _FORMAT, "classes": [found.to_dict() for found in classes]}
        store.save("exact", self._key, record)

    def _probed(self, target: Passes, progress: Progress) -> tuple[ExactClass, ...]:
        progress(0.0, "which passes are exact")
        settings = self._settings
        n, wide = (
            settings.context.n_sequences,
            min(settings.wide_window + 1, settings.context.n_batch),
        )
        found = probe(target, self._n_widths, n, self._chunk, wide, budget_s=_PROBE_S)
        classes = found.classes
        if found.complete:
            if self._reads_apart and joins(self._target, self._chunk):
                classes = tuple(replace(each, joined=True) for each in classes)
            self._save(classes)
        names = " | ".join(c.name for c in classes)
        log.info("passes that agree to the bit, by rows: %s", names)
        return classes

    @property
    def _reads_apart(self) -> bool:
        """Whether prompts have kernels of their own, and a pass room for several chunks."""
        wide = N_JOINED * self._chunk <= self._settings.context.n_batch
        return self._target.kernels is not None and self._chunk >= PROMPT_ROWS and wide

    # -- what it costs --------------------------------------------------------

    def _possible(self, classes: Sequence[ExactClass]) -> list[ExactClass]:
        """A cache that cannot cut a few tokens off at little cost cannot have padding each pass."""
        if self._target.rollback in (Rollback.PARTIAL, Rollback.BOUNDED):
            return list(classes)
        return [found for found in classes if found.floor == 1]

    def _priced(
        self, classes: tuple[ExactClass, ...], table: CostTable, learned: Mapping[str, Seen]
    ) -> Chosen:
        n_slots, possible = self._settings.context.n_sequences, self._possible(classes)
        value = Valuation(_price_of(table), self._worth(table, learned))
        kept = self._kept(classes)
        asked = self._settings.mode == "exact"
        found = kept or value.best(possible or [SINGLE], n_slots, asked=asked)
        cost = value.cost(found, n_slots)
        cheap = self._is_cheap(cost)
        made = Chosen(found, classes, cost, cheap, _rate(value, found, table))
        log.info("exact class %s costs %.1f %% of the speed", made.name, 100 * cost)
        self._tell(made)
        if self._settings.draft:
            firm = kept is not None or table.stable or len(possible) < 2
            record = {"class": made.name, "exact": cheap, "firm": firm}
            store.save("exact-class", self._choice_key, record)
        return made

    def _is_cheap(self, cost: float) -> bool:
        slack = _WAVERING if self._decided().get("exact") else 1.0
        return 100 * cost <= slack * self._settings.exact_cost_pct

    def _tell(self, chosen: Chosen) -> None:
        n_slots = self._settings.context.n_sequences
        told = {
            "class": chosen.name,
            "classes": [found.name for found in chosen.classes],
            "cost_percent": chosen.cost_percent,
            "exact": chosen.cheap,
            "rows": {n: chosen.found.rows_for(n) for n in range(1, n_slots + 1)},
        }
        store.save(_TOLD, store.file_identity(self._settings.target), told)

    def _worth(self, table: CostTable, learned: Mapping[str, Seen]) -> Worth:
        names = self._settings.draft
        model = any(name not in FREE_PROPOSERS for name in names)
        plain_s = table.plain_s(1, 1)
        step_s = table.drafter.step_s() if table.drafter is not None else _UNKNOWN_STEP * plain_s
        prior = Worth.of(free=bool(names), model=model, step_s=step_s)
        seen = [each for who, each in learned.items() if (who.split()[0] in FREE) != model]
        held, tried = sum(each.n_held for each in seen), sum(each.n_tried for each in seen)
        return prior.learned(Seen(held, tried))

    def _prices(
        self, classes: Sequence[ExactClass], target: Stopwatch, progress: Progress
    ) -> CostTable:
        """What passes cost, measured when a choice hung on it or now. A busy machine is not
        believed for longer than this start."""
        known = store.read("exact-costs", self._key, CostTable.from_dict)
        if known is not None and not self._settings.measure_again:
            return known
        context, possible = self._settings.context, self._possible(classes)
        if len(possible) > 1 and self._target.rollback is Rollback.PARTIAL:
            progress(0.0, "what exact passes cost")
            found = class_prices(target, possible, context.n_sequences, budget_s=_PRICES_S)
        elif target.samples[1, 1, False] and not target.steady:
            found = measuring.table(target)
        else:  # where a change of shape costs, the probe's passes tell little: nearly all do
            n, widest = context.n_sequences, self._n_widths - 1
            found = measuring.measure(
                target, None, max_window=widest, n_sequences=n, progress=progress
            )
        if found.stable or len(possible) < 2:
            store.save("exact-costs", self._key, found.to_dict())
        return found


# A drafted token, over a plain pass, of a drafter that nobody has timed yet.
_UNKNOWN_STEP = 0.1


def _read(record: dict[str, Any]) -> tuple[ExactClass, ...]:
    if record["format"] != _FORMAT:  # of another version: probed again, and nobody's fault
        return ()
    return tuple(ExactClass.from_dict(each) for each in record["classes"])


def _rate(value: Valuation, found: ExactClass, table: CostTable) -> Rate:
    """By price where passes over several were timed; else the more in a pass the better."""
    timed = any(n > 1 and curve.known for (_, n), curve in table.measured.items())
    return (lambda n: value.rate(found, n)) if timed else float


def _price_of(table: CostTable) -> Price:
    """More rows than prices go to are as many passes."""

    def price(n_sequences: int, rows: int) -> float:
        seconds = table.curve(1, n_sequences).steady[min(rows, MAX_ROWS)]
        return seconds * max(1.0, rows / MAX_ROWS)

    return price

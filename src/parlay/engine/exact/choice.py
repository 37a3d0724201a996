"""The exact class of an engine: probed once, kept, and checked at each start; of one width it is
chosen by what passes cost.

Knows the target and what is on disk; knows no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from parlay import store
from parlay.decoding.span import Passes, Span
from parlay.engine.exact.probe import (
    N_JOINED,
    Budget,
    OutOfTime,
    Walker,
    joins,
    probe_whole,
    probe_width,
    reaches,
    still_holds,
)
from parlay.engine.exact.shapes import SINGLE, ExactClass
from parlay.engine.settings import EngineSettings
from parlay.engine.start import FREE_PROPOSERS
from parlay.errors import BadRequest
from parlay.llama import library
from parlay.llama.context import Context
from parlay.llama.kernels import PROMPT_ROWS
from parlay.llama.undo import Rollback
from parlay.timing.measuring import Progress
from parlay.timing.probe_text import probe_tokens

log = logging.getLogger("parlay.engine")
_MIN_WIDTHS = 17  # rows up to which all passes have to agree
_MIN_CHUNK = 16  # of the probe's texts: any batch holds it
_WIDTHS = (1, 2, 4, 8, 16)  # where kernels that take rows in groups are full
_FORMAT = 9  # of the records; others are probed again
_PROBE_S = 60.0  # for the probe of a start
_SCOUT_S = 5.0  # for a look at a longer text, in the middle of an answer
_PRICES_S, _N_TURNS, _N_CONTEXT = (
    3.0,
    6,
    24,
)  # for the prices of widths: turns, after so many tokens
# What drafts are taken to bring: in which share of rounds there are some, and their tokens' chance.
_MODEL_SHARE, _FREE_SHARE, _RATE = 1.0, 0.25, 0.75
# What was exact by default stays so until it costs this much more than is allowed: prices waver.
_WAVERING = 1.2

Price = Callable[[int], float]  # seconds of a pass with so many rows


@dataclass(frozen=True, slots=True)
class Chosen:
    """The class an engine runs in."""

    found: ExactClass
    cost: float = 0.0  # the part of the speed it costs whoever it costs most
    cheap: bool = True  # whether that is little enough to be exact by default

    @property
    def cost_percent(self) -> float:
        """As people are told it."""
        return round(100 * self.cost, 2)


def exactness_told(target: Path) -> str | None:
    """What the last start with this file found exactness to cost here; None: there was none."""
    return store.read("exactness", store.file_identity(target), _tell)


def _tell(record: dict[str, Any]) -> str:
    default = "exact" if record["exact"] else "faithful"
    cost = float(record["cost_percent"])
    return f"class {record['class']} costs {cost:.1f} % of the speed here: the default is {default}"


class ExactChoice:
    """Finds and keeps the class of one target."""

    def __init__(self, settings: EngineSettings, target: Context, threads: int, chunk: int) -> None:
        self._settings = settings
        self._target = target
        self._threads = threads
        self._chunk = max(chunk, _MIN_CHUNK)

    def choose(self, passes: Passes, progress: Progress) -> Chosen:
        """The pinned class, all passes if they agree, or the width that costs least. `passes`: the
        target's, as they are watched."""
        if self._needs_no_probe:
            return Chosen(SINGLE)
        kept = self._kept()
        if kept is not None and still_holds(self._target, kept.found, self._chunk):
            return kept
        if kept is not None:
            log.info("passes round differently than they did: looking again which are exact")
        progress(0.0, "which passes are exact")
        made = self._probed(passes, progress)
        log.info("exact class %s costs %.1f %% of the speed", made.found.name, 100 * made.cost)
        return made

    @property
    def _needs_no_probe(self) -> bool:
        """Single rows of one sequence at a time agree with themselves."""
        settings = self._settings
        alone = not settings.draft and settings.context.n_sequences == 1
        unasked = settings.exact_class is None and store.load("exact", self._key) is None
        return settings.mode == "faithful" or settings.context.unified or (alone and unasked)

    def _probed(self, passes: Passes, progress: Progress) -> Chosen:
        settings, pin = self._settings, self._settings.exact_class
        walker = Walker(passes, self._chunk, Budget(_PROBE_S))
        n, wide = self._n_widths, min(settings.wide_window + 1, settings.context.n_batch)
        try:
            whole = probe_whole(walker, n, wide)
            if whole is not None and (pin is None or _is_pinned(whole, pin)):
                return self._keep(Chosen(self._with_joined(whole)))
            if pin is not None and (whole is not None or not pin.isdigit()):
                raise _unknown(pin, _WIDTHS if whole is None else [whole.name])
            made = self._of_width(walker, progress)
            return self._keep(replace(made, found=self._with_joined(made.found)))
        except OutOfTime:  # what was not tried is not known to hold; another start may have time
            return Chosen(SINGLE, self._cost(self._prices(passes), 1), cheap=False)

    def _with_joined(self, found: ExactClass) -> ExactClass:
        """Where prompts have kernels of their own, and a pass has room for several chunks."""
        wide = N_JOINED * self._chunk <= self._settings.context.n_batch
        own = self._target.kernels is not None and self._chunk >= PROMPT_ROWS
        return replace(found, joined=own and wide and joins(self._target, self._chunk))

    def _of_width(self, walker: Walker, progress: Progress) -> Chosen:
        """The width that costs least of those that agree with themselves."""
        pin = self._settings.exact_class
        possible = [w for w in _WIDTHS if w <= self._n_widths and self._may_pad(w)]
        if pin is not None:
            possible = [int(pin)] if self._may_pad(int(pin)) else []
        progress(0.0, "what exact passes cost")
        price = self._prices(walker.passes)
        for width in sorted(possible, key=lambda w: self._cost(price, w)):
            found = probe_width(walker, width)
            if found is not None:
                cost = self._cost(price, width)
                return Chosen(found, cost, 100 * cost <= self._settings.exact_cost_pct)
        raise _unknown(
            str(pin), possible or [1]
        )  # single rows agree wherever no width is asked for

    def _may_pad(self, width: int) -> bool:
        """A cache that cannot cut a few tokens off at little cost cannot have padding each pass."""
        cheap = self._target.rollback in (Rollback.PARTIAL, Rollback.BOUNDED)
        return 1 <= width <= self._n_widths and (cheap or width == 1)

    @property
    def _n_widths(self) -> int:
        wanted = max(self._settings.widest + 1, _MIN_WIDTHS)
        return min(wanted, self._settings.context.n_batch, self._target.max_rollback + 1)

    # -- what a width costs ---------------------------------------------------

    def _cost(self, price: Price, width: int) -> float:
        """Who asks for exact text wants it fast where drafts are as good as expected; who only gets
        it must not be slowed down by padding, with drafts or without."""
        with_drafts = 1.0 - self._speed(price, width) / self._speed(price, None)
        plain = 1.0 - price(1) / price(width)
        expected = with_drafts if self._settings.mode == "exact" else max(plain, with_drafts)
        return max(0.0, expected)

    def _speed(self, price: Price, width: int | None) -> float:
        """Tokens a second at the best window, in passes of this width or of any."""
        names = self._settings.draft
        share = _FREE_SHARE if names else 0.0
        if any(name not in FREE_PROPOSERS for name in names):
            share = _MODEL_SHARE
        plain_s, best = price(width or 1), 0.0
        for rows in range(1, 1 + (width or max(_WIDTHS))):
            tokens = 1.0 - share + share * sum(_RATE**i for i in range(rows))
            best = max(best, tokens / (share * price(width or rows) + (1.0 - share) * plain_s))
        return best

    def _prices(self, passes: Passes) -> Price:
        """Seconds of a pass by its rows, timed in turns, so that a slow moment hits all of them; of
        several times the shortest counts: other work only makes them longer."""
        started, shortest = perf_counter(), dict.fromkeys(_WIDTHS, float("inf"))
        tokens = probe_tokens(_N_CONTEXT + max(_WIDTHS), passes.n_vocab)
        Walker(passes, self._chunk).read(tokens[:_N_CONTEXT])
        for turn in range(_N_TURNS):
            for width in (w for w in _WIDTHS if w <= self._n_widths):
                began = perf_counter()
                if turn > 1 and began - started > _PRICES_S:
                    break
                rest = tokens[_N_CONTEXT : _N_CONTEXT + width]
                passes.decode([Span(0, _N_CONTEXT, rest, width)])
                if turn or not passes.steady:  # a new shape takes longer once
                    shortest[width] = min(shortest[width], perf_counter() - began)
                passes.truncate(0, _N_CONTEXT)
        passes.clear(0)
        known = {w: s for w, s in shortest.items() if s < float("inf")}

        def price(rows: int) -> float:
            """As the next width that was timed; of more rows than that, as many passes."""
            at = next((w for w in known if w >= rows), max(known))
            return known[at] * max(1.0, rows / at)

        return price

    # -- what is kept ---------------------------------------------------------

    @cached_property
    def _key(self) -> str:
        """All that kernels depend on, and who drafts as far as that decides what is chosen."""
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
            settings.mode,
            settings.exact_class,
        )

    def _kept(self) -> Chosen | None:
        """What an earlier start chose; a bad record tells nothing."""
        return None if self._settings.measure_again else store.read("exact", self._key, self._read)

    def _read(self, record: dict[str, Any]) -> Chosen | None:
        if record["format"] != _FORMAT:  # of another version: probed again, and nobody's fault
            return None
        cost = float(record["cost"])
        slack = _WAVERING if record["exact"] else 1.0
        cheap = 100 * cost <= slack * self._settings.exact_cost_pct
        return Chosen(ExactClass.from_dict(record["class"]), cost, cheap)

    def _keep(self, made: Chosen) -> Chosen:
        """For the next start, and for whoever asks what it costs here."""
        record = {"format": _FORMAT, "cost": made.cost, "exact": made.cheap}
        store.save("exact", self._key, {**record, "class": made.found.to_dict()})
        told = {"class": made.found.name, "cost_percent": made.cost_percent, "exact": made.cheap}
        store.save("exactness", store.file_identity(self._settings.target), told)
        return made

    # -- in the middle of answers ---------------------------------------------

    def scout(self, found: ExactClass, placed: Sequence[tuple[int, int]]) -> ExactClass:
        """Try the class at the ends of longer texts, in their own caches, and keep what is found.

        A cache that cannot be cut anywhere was probed at long texts from the start.
        """
        if self._target.rollback is not Rollback.PARTIAL:
            return found
        longer = reaches(self._target, found, placed, _SCOUT_S)
        log.info("exact class %s tried after %s tokens", found.name, max(n for _, n in placed))
        kept = self._kept()
        if longer != found and kept is not None:
            self._keep(replace(kept, found=longer))
        return longer

    def unchanged(self, found: ExactClass, seq_id: int) -> bool:
        """Whether the target still gives what it gave when the class was probed."""
        return still_holds(self._target, found, self._chunk, seq_id)


def _is_pinned(found: ExactClass, pin: str) -> bool:
    """Whether a class has this name, or this width."""
    return pin == found.name or (pin.isdigit() and int(pin) in found.rows_for(1))


def _unknown(pin: str, known: Sequence[int | str]) -> BadRequest:
    names = ", ".join(map(str, known))
    return BadRequest(f"there is no exact class {pin!r} here; there are: {names}")

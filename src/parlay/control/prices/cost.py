"""What a round costs: seconds of a target pass by its shape, and of the drafter, measured.

Knows no model and no controller. Kernels switch with the batch, so this is a table with steps, not
a line; on a GPU a pass whose shape differs from the last one costs more, so it holds both prices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from parlay.control.prices.both import Both
from parlay.control.prices.undoing import Undoing
from parlay.errors import BadRequest

VERSION = 1
_KEY = "parlay_costs"
MAX_ROWS = 512
# Contexts are told apart by powers of two; below this many tokens attention costs next to nothing.
_SHORTEST = 8
# One observation moves its own cell by so much, and every price (the machine's pace) by so much.
_CELL_RATE, _PACE_RATE = 0.05, 0.10
# What leaving a shape costs is the host's work, and differs from one moment to the next by half. A
# start measures all of it in one moment: that counts for one observation, and later ones for this.
_CHANGE_RATE = 0.1
# A pass wider than what was measured has an average of so many passes as its price.
_N_YOUNG = 4
# What wider passes were seen to take beyond what was measured is forgotten while nobody bets, by
# this part after so many plain passes: it may have been a busy moment, and no pass would tell.
_FORGOTTEN, _N_PLAIN = 0.12, 64
# What one observation may claim at most: other jobs on the machine make passes of any length.
_LARGEST_SURPRISE = 1.5
# A drafter whose shape must stay steady catches up token by token as far as this.
_SINGLE_STEPS = 4
# A block drafter lets at most so many tokens of a sequence wait.
_WAITING = 64
# Of a token that is being drafted ahead when the target's pass ends, so much is left.
_UNDER_WAY = 0.5


class Curve:
    """Seconds of a round by the rows of its pass, drafting apart; index 0 is never used."""

    __slots__ = (
        "_measured",
        "_n_plain",
        "changed",
        "known",
        "n_changes",
        "n_settled",
        "prices_change",
        "settling_s",
        "steady",
        "young",
    )

    def __init__(
        self, steady: Mapping[int, float], changed: Mapping[int, float], settling_s: float = 0.0
    ) -> None:
        self.prices_change = bool(changed)  # whether a change of shape costs anything here
        self.steady = _fill(steady)  # the same shape as the last pass
        # One list where there is one price: what is learned of one is learned of both.
        self.changed = _fill(changed) if changed else self.steady
        self.known = {*steady, *changed}  # measured or observed, not interpolated
        # What the second pass of a new shape takes more: a GPU records then what it will repeat.
        self.settling_s = settling_s
        self.young: dict[int, int] = {}  # rows wider than what was measured: how often seen
        self.n_changes = self.n_settled = 1  # moments in which either was seen: a start is one
        self._measured = list(self.steady)
        self._n_plain = 0  # passes without a draft since something was forgotten

    def of(self, rows: int, changed: bool) -> float:
        """Seconds of one pass."""
        return (self.changed if changed else self.steady)[rows]

    @property
    def last_known(self) -> int:
        """The most rows that were measured or observed."""
        return max(self.known, default=MAX_ROWS)

    def learn(self, rows: int, changed: bool, seconds: float) -> None:
        """A pass wider than any that was measured: an average of its first ones is its price.

        Prices up to it lie between. Where changes cost, the very first one also loads its kernels.
        """
        n = self.young.get(rows, -1 if self.prices_change else 0) + 1
        self.young[rows] = n
        if n == 0:
            return
        if n == _N_YOUNG:
            del self.young[rows]
        last = max(b for b in self.known if b < rows)
        change_s = self.changed[last] - self.steady[last]
        # What taking a draft back took may have been rated too high: no pass is that fast.
        steady_s = max(seconds - change_s if changed else seconds, self.steady[1])
        if rows in self.known:
            steady_s = self.steady[rows] + (steady_s - self.steady[rows]) / n
        self._extend(self.steady, last, rows, steady_s)
        self._extend(self._measured, last, rows, steady_s)
        if self.prices_change:
            self._extend(self.changed, last, rows, steady_s + change_s)
        self.known.add(rows)

    def calm_down(self, rows: int) -> None:
        """A pass without a draft, of so many rows."""
        self._n_plain += 1
        if self._n_plain < _N_PLAIN:
            return
        self._n_plain, measured = 0, self._measured
        pace = self.steady[rows] / measured[rows]
        beyond = [
            max(0.0, _FORGOTTEN * (seconds - pace * once))
            for seconds, once in zip(self.steady, measured, strict=True)
        ]
        if any(beyond):
            self.steady[:] = [s - more for s, more in zip(self.steady, beyond, strict=True)]
            if self.prices_change:
                self.changed[:] = [s - more for s, more in zip(self.changed, beyond, strict=True)]

    def learn_change(self, rows: int, seconds: float) -> None:
        """A pass of another shape than the last one took so long: what it took beyond a steady one
        tells of all shapes what a change costs."""
        believed = self.changed[rows] - self.steady[rows]
        if not self.prices_change or believed <= 0.0:
            return
        self.n_changes += 1
        seen = min(max(0.0, seconds - self.steady[rows]), _LARGEST_SURPRISE * believed)
        self.scale_changes(1.0 + _moment_rate(self.n_changes) * (seen / believed - 1.0))

    def scale_changes(self, factor: float) -> None:
        """What changes cost, times so much."""
        self.changed = [
            steady + factor * (changed - steady) if changed > steady else changed
            for steady, changed in zip(self.steady, self.changed, strict=True)
        ]

    def learn_settling(self, rows: int, seconds: float, *, alone: bool) -> None:
        """The second pass of a new shape took so long. `alone`: of one sequence; a pass of several
        may have another shape though it has as many rows, and one of them tells little."""
        self.n_settled += 1
        most = _LARGEST_SURPRISE * max(self.settling_s, self.steady[rows])
        seen = min(max(0.0, seconds - self.steady[rows]), most)
        rate = _moment_rate(self.n_settled) if alone else _CHANGE_RATE
        self.settling_s += rate * (seen - self.settling_s)

    def _extend(self, cells: list[float], last: int, rows: int, seconds: float) -> None:
        step = (seconds - cells[last]) / (rows - last)
        cells[last + 1 : rows + 1] = [cells[last] + step * i for i in range(1, rows - last + 1)]
        if rows >= self.last_known:
            slope = max(0.0, seconds - cells[1]) / (rows - 1)
            cells[rows + 1 :] = [seconds + slope * i for i in range(1, MAX_ROWS - rows + 1)]

    def copy(self) -> Curve:
        made = Curve({1: 0.0}, {})
        made.prices_change = self.prices_change
        made.steady = list(self.steady)
        made.changed = list(self.changed) if self.prices_change else made.steady
        made.known = set(self.known)
        made._measured = list(self._measured)
        made.settling_s = self.settling_s
        made.n_changes, made.n_settled = self.n_changes, self.n_settled
        return made


def _moment_rate(n: int) -> float:
    """What the latest of so many moments counts for."""
    return max(_CHANGE_RATE, 1.0 / n)


def _fill(points: Mapping[int, float]) -> list[float]:
    """A price for every number of rows: lines between the measured ones, which keeps their order.

    Beyond the last point the line from the first to the last goes on.
    """
    rows = sorted(points)
    filled = [points[rows[0]]] * (rows[0] + 1)
    for low, high in pairwise(rows):
        step = (points[high] - points[low]) / (high - low)
        filled += [points[low] + step * i for i in range(1, high - low + 1)]
    first, last = rows[0], rows[-1]
    slope = (points[last] - points[first]) / (last - first) if last > first else points[first]
    filled += [filled[-1] + max(0.0, slope) * i for i in range(1, MAX_ROWS - last + 1)]
    return filled


def _between(low: tuple[int, Curve], high: tuple[int, Curve], n: int) -> Curve:
    """Prices for `n` sequences between two numbers of them, at as many rows for each."""
    (few, cheap), (many, dear) = low, high
    share = (n - few) / (many - few)
    each = {1.0, *(b / few for b in cheap.known), *(b / many for b in dear.known)}
    points = {round(n * r): r for r in sorted(each) if r >= 1 and n * r <= MAX_ROWS}

    def mixed(changed: bool) -> dict[int, float]:
        return {
            rows: (1 - share) * cheap.of(min(round(few * r), MAX_ROWS), changed)
            + share * dear.of(min(round(many * r), MAX_ROWS), changed)
            for rows, r in points.items()
        }

    prices_change = cheap.prices_change or dear.prices_change
    settling_s = (1 - share) * cheap.settling_s + share * dear.settling_s
    made = Curve(mixed(False), mixed(True) if prices_change else {}, settling_s)
    made.known.clear()
    return made


def _dear(n_sequences: int, plain_s: float, row_s: float) -> Curve:
    """Prices at which nothing is bet: each row beyond a plain pass as much as a pass."""
    widest = min(2 * n_sequences, MAX_ROWS)
    made = Curve({n_sequences: plain_s, widest: plain_s + (widest - n_sequences) * row_s}, {})
    made.known.clear()
    return made


@dataclass(slots=True)
class DrafterCost:
    """What a draft model costs; `pace` follows what its drafts were seen to take."""

    curve: Curve
    single_steps: bool  # its shape is kept steady: it catches up in passes of one token
    pace: float = 1.0
    # Of a drafter that drafts whole blocks: a block by its rows. The curve is of catching up then.
    block: Curve | None = None
    both: Both | None = None  # at work while the target is; None: nobody measured that
    longest: int | None = None  # tokens of its longest draft; None: as many as wanted

    def step_s(self, n_sequences: int = 1) -> float:
        """One more token for each of so many sequences."""
        if self.block is not None:
            few, widest = 2, max(3, 1 + (self.longest or 7))
            rows = [min(n * n_sequences, MAX_ROWS) for n in (few, widest)]
            more = self.block.steady[rows[1]] - self.block.steady[rows[0]]
            return self.pace * max(more / (widest - few), 1e-9)
        return self.pace * self.curve.steady[n_sequences]

    def catch_up_s(self, n_missing: int, n_sequences: int = 1) -> float:
        """Until the first drafted token, when so many tokens are not in its cache yet."""
        n, curve = min(n_missing, MAX_ROWS), self.curve
        if self.block is not None:
            # Most of a long text was read while the target read it.
            behind = curve.steady[max(n_sequences, min(n, _WAITING * n_sequences, MAX_ROWS))]
            return self.pace * (behind + self.block.steady[min(2 * n_sequences, MAX_ROWS)])
        if not self.single_steps:
            return self.pace * curve.steady[max(n, n_sequences)]
        n_steps = -(-n // n_sequences)
        if n_steps <= _SINGLE_STEPS:
            return self.pace * n_steps * curve.steady[n_sequences]
        there, back = curve.changed[n - n_sequences], curve.changed[n_sequences]
        return self.pace * (there + back + curve.settling_s)

    def under_way_s(self, n_sequences: int = 1) -> float:
        """Until a token drafted ahead for nothing is done: it is waited for."""
        return _UNDER_WAY * self.step_s(n_sequences)

    def draft_s(self, n_drafted: int, n_missing: int = 1, n_sequences: int = 1) -> float:
        """A whole draft."""
        if n_drafted == 0:
            return 0.0
        return self.catch_up_s(n_missing, n_sequences) + (n_drafted - 1) * self.step_s(n_sequences)

    def observe(self, expected_s: float, seconds: float) -> None:
        """A draft that should have taken `expected_s` took `seconds`."""
        self.pace *= 1.0 + _PACE_RATE * (_surprise(seconds, expected_s) - 1.0)


def _surprise(seconds: float, expected_s: float) -> float:
    """How much longer than expected, as far as one observation is believed."""
    ratio = seconds / expected_s if expected_s > 0 else 1.0
    return min(_LARGEST_SURPRISE, max(1.0 / _LARGEST_SURPRISE, ratio))


class CostTable:
    """The prices of one target and its drafter on one machine."""

    def __init__(
        self,
        curves: Mapping[tuple[int, int], Curve],
        drafter: DrafterCost | None = None,
        *,
        prompt: Curve | None = None,
        undoing: Undoing | None = None,
        name: str = "",
        origin: str = "",
        stable: bool = True,
    ) -> None:
        """`curves` by context and number of sequences; `prompt`: passes that read one;
        `undoing`: taking a rejected draft back, which is in no curve."""
        self._curves = {(_bucket(context), n): curve for (context, n), curve in curves.items()}
        self._numbers = sorted({n for _, n in curves})  # of sequences, measured
        self.drafter = drafter  # the first one's, and that of any that has no price of its own
        self.drafters: dict[str, DrafterCost] = {}  # those of others, by proposer
        self.prompt = prompt
        self.undoing = undoing or Undoing()
        self.name = name
        self.origin = origin
        self.stable = stable  # False: measured on a busy machine, not to be relied upon
        self.pace = 1.0  # how much slower than the table the machine runs now

    def curve(self, n_context: int, n_sequences: int) -> Curve:
        """The prices for a context and a number of sequences; made up from others at first."""
        key = (_bucket(n_context), n_sequences)
        found = self._curves.get(key)
        if found is None:
            found = self._curves[key] = self._made_up(*key)
        return found

    def cost_of(self, proposer: str) -> DrafterCost | None:
        """What a draft model costs, by its name."""
        return self.drafters.get(proposer, self.drafter)

    def plain_s(self, n_context: int, n_sequences: int) -> float:
        """Seconds of a pass without drafts, as the machine runs now."""
        return self.pace * self.curve(n_context, n_sequences).steady[n_sequences]

    def observe(
        self,
        rows: int,
        n_context: int,
        n_sequences: int,
        changed: bool,
        seconds: float,
        both: Both | None = None,
    ) -> None:
        """A pass without prompt rows took `seconds`, all but drafting included; `both`: prices of
        the drafter that was at work meanwhile."""
        curve = self.curve(n_context, n_sequences)
        slowdown = 1.0 if both is None else both.slowdown[rows]
        if rows in curve.young or rows > curve.last_known:
            curve.learn(rows, changed, seconds / self.pace / slowdown)
            return
        if changed and both is None and n_sequences == 1:
            curve.learn_change(rows, seconds / self.pace)
        cells = curve.changed if changed else curve.steady
        surprise = _surprise(seconds, cells[rows] * self.pace * slowdown) - 1.0
        if both is None:
            cells[rows] *= 1.0 + _CELL_RATE * surprise
        else:
            both.observe_pass(rows, surprise)
        self.pace *= 1.0 + _PACE_RATE * surprise
        curve.known.add(rows)
        if rows == n_sequences:
            curve.calm_down(rows)

    def observe_settling(self, rows: int, n_context: int, n_sequences: int, seconds: float) -> None:
        """The second pass of a new shape took `seconds`."""
        curve = self.curve(n_context, n_sequences)
        curve.learn_settling(rows, seconds / self.pace, alone=n_sequences == 1)

    def with_drafter(self, share: float) -> CostTable:
        """The same, but the drafter's every token costs this share of a plain pass."""
        made = self.copy()
        if made.drafter is None:
            raise BadRequest(f"the cost table {self.name} has no drafter")
        plain = next(iter(made._curves.values())).steady[1]
        made.drafter.pace *= share * plain / made.drafter.step_s()
        made.name = f"{self.name} c={share:g}"
        return made

    def with_changes(self, factor: float) -> CostTable:
        """The same, but changes of shape and settling cost so many times as much."""
        made = self.copy()
        for curve in made._curves.values():
            curve.scale_changes(factor)
            curve.settling_s *= factor
        return made

    def copy(self) -> CostTable:
        """Another one that learns on its own."""
        return CostTable.from_dict(self.to_dict())

    @property
    def measured(self) -> dict[tuple[int, int], Curve]:
        """Every curve by the shortest context of its bucket and its number of sequences."""
        return {(1 << bucket, n): curve for (bucket, n), curve in self._curves.items()}

    def _made_up(self, bucket: int, n_sequences: int) -> Curve:
        """Prices nobody has measured: of another context, or between two numbers of sequences.

        Numbers more than twice as large as the next smaller one are too far apart to say anything
        of those between them: there, and beyond the largest, each row more costs a pass of its own.
        """
        known = self._numbers
        if n_sequences in known:
            return self._of_nearest(bucket, n_sequences).copy()
        fewer = max((n for n in known if n < n_sequences), default=known[0])
        more = min((n for n in known if n > n_sequences), default=known[-1])
        low, high = self._of_nearest(bucket, fewer), self._of_nearest(bucket, more)
        if fewer < n_sequences < more <= 2 * fewer:
            return _between((fewer, low), (more, high), n_sequences)
        plain_s = low.steady[n_sequences]
        if fewer < n_sequences < more:
            plain_s = _between((fewer, low), (more, high), n_sequences).steady[n_sequences]
        return _dear(n_sequences, plain_s, self._of_nearest(bucket, known[0]).steady[known[0]])

    def _of_nearest(self, bucket: int, n_sequences: int) -> Curve:
        """The curve of a number of sequences in the nearest context it is known in."""
        buckets = [b for b, n in self._curves if n == n_sequences]
        return self._curves[min(buckets, key=lambda b: abs(b - bucket)), n_sequences]

    # -- files ----------------------------------------------------------------

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> CostTable:
        """From the JSON form; raises BadRequest where it is none."""
        try:
            if record[_KEY] != VERSION:
                raise BadRequest(f"cost table version {record[_KEY]}; this reads {VERSION}")
            curves = {(c["context"], c["sequences"]): _read_curve(c) for c in record["target"]}
            if not curves:
                raise ValueError("no target")
            drafter = record.get("drafter")
            cost = _read_drafter(drafter) if drafter else None
            prompt, undoing = record.get("prompt"), record.get("undoing")
            made = cls(
                curves,
                cost,
                prompt=_read_curve(prompt) if prompt else None,
                undoing=_read_undoing(undoing) if undoing else None,
                name=str(record.get("name", "")),
                origin=str(record.get("origin", "")),
                stable=bool(record.get("stable", True)),
            )
            others = record.get("drafters", {})
            made.drafters = {name: _read_drafter(each) for name, each in others.items()}
            return made
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            where = "docs/explanation/controller.md"
            raise BadRequest(f"not a cost table ({reason}); see {where}") from None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the prices as they are now, the interpolated ones left out."""
        target = [
            {"context": 1 << bucket, "sequences": n, **_write_curve(curve, self.pace)}
            for (bucket, n), curve in sorted(self._curves.items())
            if curve.known
        ]
        drafter, prompt = self.drafter, self.prompt
        others = {name: _write_drafter(each, self.pace) for name, each in self.drafters.items()}
        return {
            _KEY: VERSION,
            "name": self.name,
            "origin": self.origin,
            "stable": self.stable,
            "target": target,
            **({"prompt": _write_curve(prompt, self.pace)} if prompt else {}),
            **(
                {"undoing": _write_undoing(self.undoing, self.pace)} if self.undoing.seconds else {}
            ),
            "drafter": drafter and _write_drafter(drafter, self.pace),
            **({"drafters": others} if others else {}),
        }


def _bucket(n_context: int) -> int:
    return max(_SHORTEST, n_context.bit_length() - 1)


def _read_drafter(record: Mapping[str, Any]) -> DrafterCost:
    block, both = record.get("block"), record.get("both")
    made = DrafterCost(_read_curve(record), record["single_steps"])
    made.both = Both.from_dict(both) if both else None
    made.block = _read_curve(block) if block else None
    made.longest = int(record["longest"]) if "longest" in record else None
    return made


def _write_drafter(drafter: DrafterCost, machine: float) -> dict[str, Any]:
    """`machine`: the pace of the whole table, of which the drafter's is a part."""
    pace = machine * drafter.pace
    block = {"block": _write_curve(drafter.block, pace)} if drafter.block else {}
    both = {"both": drafter.both.to_dict(machine)} if drafter.both else {}
    longest = {} if drafter.longest is None else {"longest": drafter.longest}
    steps = {"single_steps": drafter.single_steps, **longest}
    return {**_write_curve(drafter.curve, pace), **steps, **block, **both}


def _read_undoing(record: Mapping[str, Any]) -> Undoing:
    free, seconds = int(record["free_tokens"]), float(record["ms"]) / 1e3
    if free < 0 or not 0 <= seconds < float("inf"):
        raise ValueError("tokens and milliseconds must be positive")
    return Undoing(free, seconds)


def _write_undoing(undoing: Undoing, pace: float) -> dict[str, Any]:
    return {"free_tokens": undoing.free, "ms": round(1e3 * pace * undoing.seconds, 6)}


def _read_curve(record: Mapping[str, Any]) -> Curve:
    steady, changed = (_read_points(record.get(key, {})) for key in ("steady_ms", "changed_ms"))
    settling_s = float(record.get("settling_ms", 0.0)) / 1e3
    if not 0.0 <= settling_s < float("inf"):
        raise ValueError("milliseconds must be positive")
    return Curve(steady, changed, settling_s)


def _read_points(record: Mapping[str, float]) -> dict[int, float]:
    points = {int(rows): float(ms) / 1e3 for rows, ms in record.items()}
    if any(rows < 1 or not 0 < seconds < float("inf") for rows, seconds in points.items()):
        raise ValueError("rows and milliseconds must be positive")
    return points


def _write_curve(curve: Curve, pace: float) -> dict[str, Any]:
    rows = sorted(curve.known)
    written: dict[str, Any] = {
        "steady_ms": {str(b): round(1e3 * pace * curve.steady[b], 6) for b in rows}
    }
    if curve.prices_change:
        written["changed_ms"] = {str(b): round(1e3 * pace * curve.changed[b], 6) for b in rows}
    if curve.settling_s:
        written["settling_ms"] = round(1e3 * pace * curve.settling_s, 6)
    return written


def load_costs(path: Path) -> CostTable:
    """A cost table from a JSON file."""
    try:
        return CostTable.from_dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise BadRequest(f"cannot read {path}: {error}; name a cost table") from None


@cache
def shipped_tables() -> list[CostTable]:
    """Those that come with the package."""
    return [load_costs(path) for path in shipped_costs()]


def shipped_costs() -> list[Path]:
    """The files that come with the package."""
    folder = Path(str(resources.files("parlay.control"))) / "data" / "costs"
    return sorted(folder.glob("*.json"))

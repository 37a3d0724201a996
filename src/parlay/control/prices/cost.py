"""What a round costs: seconds of a target pass by its shape, and of the drafters, measured.

A curve for every context and number of sequences, and its form in a file. Knows no model and no
controller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from parlay.control.prices.curve import Curve, between, dear, surprise
from parlay.control.prices.drafter_cost import DrafterCost
from parlay.control.prices.undoing import Undoing
from parlay.errors import BadRequest

VERSION = 1
_KEY = "parlay_costs"
# Contexts are told apart by powers of two; below this many tokens attention costs next to nothing.
_SHORTEST = 8
# One observation moves its own cell by so much, and every price (the machine's pace) by so much.
_CELL_RATE, _PACE_RATE = 0.05, 0.10


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
        n_plain: int | None = None,
    ) -> None:
        """A pass that read no prompt took `seconds`; `n_plain`: rows of a plain one, if it is
        padded to more than one for each sequence."""
        curve = self.curve(n_context, n_sequences)
        if rows in curve.young or rows > curve.last_known:
            curve.learn(rows, changed, seconds / self.pace)
            return
        if changed and n_sequences == 1:
            curve.learn_change(rows, seconds / self.pace)
        cells = curve.changed if changed else curve.steady
        beyond = surprise(seconds, cells[rows] * self.pace) - 1.0
        cells[rows] *= 1.0 + _CELL_RATE * beyond
        self.pace *= 1.0 + _PACE_RATE * beyond
        curve.known.add(rows)
        if rows == (n_plain or n_sequences):
            curve.calm_down(rows)

    def observe_settling(self, rows: int, n_context: int, n_sequences: int, seconds: float) -> None:
        """The second pass of a new shape took `seconds`."""
        curve = self.curve(n_context, n_sequences)
        curve.learn_settling(rows, seconds / self.pace, alone=n_sequences == 1)

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
            return between((fewer, low), (more, high), n_sequences)
        plain_s = low.steady[n_sequences]
        if fewer < n_sequences < more:
            plain_s = between((fewer, low), (more, high), n_sequences).steady[n_sequences]
        return dear(n_sequences, plain_s, self._of_nearest(bucket, known[0]).steady[known[0]])

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
    block = record.get("block")
    made = DrafterCost(_read_curve(record), record["single_steps"])
    made.block = _read_curve(block) if block else None
    made.longest = int(record["longest"]) if "longest" in record else None
    return made


def _write_drafter(drafter: DrafterCost, machine: float) -> dict[str, Any]:
    """`machine`: the pace of the whole table, of which the drafter's is a part."""
    pace = machine * drafter.pace
    block = {"block": _write_curve(drafter.block, pace)} if drafter.block else {}
    longest = {} if drafter.longest is None else {"longest": drafter.longest}
    steps = {"single_steps": drafter.single_steps, **longest}
    return {**_write_curve(drafter.curve, pace), **steps, **block}


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
    folder = Path(str(resources.files("parlay.control"))) / "data" / "costs"
    return [load_costs(path) for path in sorted(folder.glob("*.json"))]

"""What drafting ahead can bring, by recorded prices and texts: every round counted, none timed.

    python -m benchmarks.measurements.ahead_replay --right 0.99 --settling-ms 7
    python -m benchmarks.measurements.ahead_replay --prices gpu-27b-q5_0-settling --token-ms 3.6

Recorded answers with the close drafter, which is wrong less often with --right, at some of the same
places and as sure as before. Prices of both models at once are given; by default they are those of
a 14B at F16 beside SmolLM2 on an H200. Over plain decoding's time, without and with drafting ahead:
the fixed windows that are best in each case, by the draft model alone; a controller, without and
with copying; and the texts in which it, without, loses most against their best window. The first
--learn answers are not counted. With --most the model's drafts end there, whatever the window.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.control.controller import Controller, FixedWindow
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.profit import ProfitController
from parlay.replay.hindsight import plain_seconds
from parlay.replay.recording import RecordedOffer, Recording, mixed_workload
from parlay.replay.replay import Replay

DRAFTER = "model"
WINDOWS = (2, 3, 5, 8, 12, 16)
LONGEST = max(WINDOWS)
N_LEAST = 3  # texts that are told apart


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way to decode, over plain decoding; or one text, over its best window."""

    way: str
    without: float
    ahead: float

    def __str__(self) -> str:
        ratio = self.ahead / self.without
        return f"{self.way:40} {self.without:.2f}, ahead {self.ahead:.2f}: {ratio:.3f}"


def closer(recordings: Sequence[Recording], right: float) -> list[Recording]:
    """The same answers with a drafter that is wrong less often."""
    places = [offer.n_accepted > 0 for r in recordings for offer in r.offers[DRAFTER]]
    kept = (1.0 - right) * len(places) / max(1, places.count(False))
    rng, found = random.Random(0), []
    for recording in recordings:
        offers = recording.offers[DRAFTER]
        held = [offer.n_accepted > 0 or rng.random() >= kept for offer in offers]
        sure = [offer.confidence[0] for offer in offers]
        made = tuple(_offer(held[at:], sure[at:]) for at in range(len(offers)))
        found.append(replace(recording, offers={**recording.offers, DRAFTER: made}))
    return found


def shortened(recordings: Sequence[Recording], most: int) -> list[Recording]:
    """The same answers with a drafter that drafts so many tokens at most."""
    found = []
    for recording in recordings:
        offers = (
            RecordedOffer(min(offer.n_accepted, most), offer.confidence[:most])
            for offer in recording.offers[DRAFTER]
        )
        found.append(replace(recording, offers={**recording.offers, DRAFTER: tuple(offers)}))
    return found


def _offer(held: Sequence[bool], sure: Sequence[float]) -> RecordedOffer:
    """The draft that begins here; what it says beyond the answer's end is nobody's concern."""
    n = [*held[:LONGEST], False].index(False)
    return RecordedOffer(n, (*sure[:LONGEST], *[sure[-1]] * (LONGEST - len(sure))))


def priced(args: argparse.Namespace, *, ahead: bool) -> CostTable:
    record = next(table for table in shipped_tables() if table.name == args.prices).to_dict()
    if args.settling_ms is not None:
        for curve in record["target"]:
            curve["settling_ms"] = args.settling_ms
    costs = CostTable.from_dict(record)
    if costs.drafter is None:
        raise SystemExit(f"the table {args.prices} has no drafter")
    costs.drafter.both = Both({2: args.slowdown}, {2: args.token_ms / 1e3}) if ahead else None
    return costs


def outcomes(recordings: Sequence[Recording], args: argparse.Namespace) -> list[Outcome]:
    """Fixed windows and the controller, each without and with drafting ahead."""
    tables = [priced(args, ahead=ahead) for ahead in (False, True)]
    plain_s = sum(plain_seconds(r, tables[0]) for r in recordings[args.learn :])

    def seconds(controller: Controller, costs: CostTable, *proposers: str) -> list[float]:
        made = Replay(recordings, proposers, reads_along=True).run(controller, costs)
        return [outcome.seconds for outcome in made[args.learn :]]

    fixed = {k: [seconds(FixedWindow(k), costs, DRAFTER) for costs in tables] for k in WINDOWS}
    best = [min((sum(fixed[k][at]), k) for k in WINDOWS) for at in range(2)]
    alone = [seconds(ProfitController(c.copy()), c, DRAFTER) for c in tables]
    chosen = [seconds(ProfitController(c.copy()), c, "suffix", DRAFTER) for c in tables]
    least = [_least(alone[at], [fixed[k][at] for k in WINDOWS]) for at in range(2)]
    return [
        *(Outcome(f"window {k}", *_speeds(plain_s, taken)) for k, taken in fixed.items()),
        Outcome(f"best windows ({best[0][1]}, {best[1][1]})", *(plain_s / s for s, _ in best)),
        Outcome("controller, model alone", *_speeds(plain_s, alone)),
        Outcome("controller", *_speeds(plain_s, chosen)),
        *(
            Outcome(f"text {i + 1} from the last, of its best window", *each)
            for i, each in enumerate(zip(*least, strict=True))
        ),
    ]


def _speeds(plain_s: float, taken: Sequence[Sequence[float]]) -> list[float]:
    return [plain_s / sum(seconds) for seconds in taken]


def _least(taken: Sequence[float], windows: Sequence[Sequence[float]]) -> list[float]:
    """The texts that lose most against the window that is best for them, the model alone."""
    best = [min(each) for each in zip(*windows, strict=True)]
    return sorted(b / s for b, s in zip(best, taken, strict=True))[:N_LEAST]


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    recordings = mixed_workload()
    if args.right is not None:
        recordings = closer(recordings, args.right)
    if args.most is not None:
        recordings = shortened(recordings, args.most)
    found = outcomes(recordings, args)
    print(*found, sep="\n")
    keep(args.json, found)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--prices", default="gpu-14b-f16", help="a shipped table")
    parser.add_argument("--slowdown", type=float, default=1.03, help="of a pass beside a drafter")
    parser.add_argument("--token-ms", type=float, default=1.85, help="a token beside a pass")
    parser.add_argument("--settling-ms", type=float, help="absent: as in the table")
    parser.add_argument("--right", type=float, help="let so many tokens be right")
    parser.add_argument("--most", type=int, help="tokens of a draft by the model")
    parser.add_argument("--learn", type=int, default=12, help="answers that are not counted")
    return parsed(parser, argv)


if __name__ == "__main__":
    main()

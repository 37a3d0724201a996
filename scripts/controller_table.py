"""Writes the tables of docs/explanation/controller.md from the shipped recordings and cost tables.

Knows the replay only; deterministic. With --check it writes nothing and fails if they are stale.
Ten minutes of one core for all; several may run side by side, each with its tables (--only).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from parlay.control.prices.cost import shipped_tables
from parlay.control.profit import ProfitController
from parlay.replay.contest import Contest, MakeController, compare, controller_named
from parlay.replay.hindsight import oracle_seconds
from parlay.replay.informed import seconds_when_known
from parlay.replay.recording import mixed_workload

PAGE = Path(__file__).parent.parent / "docs/explanation/controller.md"
FREE = ("ngram", "suffix")
SETS = {
    "n-gram and suffix": FREE,
    "and a close drafter": (*FREE, "model"),
    "and a real drafter": (*FREE, "pruned"),
}
SHARES = (0.03, 0.1, 0.3)
RIVALS = ("fixed-3", "fixed-5", "fixed-8", "fixed-16", "plus-two-minus-one", "tiers", "ewma-profit")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    made = {name: TABLES[name]() for name in options.only}
    page = PAGE.read_text("utf-8")  # late: others may have been at their own tables meanwhile
    written = page
    for name, table in made.items():
        written = replaced(written, name, table)
    if options.check:
        return int(written != page)
    PAGE.write_text(written, "utf-8")
    return 0


def replaced(page: str, name: str, table: str) -> str:
    """The page with the text between a table's markers exchanged."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    found, n = re.subn(pattern, lambda _: f"{begin}\n{table}\n{end}", page, flags=re.DOTALL)
    assert n == 1, f"the page has no place for {name}"
    return found


@cache
def profit(label: str, fresh: bool = False) -> list[Contest]:
    return run(SETS[label], ProfitController, fresh=fresh)


def run(proposers: tuple[str, ...], make: MakeController, *, fresh: bool = False) -> list[Contest]:
    return [
        compare(mixed_workload(), costs, proposers, make, fresh=fresh) for costs in shipped_tables()
    ]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_costs() -> str:
    """One line per cost table: speed-ups over plain decoding, and the ratios."""
    rows = []
    for i, costs in enumerate(shipped_tables()):
        row = [costs.name]
        for label in SETS:
            c = profit(label)[i]
            plain = c.total("plain_s")
            row += [
                f"{plain / c.total('seconds'):.2f}x",
                f"{plain / c.best_s:.2f}x ({c.best_proposer} {c.best_window})",
                f"{c.mean_over('best_fixed_s'):.3f}",
            ]
        rows.append(row)
    header = ["costs"]
    for label in SETS:
        header += [label, "best fixed", "of best"]
    return markdown(header, rows)


def summary() -> str:
    """Kept and fresh state, against hindsight, the oracle and plain decoding."""
    rows = []
    for label in SETS:
        for fresh in (False, True):
            found = profit(label, fresh)
            slower = [r for c in found for r in c.recordings if r.plain_s / r.seconds < 0.98]
            least = min(
                r.plain_s / r.seconds for c in found for r in c.recordings if r.n_tokens >= 100
            )
            rows.append(
                [
                    label,
                    "from nothing" if fresh else "kept",
                    f"{mean([c.mean_over('best_fixed_s') for c in found]):.3f}",
                    f"{mean([c.mean_over('oracle_s') for c in found]):.3f}",
                    f"{least:.3f}",
                    f"{min(c.least_over('plain_s') for c in found):.3f}",
                    f"{len(slower)} of {sum(len(c.recordings) for c in found)}",
                ]
            )
    return markdown(
        [
            "proposers",
            "state",
            "of the best fixed window",
            "of the oracle",
            "least over plain, 100 tokens or more",
            "of any length",
            "below 0.98 of plain",
        ],
        rows,
    )


def by_drafter() -> str:
    """Drafters of other prices."""
    rows = []
    for share in SHARES:
        priced = [costs.with_drafter(share) for costs in shipped_tables()]
        for label, proposers in list(SETS.items())[1:]:
            found = [
                compare(mixed_workload(), costs, proposers, ProfitController) for costs in priced
            ]
            rows.append(
                [
                    f"{share:g}",
                    label,
                    f"{mean([c.total('plain_s') / c.total('seconds') for c in found]):.2f}x",
                    f"{mean([c.total('plain_s') / c.best_s for c in found]):.2f}x",
                    f"{mean([c.mean_over('best_fixed_s') for c in found]):.3f}",
                ]
            )
    return markdown(
        ["drafter's token, in plain passes", "proposers", "speed-up", "best fixed", "of best"], rows
    )


def rivals() -> str:
    """Every rule with each proposer it could have, over all cost tables."""
    label = "and a real drafter"
    rows = [
        rival_row("Parlay, all three", profit(label)),
        rival_row("the same, from nothing", profit(label, True)),
    ]
    for name in RIVALS:
        for proposer in ("suffix", "pruned"):
            found = run(SETS[label], controller_named(name, proposer))
            shown = "drafter" if proposer == "pruned" else proposer
            rows.append(rival_row(f"{name}, {shown}", found))
    return markdown(
        [
            "rule",
            "speed-up",
            "of the best fixed window",
            "worst answer over plain",
            "answers slower than plain",
        ],
        rows,
    )


def rival_row(name: str, found: Sequence[Contest]) -> list[str]:
    ratios = [r.plain_s / r.seconds for c in found for r in c.recordings]
    return [
        name,
        f"{mean([c.total('plain_s') / c.total('seconds') for c in found]):.2f}x",
        f"{mean([c.mean_over('best_fixed_s') for c in found]):.3f}",
        f"{min(ratios):.2f}",
        f"{100 * sum(ratio < 0.995 for ratio in ratios) / len(ratios):.0f} %",
    ]


def oracle() -> str:
    """What the controller, and one that knows the text's rates already, make of the oracle."""
    rows = []
    for i, label in enumerate(SETS):
        found = profit(label)
        best = [r.oracle_s / r.best_fixed_s for c in found for r in c.recordings]
        reached = [r.oracle_s / r.seconds for c in found for r in c.recordings]
        known = [
            oracle_seconds(r, costs, SETS[label]) / seconds_when_known(r, costs, SETS[label])
            for costs in shipped_tables()
            for r in mixed_workload()
        ]
        rows.append([label, *(f"{mean(x):.3f}" for x in (best, reached, known))])
        print(f"oracle {i + 1} of {len(SETS)}", file=sys.stderr)
    return markdown(
        [
            "proposers",
            "best fixed window of each recording",
            "controller",
            "controller that has read the text before",
        ],
        rows,
    )


TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "costs": by_costs,
    "drafters": by_drafter,
    "rivals": rivals,
    "oracle": oracle,
}


if __name__ == "__main__":
    sys.exit(main())

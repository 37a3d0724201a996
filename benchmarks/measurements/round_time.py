"""A round's time outside the models: the loop over a scripted target that computes nothing.

    python -m benchmarks.measurements.round_time [--sequences 1 16] [--rounds 400] [--out FILE]

Every draft holds. Rows have `--vocabulary` logits, so that drawing from them is a part of what is
timed; proposer and target are not. The median of all rounds and of the quickest tenth, in us.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.control.choice import FixedWindow
from parlay.control.prices.cutting import Cutting
from parlay.decoding.draft import Draft
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.engine.drafts import Drafts
from parlay.engine.exact.shapes import SINGLE, Composition
from parlay.engine.loop import Loop
from parlay.engine.plan import Planner
from parlay.engine.request import Request
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answer
from parlay.engine.slots import Slots
from parlay.proposers.proposer import Ask, Proposer, Worth

SIZE = 1 << 16
_FAR = 50.0  # logits that a token is ahead of all others: it is drawn at any temperature


def following(token: int, n_vocab: int) -> int:
    return (7 * token + 3) % n_vocab


class Target:
    """Knows what follows each token, and how long it was asked for it."""

    context_size, can_shift, free_rollback, busy_s = SIZE, True, SIZE, 0.0
    sample: Sequence[int] = ()

    def __init__(self, n_vocab: int, steady: bool) -> None:
        self.n_vocab, self.steady, self.spent_s = n_vocab, steady, 0.0
        self._rows = np.random.default_rng(1).standard_normal((n_vocab, n_vocab), np.float32)
        for token in range(n_vocab):
            self._rows[token, following(token, n_vocab)] += _FAR
        self._lengths: dict[int, int] = {}
        self._found: list[NDArray[np.float32]] = []

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        started = perf_counter()
        for span in spans:
            self._lengths[span.seq_id] = span.start + len(span.tokens)
        found = [self._rows[np.array(span.tokens[span.read], np.intp)] for span in spans]
        self.spent_s += perf_counter() - started
        return found

    def start(self, spans: Sequence[Span]) -> None:
        self._found = self.decode(spans)

    def fetch(self, spans: Sequence[Span]) -> list[NDArray[np.float32]]:
        return self._found

    def settle(self) -> None:
        """Nothing runs on."""

    def length(self, seq_id: int) -> int:
        return self._lengths.get(seq_id, 0)

    def truncate(self, seq_id: int, length: int) -> None:
        self._lengths[seq_id] = length

    def reusable(self, seq_id: int, length: int) -> int:
        return min(length, self.length(seq_id))

    def mark(self, seq_id: int, *, lasting: bool = False) -> None:
        """It can be cut anywhere."""

    def save(self, seq_id: int) -> Any:
        raise NotImplementedError

    def restore(self, seq_id: int, saved: Any) -> None:
        raise NotImplementedError

    def clear(self, seq_id: int) -> None:
        self._lengths.pop(seq_id, None)

    def shift(self, seq_id: int, keep: int, discard: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Holds nothing."""


class Knowing(Proposer):
    """Drafts what comes."""

    name, free = "knowing", True

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab, self.spent_s = n_vocab, 0.0

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        started = perf_counter()
        found = [self._draft(ask) for ask in asks]
        self.spent_s += perf_counter() - started
        return found

    def _draft(self, ask: Ask) -> Draft:
        tokens = [ask.tokens[-1]]
        for _ in range(ask.window):
            tokens.append(following(tokens[-1], self._n_vocab))
        return Draft(tuple(tokens[1:]), self.name, (0.9,) * ask.window)


class _Letters:
    def push(self, token: int) -> str:
        return "a"

    def flush(self) -> str:
        return ""


def _nobody(_seq: Answer, _pieces: Sequence[Piece]) -> None:
    """Nobody listens."""


def rounds(
    n_sequences: int, window: int, temperature: float, n_rounds: int, n_vocab: int, steady: bool
) -> list[float]:
    """Seconds of each round outside target and proposer."""
    target, knowing = Target(n_vocab, steady), Knowing(n_vocab)
    slots = Slots(target, n_sequences)
    drafts = Drafts(FixedWindow(window), {"knowing": knowing}, SIZE, 16)
    planner = Planner(
        target,
        slots,
        Composition(SINGLE, SIZE),
        Cutting(),
        mode="faithful",
        chunk=128,
        n_batch=512,
    )
    loop = Loop(target, slots, drafts, planner, ends=frozenset())
    for i in range(n_sequences):
        sampling = Sampling(temperature=temperature, seed=i)
        request = Request(
            (i + 1, 2, 3), max_tokens=(n_rounds + 9) * (window + 1), sampling=sampling
        )
        loop.add(Answer(request, _Letters(), frozenset(), _nobody))
    return timed(loop.step, lambda: target.spent_s + knowing.spent_s, n_rounds, n_sequences)


def timed(
    step: Callable[[], None], elsewhere: Callable[[], float], n_rounds: int, n_sequences: int
) -> list[float]:
    for _ in range(4 + n_sequences):  # the prompts
        step()
    found = []
    for _ in range(n_rounds - n_sequences):
        spent, started = elsewhere(), perf_counter()
        step()
        found.append(perf_counter() - started - (elsewhere() - spent))
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--steady", action="store_true", help="as beside a GPU")
    parser.add_argument("--out", type=Path, help="JSON; else it is printed")
    args: argparse.Namespace = parser.parse_args()
    found = []
    for n in args.sequences:
        for window in args.windows:
            for temperature in args.temperatures:
                taken = sorted(
                    rounds(n, window, temperature, args.rounds, args.vocabulary, args.steady)
                )
                quick = taken[: max(1, len(taken) // 10)]
                record = {"sequences": n, "window": window, "temperature": temperature}
                times = {"us": 1e6 * median(taken), "quick_us": 1e6 * median(quick)}
                found.append(record | {name: round(us, 1) for name, us in times.items()})
                print(json.dumps(found[-1]), flush=True)
    keep(args.out, found)


if __name__ == "__main__":
    main()

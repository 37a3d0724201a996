"""What indexing a text costs suffix and n-gram lookup: a prompt at once, a turn, token by token.

python -m benchmarks.measurements.indexes --tokens 32000
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import textwrap
from collections.abc import Callable, Sequence
from time import perf_counter

from benchmarks.shared.arguments import parser_of
from parlay.hub.resolving import resolve_model
from parlay.llama.vocabulary import open_vocabulary
from parlay.proposers.lookup import Lookup
from parlay.proposers.proposer import Ask

_N_SINGLE = 500


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--model", default="default", help="whose tokens")
    args = parser.parse_args()
    text = _text(args.model, args.tokens)
    found = {kind.__name__: measure(kind, text) for kind in (Lookup,)}
    print(json.dumps({"tokens": len(text), "us": found}, indent=1))


def measure(make: type[Lookup], text: Sequence[int], times: int = 5) -> dict[str, float]:
    """Microseconds: per token of a prompt and of a next turn, and per round of one token."""
    runs = [_once(make(), text) for _ in range(times)]
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def _once(proposer: Lookup, text: Sequence[int]) -> dict[str, float]:
    half, most = len(text) // 2, len(text) - _N_SINGLE
    growing = list(text[:most])
    prompt = _us(lambda: proposer.meanwhile(Ask(0, text[:half], 0), ())) / half
    proposer.finish(0, text[:half])
    return {
        "prompt": prompt,
        "next turn": _us(lambda: _turn(proposer, growing, half)) / (most - half),
        "round": _us(lambda: _rounds(proposer, growing, text[most:])) / _N_SINGLE,
    }


def _turn(proposer: Lookup, tokens: Sequence[int], n_kept: int) -> None:
    proposer.open(0, tokens, n_kept)
    proposer.meanwhile(Ask(0, tokens, 0), ())


def _rounds(proposer: Lookup, tokens: list[int], more: Sequence[int]) -> None:
    for token in more:
        tokens.append(token)
        proposer.draft([Ask(0, tokens, 8)])


def _us(work: Callable[[], None]) -> float:
    began = perf_counter()
    work()
    return (perf_counter() - began) * 1e6


def _text(model: str, n: int) -> list[int]:
    source = "".join(inspect.getsource(module) for module in (argparse, textwrap, statistics))
    with open_vocabulary(resolve_model(model)) as vocabulary:
        tokens = list(vocabulary.tokenize(source))
    return (tokens * (1 + n // len(tokens)))[:n]


if __name__ == "__main__":
    main()

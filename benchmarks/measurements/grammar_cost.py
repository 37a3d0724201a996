"""What a grammar costs a round: the skeleton, the masks of its rows, and the tokens taken over.

Follows example answers for each schema of structured-24, in rounds that draft the skeleton; no
model runs. Once with the model's own vocabulary, once with one made wider by pairs of its tokens.
`greedy`: the likeliest token is taken, `drawn`: one is drawn (temperature 0.7, top_p 0.9). It
obeys, or a dozen tokens that are `forbidden` are likelier: then masks are needed. `ahead`: without
what is computed while a GPU computes (`prepare`). `answer`: the first of a schema, or a later one
with other values. `read` is what the same rows take to be read and drawn from without a grammar,
`masks` what they take more with one, which may be less than nothing: a token that must come is not
drawn. `round`: skeleton, masks and the tokens taken over. It is the thread's own time: what else
the machine does is not in it.

    python -m benchmarks.measurements.grammar_cost --json grammar_cost.json
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.bench.suite import load_suite
from parlay.decoding.constraint import Constraint
from parlay.decoding.masks import Masked, prepare
from parlay.decoding.sampling import Sampling, draw
from parlay.decoding.span import common_prefix
from parlay.engine.structured.grammar import Grammars
from parlay.hub.resolving import resolve_model
from parlay.llama.vocabulary import Vocabulary, open_vocabulary
from parlay.proposers.proposer import GREEDY, Ask
from parlay.proposers.skeleton import SkeletonProposer

PARTS = ("skeleton", "masks", "accept")
ANSWERS = ("first", "later")
KINDS = ("greedy", "drawn", "greedy, forbidden", "drawn, forbidden")
_DRAWN = Sampling(temperature=0.7, top_p=0.9)
_AT_TOP = 20.0  # added to a logit: the likeliest by far
_VALUES: Sequence[dict[str, Any]] = (
    {"string": "a few words of text", "integer": 42, "number": 3.5, "boolean": True},
    {"string": "something else, and longer", "integer": 7, "number": 12.25, "boolean": False},
)
_NEVER = slice(0, 16)  # control tokens, as a rule, which no text has
Times = list[tuple[float, ...]]  # of each round, microseconds by part


class Widened(Vocabulary):
    """A vocabulary with more tokens than the model has; texts are written as before."""

    def __init__(self, own: Vocabulary, size: int) -> None:
        self.__dict__.update(own.__dict__)
        words = [token for token in range(own.size) if own.piece(token).isalpha()]
        pairs = ((a, b) for a in words for b in words)
        self._more = dict(zip(range(own.size, size), pairs, strict=False))
        self.size = own.size + len(self._more)

    def piece(self, token: int) -> bytes:
        pair = self._more.get(token)
        return super().piece(token) if pair is None else b"".join(map(super().piece, pair))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default", help="whose vocabulary")
    parser.add_argument("--widened", type=int, default=150_000, help="tokens of the made one")
    parser.add_argument("--window", type=int, default=16, help="the longest skeleton of a round")
    parser.add_argument("--schemas", type=int, default=24, help="so many of structured-24")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prompts = load_suite("structured-24").prompts[: args.schemas]
    schemas = [prompt.json_schema for prompt in prompts if prompt.json_schema]
    with open_vocabulary(resolve_model(args.model)) as own:
        found = [
            result
            for vocabulary in (own, Widened(own, args.widened))
            for kind in KINDS
            for ahead in (False, True)
            for result in measure(vocabulary, schemas, args.window, kind, ahead)
        ]
    print(json.dumps(found, indent=1))
    keep(args.json, found)


def measure(
    vocabulary: Vocabulary,
    schemas: Sequence[dict[str, Any]],
    window: int,
    kind: str,
    ahead: bool = False,
) -> list[dict[str, Any]]:
    """Microseconds a round, mean, p50 and p95: each part, and the whole; for each of `ANSWERS`."""
    grammars, proposer = Grammars(vocabulary), SkeletonProposer()
    rng = np.random.default_rng(0)
    p = rng.standard_normal((window + 1, vocabulary.size), np.float32)
    found = []
    for i, name in enumerate(ANSWERS):
        times: Times = []
        for schema in schemas:
            answer = vocabulary.continuation(json.dumps(example(schema, i), separators=(",", ":")))
            constraint = grammars.constraint(grammars.json_schema(schema))
            times += _rounds(constraint, proposer, answer, p, kind, ahead)
        about = {"n_vocab": vocabulary.size, "kind": kind, "ahead": ahead, "answer": name}
        found.append({**about, "rounds": len(times), "us": _summary(times)})
    return found


def _summary(times: Times) -> dict[str, dict[str, float]]:
    columns = dict(zip((*PARTS, "read"), zip(*times, strict=True), strict=True))
    columns["round"] = tuple(sum(parts[: len(PARTS)]) for parts in times)
    return {name: _percentiles(column) for name, column in columns.items()}


def _rounds(
    constraint: Constraint,
    proposer: SkeletonProposer,
    answer: Sequence[int],
    p: Any,
    kind: str,
    ahead: bool,
) -> Iterator[tuple[float, ...]]:
    done, sampling = 0, _DRAWN if kind.startswith("drawn") else GREEDY
    forbidden = kind.endswith("forbidden")
    while done < len(answer):
        ask = Ask(0, answer[:done], len(p) - 1, n_prompt=0, constraint=constraint)
        began = thread_time()
        draft = proposer.draft([ask])[0].tokens
        drafted = thread_time()
        taken = answer[done : done + common_prefix(draft, answer[done:]) + 1]
        rows = p[: len(taken)]
        rows[range(len(taken)), taken] += _AT_TOP
        rows[:, _NEVER] += 2 * _AT_TOP * forbidden
        if ahead:
            proposer.meanwhile(ask, draft)
            prepare(constraint, draft, sampling)
        for row in rows:  # the first to read them has to fetch them
            row.max()
        ready = thread_time()
        for j, row in enumerate(rows):
            draw(row, sampling, (), done + j)
        read = thread_time()
        held = Masked(rows, constraint, draft, sampling)
        for j in range(len(taken)):
            held.drawn(j, (), done + j)
        masked = thread_time()
        constraint.accept(taken)
        ended = thread_time()
        rows[range(len(taken)), taken] -= _AT_TOP
        rows[:, _NEVER] -= 2 * _AT_TOP * forbidden
        done += len(taken)
        spent = drafted - began, masked - read - (read - ready), ended - masked, read - ready
        yield tuple(s * 1e6 for s in spent)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    mean = statistics.fmean(values)
    return {"mean": round(mean, 1), "p50": round(cuts[9], 1), "p95": round(cuts[18], 1)}


def example(schema: dict[str, Any], n: int = 0) -> Any:
    """A value that a schema of the suite allows, the first or another one."""
    if "anyOf" in schema:
        return example(schema["anyOf"][0], n)
    if "enum" in schema:
        return schema["enum"][(-1 - n) % len(schema["enum"])]
    kind = schema["type"]
    if kind == "object":
        return {name: example(part, n) for name, part in schema["properties"].items()}
    if kind == "array":
        length = max(schema.get("minItems", 0), min(2 + n, schema.get("maxItems", 2 + n)))
        return [example(schema["items"], n)] * length
    values = _VALUES[n % len(_VALUES)]
    return values[kind] if isinstance(kind, str) else values[kind[0]]


if __name__ == "__main__":
    main()

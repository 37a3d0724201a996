"""What drafting ahead for other outcomes would be worth: a rejection, and the drafter's second
choice is the target's token.

A target answers; a drafter reads the answers and says at every place what it would have drafted,
how sure it was, and what came second. Then rounds are played with prices of a GPU (milliseconds,
by default those of an H200): ahead along the chain only, and with 1, 2 or 3 other outcomes in the
same batched drafter pass, at the places the drafter was least sure of.

python -m benchmarks.measurements.runner_up                      default model, requantised to q4_0
python -m benchmarks.measurements.runner_up --right 0.97 --window 8 --pass-ms 12.8 --token-ms 1.85
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.span import Span
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.library import start
from parlay.llama.model import Model
from parlay.llama.requantise import requantise
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.proposers.drafting import confidence

CHUNK = 64
# A drafter's pass over so many sequences, in passes over one (SmolLM2 on an H200).
BATCHED = {1: 1.0, 2: 1.18, 3: 1.36, 4: 1.41}


@dataclass(frozen=True, slots=True)
class Place:
    """One token of an answer, as the drafter would have guessed it."""

    right: bool
    second: bool  # its second choice was right
    sure: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds."""

    window: int
    pass_ms: float  # of the target, the drafter at work beside it
    step_ms: float  # a token alone
    token_ms: float  # a token beside the pass


def main() -> None:
    args = _arguments()
    start()
    target_path = resolve_model(args.target)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "drafter.gguf"
        path = resolve_model(args.drafter) if args.drafter else None
        target = _opened(target_path)
        drafter = _opened(path or requantise(target_path, made, "q4_0"))
        prompts = load_suite("core-60").prompts[:: max(1, 60 // args.prompts)][: args.prompts]
        texts = [_places(target, drafter, prompt, args.tokens) for prompt in prompts]
        drafter.close()
        target.close()
    if args.right:
        texts = closer(texts, args.right)
    prices = Prices(args.window, args.pass_ms, args.step_ms, args.token_ms)
    record = {"prices": asdict(prices), **report(texts, prices)}
    print(json.dumps(record, indent=1))
    keep(args.json, record)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--drafter", help="absent: the target requantised to q4_0")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--right", type=float, help="let so many tokens be right, as with another")
    parser.add_argument("--window", type=int, default=3)
    parser.add_argument("--pass-ms", type=float, default=14.4)
    parser.add_argument("--step-ms", type=float, default=1.3, help="a drafter's token alone")
    parser.add_argument("--token-ms", type=float, default=3.6, help="and beside a pass")
    parser.add_argument("--json")
    return parser.parse_args()


def closer(texts: Sequence[Sequence[Place]], right: float) -> list[list[Place]]:
    """The same texts with a drafter that is wrong less often, at some of the same places."""
    places = [place for text in texts for place in text]
    kept = (1.0 - right) * len(places) / max(1, sum(not place.right for place in places))
    rng = random.Random(0)
    return [
        [replace(place, right=place.right or rng.random() > kept) for place in text]
        for text in texts
    ]


def report(texts: Sequence[Sequence[Place]], prices: Prices) -> dict[str, object]:
    places = [place for text in texts for place in text]
    wrong = [place for place in places if not place.right]
    chain = speed(texts, prices, 0, prices.token_ms)
    others = range(1, len(BATCHED))
    batched = {n: speed(texts, prices, n, prices.token_ms * BATCHED[1 + n]) for n in others}
    free = {n: speed(texts, prices, n, prices.token_ms) for n in others}
    return {
        "tokens": len(places),
        "right": round(1 - len(wrong) / len(places), 4),
        "second_right_where_wrong": round(sum(p.second for p in wrong) / max(1, len(wrong)), 4),
        "over_the_chain_alone": {n: round(found / chain, 4) for n, found in batched.items()},
        "if_a_batched_pass_cost_no_more": {n: round(found / chain, 4) for n, found in free.items()},
    }


def speed(
    texts: Sequence[Sequence[Place]], prices: Prices, n_others: int, token_ms: float
) -> float:
    """Tokens in a millisecond, with so many other outcomes beside the chain."""
    n_steps = int(prices.pass_ms / token_ms)
    n_tokens, taken = 0, 0.0
    for text in texts:
        at, n_ready = 0, 0
        while at + prices.window < len(text):
            taken += (prices.window - n_ready) * prices.step_ms + prices.pass_ms
            drafted = text[at : at + prices.window + 1]  # and the guess of the target's own
            wrong = next((i for i, place in enumerate(drafted) if not place.right), len(drafted))
            n_ready = _n_ready(drafted, wrong, n_steps, n_others)
            n_ready = min(prices.window, n_ready)
            n_tokens += min(wrong, prices.window) + 1
            at += min(wrong, prices.window) + 1
    return n_tokens / taken


def _n_ready(drafted: Sequence[Place], wrong: int, n_steps: int, n_others: int) -> int:
    """Tokens of the next draft that are there when the pass ends."""
    if wrong == len(drafted):
        return max(0, n_steps - 1)  # the first one was the guess
    doubted = sorted(range(len(drafted)), key=lambda i: drafted[i].sure)[:n_others]
    return n_steps if wrong in doubted and drafted[wrong].second else 0


# -- models --------------------------------------------------------------------


def _opened(path: Path) -> Context:
    return Context(
        Model(path, ModelSettings()),
        ContextSettings(context_size=4096, n_outputs=CHUNK, threads=1),
    )


def _places(target: Context, drafter: Context, prompt: Prompt, n: int) -> list[Place]:
    template = target.model.chat_template()
    assert template is not None
    text = template.render(prompt.messages, tools=prompt.tools or None)
    asked = target.model.vocabulary.tokenize(text)
    answer = _answer(target, asked, n)
    drafter.clear(0)
    tokens, found = asked + answer[:-1], list[Place]()
    for at in range(0, len(tokens), CHUNK):
        part = tokens[at : at + CHUNK]
        n_logits = min(len(part), max(0, at + len(part) - len(asked) + 1))
        (rows,) = drafter.decode([Span(0, at, part, n_logits)])
        for row in rows:
            token = answer[len(found)]
            second, first = np.argsort(row)[-2:]
            sure = confidence(row, int(first), 0.0)
            found.append(Place(token == first, token == second, sure))
    return found


def _answer(target: Context, asked: list[int], n: int) -> list[int]:
    target.clear(0)
    for at in range(0, len(asked), CHUNK):
        (rows,) = target.decode([Span(0, at, asked[at : at + CHUNK], 1)])
    answer = [int(rows[-1].argmax())]
    while len(answer) < n and answer[-1] not in target.model.vocabulary.ends:
        (rows,) = target.decode([Span(0, len(asked) + len(answer) - 1, answer[-1:], 1)])
        answer.append(int(rows[-1].argmax()))
    return answer


if __name__ == "__main__":
    main()

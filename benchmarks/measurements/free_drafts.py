"""What drafts that cost nothing bring: structured output, and edits with a prediction.

    python -m benchmarks.measurements.free_drafts --json free_drafts.json

Structured output (structured-24) is what the model says by itself; plain decoding obeys the same
grammar. Edits (edits-16) are told: a small model paraphrases where it was asked to copy, so after
each of its own passes the logit of the wanted token is raised. What a pass, a draft and a rejection
cost is true, the text is the edit that was asked for, and proposers know nothing of it.

Arms, interleaved and each over plain decoding: `free` (the skeleton or the prediction alone),
`all` (what is loaded beside it), `others` (what is loaded, without it), `wrong` (edits only: the
prediction is another prompt's file). In exact mode texts must be equal in all. With `--server`
llama.cpp's server answers the structured prompts, too, by the same schema (its grammar spaces JSON
in its own way, so its texts are its own), and every arm is given over it as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio, recorded
from benchmarks.shared.told import told
from benchmarks.shared.wanted_edits import wanted
from parlay import Parlay
from parlay.bench.peer import PeerSettings
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.round import Round
from parlay.engine.answer import Answer
from parlay.hub.resolving import resolve_model
from parlay.parlay import Stream
from parlay.proposers.prediction import PREDICTION
from parlay.proposers.skeleton import SKELETON

ARMS: Final = {
    "structured-24": ("plain", "free", "all", "others"),
    "edits-16": ("plain", "free", "all", "others", "wrong"),
}
COUNTED: Final = ("generated", "rounds", "drafted", "accepted")
SERVER: Final = "server"


@dataclass(slots=True)
class Rates:
    """Tokens per second by arm and prompt, and what came with them."""

    by_arm: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)  # in the order of COUNTED
    different: list[str] = field(default_factory=list)
    exact: bool = True  # whether every answer was: if not, texts may differ by rounding
    rounds: dict[str, list[list[Any]]] = field(default_factory=dict)  # by prompt and arm

    def add(self, arm: str, prompt: str, answer: Answer, rounds: Iterable[Round]) -> None:
        if arm != "plain":
            self.rounds[f"{prompt}/{arm}"] = [_told_shortly(r) for r in rounds]
        self.exact = self.exact and answer.exact
        self.by_arm.setdefault(arm, {}).setdefault(prompt, []).append(answer.tokens_per_second)
        counts = answer.speculation
        found = (counts.n_generated, counts.n_rounds, counts.n_drafted, counts.n_accepted)
        known = self.tokens.setdefault(arm, [0] * len(found))
        self.tokens[arm] = [a + b for a, b in zip(known, found, strict=True)]

    def over(self, base: str) -> dict[str, Any]:
        """Every arm over this one."""
        found = self.by_arm.get(base)
        if found is None:
            return {}
        return {
            arm: recorded(ratio(rates, found)) for arm, rates in self.by_arm.items() if arm != base
        }

    def summary(self) -> dict[str, Any]:
        return {
            "over_plain": self.over("plain"),
            "over_server": self.over(SERVER),
            "counts": {
                arm: dict(zip(COUNTED, found, strict=True)) for arm, found in self.tokens.items()
            },
            "tokens_per_second": self.by_arm,
            "different_texts": self.different,
            "exact": self.exact,
            "rounds": self.rounds,
        }


def main() -> None:
    args = _arguments()
    rates = {suite: Rates() for suite in args.suites}
    prompts = {suite: _some(load_suite(suite).prompts, args.prompts) for suite in args.suites}
    with ExitStack() as stack:
        server = _server(args, stack)
        parlay = stack.enter_context(
            Parlay(
                args.model,
                draft=args.draft,
                mode=args.mode,
                gpu_layers=args.gpu_layers,
                context_size=4096,
            )
        )
        until = time.monotonic() + args.minutes * 60
        for suite, prompt in _in_turn(prompts, args.pairs):
            if time.monotonic() > until:
                break
            arms = [a for a in ARMS[suite] if a == "plain" or a in (args.arms or ARMS[suite])]
            if server is not None and prompt.json_schema is not None:
                speed = _served(server, prompt, args.tokens)
                rates[suite].by_arm.setdefault(SERVER, {}).setdefault(prompt.id, []).append(speed)
            _measure(parlay, arms, prompt, prompts[suite], args.tokens, rates[suite])
            _keep(args, rates)  # whatever comes next, this is measured
    found = _found(rates)
    print(json.dumps({suite: _short(one) for suite, one in found.items()}, indent=1))
    if any(one["different_texts"] and one["exact"] for one in found.values()):
        raise SystemExit("texts differ in exact mode")


def _server(args: argparse.Namespace, stack: ExitStack) -> str | None:
    """Where llama.cpp's server answers, if it was asked for."""
    if args.server is None:
        return None
    model = str(resolve_model(args.model))
    settings = PeerSettings(model, n_context=4096, gpu_layers=args.gpu_layers)
    return stack.enter_context(served.llama(settings, args.server or None))


def _served(url: str, prompt: Prompt, tokens: int) -> float:
    """Tokens per second of llama.cpp's server, by its own count; the first answer reads a prompt,
    and loads what its grammar needs."""
    schema = {"name": "answer", "schema": prompt.json_schema}
    body = {
        "messages": list(prompt.messages),
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    for n in (2, min(tokens, prompt.max_tokens or tokens)):
        reply = httpx.post(f"{url}/v1/chat/completions", json={**body, "max_tokens": n}, timeout=60)
    return float(reply.raise_for_status().json()["timings"]["predicted_per_second"])


def _in_turn(prompts: Mapping[str, Sequence[Prompt]], pairs: int) -> Iterator[tuple[str, Prompt]]:
    """One prompt of each suite after the other, so that a run that is cut has some of both."""
    for row in list(zip_longest(*prompts.values())) * pairs:
        yield from ((suite, p) for suite, p in zip(prompts, row, strict=True) if p is not None)


def _found(rates: Mapping[str, Rates]) -> dict[str, Any]:
    return {suite: one.summary() for suite, one in rates.items() if one.by_arm}


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--draft", default="suffix", help="loaded beside what is free")
    parser.add_argument("--suites", nargs="+", choices=sorted(ARMS), default=sorted(ARMS))
    parser.add_argument("--prompts", type=int, default=8, help="of each suite, evenly chosen")
    parser.add_argument("--tokens", type=int, default=192, help="of each answer, at most")
    parser.add_argument("--pairs", type=int, default=1, help="repeats of each prompt")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no prompt after so many")
    parser.add_argument("--arms", nargs="+", choices=ARMS["edits-16"][1:], help="all, if not given")
    parser.add_argument(
        "--mode", choices=("exact", "faithful"), help="as a deployment, if not given"
    )
    parser.add_argument(
        "--server",
        nargs="?",
        const="",
        metavar="BINARY",
        help="llama.cpp's server answers, too: this one, or the one in xllamacpp",
    )
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _some(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """So many of them, of all kinds in turn: a run that is cut has some of each."""
    step = max(1.0, len(prompts) / max(1, n))
    found = [prompts[int(i * step)] for i in range(min(n, len(prompts)))]
    return sorted(found, key=lambda prompt: prompt.id.rpartition("-")[2])


def _measure(
    parlay: Parlay,
    arms: Sequence[str],
    prompt: Prompt,
    prompts: Sequence[Prompt],
    tokens: int,
    rates: Rates,
) -> None:
    """One answer of every arm, next to each other in time; the first of a prompt reads it."""
    edit = None if prompt.prediction is None else wanted(prompt.id, prompt.prediction)
    texts: dict[str, str] = {}
    _answer(parlay, prompt, "plain", edit, "", 2)
    for arm in arms:
        expected = expected_by(arm, prompt, prompts)
        stream = _answer(parlay, prompt, arm, edit, expected, tokens)
        texts[arm] = stream.answer.text
        assert stream.sequence is not None
        rates.add(arm, prompt.id, stream.answer, stream.sequence.rounds)
    if len(set(texts.values())) > 1 or (edit is not None and not edit.startswith(texts["plain"])):
        rates.different.append(prompt.id)
    speeds = {arm: rates.by_arm[arm][prompt.id][-1] for arm in texts}
    line = ", ".join(f"{arm} {speed / speeds['plain']:.2f}" for arm, speed in speeds.items())
    print(f"{prompt.id:18} {speeds['plain']:6.1f} tokens/s, {line}", file=sys.stderr, flush=True)


def expected_by(arm: str, prompt: Prompt, prompts: Sequence[Prompt]) -> str:
    if prompt.prediction is None or arm in ("plain", "others"):
        return ""
    if arm != "wrong":
        return prompt.prediction
    others = [p.prediction for p in prompts if p.prediction not in (None, prompt.prediction)]
    return others[0] or "" if others else prompt.prediction[::-1]


def _answer(
    parlay: Parlay, prompt: Prompt, arm: str, edit: str | None, expected: str, tokens: int
) -> Stream:
    vocabulary = parlay.engine.model.vocabulary
    said = None if edit is None else vocabulary.continuation(edit)
    n_prompt = len(parlay.tokens(prompt.messages))
    with told(parlay, said, n_prompt):
        stream = parlay.stream(
            prompt.messages,
            json_schema=prompt.json_schema,
            prediction=expected,
            draft=_proposers(parlay, arm, prompt),
            max_tokens=min(tokens, prompt.max_tokens or tokens),
            temperature=0.0,
        )
        assert stream.answer.finish_reason != "error"
        return stream


def _told_shortly(r: Round) -> list[Any]:
    """Who drafted, how many, how many held; milliseconds of draft, pass and the rest; why not."""
    times = (r.timing.draft_s, r.timing.verify_s, r.timing.overhead_s)
    why = None if r.fallback is None else str(r.fallback)
    return [r.proposer, r.n_drafted, r.n_accepted, *(round(1e3 * s, 2) for s in times), why]


def _proposers(parlay: Parlay, arm: str, prompt: Prompt) -> str:
    free = SKELETON if prompt.json_schema is not None else PREDICTION
    loaded = parlay.engine.drafts.named
    if arm == "plain":
        return "none"
    if arm in ("free", "wrong"):
        return free
    return ",".join([*loaded, free] if arm == "all" else loaded)


def _short(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: one[name]
        for name in ("over_plain", "over_server", "counts", "exact", "different_texts")
    }


def _keep(args: argparse.Namespace, rates: Mapping[str, Rates]) -> None:
    if args.json is not None:
        found = {"model": args.model, "draft": args.draft, "suites": _found(rates)}
        args.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()

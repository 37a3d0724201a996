"""Parlay against llama.cpp's own server: same files, interleaved, ratios with intervals.

Every subject stays loaded; each prompt goes to all of them in turn, forwards and then backwards, so
that drift hits all alike. Needs llama.cpp's server binary (--server), or the package xllamacpp.

Example, on a CPU:
  python -m benchmarks.measurements.peer --target default --pairs 3 --json out.json
Example, on a GPU with a stand-in and a drafter:
  python -m benchmarks.measurements.peer --target m/27b.gguf --drafter m/smol-q8_0.gguf \\
    --window 5 --server bin/llama-server
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio, shown
from benchmarks.shared.record import keep
from parlay import Parlay
from parlay.bench.peer import PeerSettings
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.round import Round
from parlay.engine.start import behind
from parlay.hub.resolving import resolve_model
from parlay.proposers.draft_model import DraftModel

Ask = Callable[[Prompt, int], dict[str, Any]]
REMEMBERING = "parlay, remembering"


def asked(url: str) -> Ask:
    """A server of llama.cpp's as a subject."""

    def ask(prompt: Prompt, n: int) -> dict[str, Any]:
        body = {
            "messages": list(prompt.messages), "temperature": 0, "max_tokens": n,
            "cache_prompt": False,
        }  # fmt: skip
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
        found = reply.raise_for_status().json()
        t = found["timings"]
        return {
            "tps": t["predicted_per_second"],
            "prefill_tps": t["prompt_per_second"],
            "n": t["predicted_n"],
            "n_prompt": t["prompt_n"],
            "drafted": t.get("draft_n", 0),
            "accepted": t.get("draft_n_accepted", 0),
            "text": found["choices"][0]["message"]["content"] or "",
        }

    return ask


def own(parlay: Parlay, draft: str | None, window: int | None) -> Ask:
    """A subject on the resident models: a window, none (0), or the controller's choice (None)."""

    def ask(prompt: Prompt, n: int) -> dict[str, Any]:
        parlay.generate(
            "Hi.", temperature=0, max_tokens=1, raw=True
        )  # another text, so that nothing is reused
        busy = [c.busy_s for c in contexts(parlay)]
        stream = parlay._start(
            list(prompt.messages), whole=True, max_tokens=n, draft=draft, window=window
        )
        answer, sequence = stream.answer, stream.sequence
        assert sequence is not None
        inside = sum(c.busy_s for c in contexts(parlay)) - sum(busy)
        counts = answer.speculation
        outside = answer.prefill_s + answer.decode_s - inside
        return {
            "tps": answer.tokens_per_second,
            "prefill_tps": (answer.n_prompt - answer.n_reused) / answer.prefill_s,
            "n": len(answer.tokens),
            "n_prompt": answer.n_prompt,
            "drafted": counts.n_drafted,
            "accepted": counts.n_accepted,
            "length": counts.acceptance_length,
            "outside_us_per_round": outside / counts.n_rounds * 1e6,
            "text": answer.text,
            "rounds": [told(r) for r in sequence.rounds] if window is None else [],
        }

    return ask


def told(r: Round) -> list[Any]:
    """What the controller did in a round, and what that took in milliseconds."""
    times = [round(1000 * s, 2) for s in (r.timing.draft_s, r.timing.verify_s, r.timing.overhead_s)]
    return [
        r.proposer,
        r.window,
        r.n_drafted,
        r.n_accepted,
        r.n_dropped,
        r.n_rows,
        *times,
        r.reason,
    ]


def contexts(parlay: Parlay) -> list[Any]:
    """Every llama.cpp context of this engine: the target's and, if there is one, the drafter's."""
    model = behind(parlay.engine.drafts.proposers.get("model"))
    return [parlay.engine.target, *([model.passes] if isinstance(model, DraftModel) else [])]


def main() -> None:
    ap = parser_of(__doc__)
    ap.add_argument("--target", default="default")
    ap.add_argument("--drafter", help="GGUF of a draft model")
    ap.add_argument("--window", type=int, nargs="*", default=[5])
    ap.add_argument("--server-window", type=int, nargs="*", help="the servers', if others")
    ap.add_argument("--spec-draft", default="draft-simple", help="the server's name of the kind")
    ap.add_argument("--alone", action="store_true", help="without the server's plain decoding")
    ap.add_argument("--server", help="llama.cpp's server binary; without it xllamacpp is used")
    ap.add_argument("--spec-types", nargs="*", default=[], help="of the server, such as ngram-mod")
    ap.add_argument("--suite", default="core-12")
    ap.add_argument("--prompts", type=int, default=6)
    ap.add_argument("--tokens", type=int, default=128)
    ap.add_argument("--pairs", type=int, default=3)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--mode", choices=("exact", "faithful"))
    ap.add_argument(
        "--remember",
        type=int,
        default=0,
        help="tokens of its own answers that one more engine drafts from, as `parlay serve` does",
    )
    ap.add_argument("--json", help="raw samples go here")
    args = ap.parse_args()
    target = resolve_model(args.target)
    with ExitStack() as stack:
        parlay = opened(args, target, stack)
        args.threads = args.threads or parlay.engine.threads
        subjects: dict[str, Ask] = {"parlay plain": own(parlay, "none", 0)}
        draft = "model" if args.drafter else "suffix"
        subjects |= {f"parlay k={k}": own(parlay, draft, k) for k in args.window}
        subjects["parlay auto"] = own(parlay, None, None)
        if args.remember:  # apart: it is to know its own answers only
            subjects[REMEMBERING] = own(opened(args, target, stack, args.remember), None, None)
        samples = run(subjects | peers(args, target, stack), args)
    keep(args.json, samples)
    report(samples, args)


def opened(
    args: argparse.Namespace, target: Path, stack: ExitStack, remember_tokens: int = 0
) -> Parlay:
    """An engine with every proposer that was asked for."""
    return stack.enter_context(
        Parlay(
            target,
            draft=f"suffix,{args.drafter}" if args.drafter else "suffix",
            mode=args.mode,
            context_size=args.context,
            threads=args.threads,
            batch=args.batch,
            remember_tokens=remember_tokens,
        )
    )


def peers(args: argparse.Namespace, target: Path, stack: ExitStack) -> dict[str, Ask]:
    """llama.cpp's servers, each with one setting; memory says how many can be there at once."""
    plain = PeerSettings(str(target), n_context=args.context, threads=args.threads)
    wanted = {} if args.alone else {"server plain": plain}
    windows = args.window if args.server_window is None else args.server_window
    if args.drafter and args.server:
        drafting = replace(plain, spec_type=args.spec_draft, drafter=args.drafter)
        wanted |= {f"server k={k}": replace(drafting, n_max=k) for k in windows}
    wanted |= {f"server {name}": replace(plain, spec_type=name) for name in args.spec_types}
    return {
        name: asked(stack.enter_context(served.llama(settings, args.server)))
        for name, settings in wanted.items()
    }


def run(subjects: dict[str, Ask], args: argparse.Namespace) -> list[dict[str, Any]]:
    prompts = list(load_suite(args.suite).prompts)
    step = max(1, len(prompts) // args.prompts)
    prompts = prompts[::step][: args.prompts]
    for ask in subjects.values():  # warm-up, every shape
        ask(prompts[0], 24)
    samples = []
    for pair in range(args.pairs):
        for prompt in random.Random(pair).sample(prompts, len(prompts)):
            names = list(subjects) if pair % 2 == 0 else list(subjects)[::-1]
            for name in names:
                found = subjects[name](prompt, args.tokens)
                about = {"prompt": prompt.id, "category": prompt.category, "pair": pair}
                samples.append({"subject": name, **about, **found})
                print(f"{pair} {prompt.id:14} {name:14} {found['tps']:7.1f} tok/s", flush=True)
    return samples


def report(samples: list[dict[str, Any]], args: argparse.Namespace) -> None:
    names = list(dict.fromkeys(s["subject"] for s in samples))
    pairs = [("parlay plain", "server plain")] if "server plain" in names else []
    n_prefills = len(pairs)
    pairs += [(f"parlay k={k}", "parlay plain") for k in args.window]
    pairs += [("parlay auto", "parlay plain")]
    pairs += [(f"parlay k={k}", f"server k={k}") for k in args.window if f"server k={k}" in names]
    others = [name for name in names if name.startswith("server ") and name != "server plain"]
    pairs += [("parlay auto", name) for name in others]
    if REMEMBERING in names:
        pairs += [(REMEMBERING, name) for name in ("parlay plain", "parlay auto", *others)]
    print()
    for name in names:
        mine = [s for s in samples if s["subject"] == name]
        mean = math.exp(statistics.fmean(math.log(s["tps"]) for s in mine))
        outside = [s["outside_us_per_round"] for s in mine if "outside_us_per_round" in s]
        drafted, accepted = sum(s["drafted"] for s in mine), sum(s["accepted"] for s in mine)
        extra = (
            f", outside llama.cpp {statistics.median(outside):.0f} us a round" if outside else ""
        )
        share = f", accepted {accepted / drafted:.2f} of {drafted}" if drafted else ""
        print(f"{name:14} {mean:7.1f} tok/s{share}{extra}")
    for metric in ("tps", "prefill_tps"):
        for a, b in pairs if metric == "tps" else pairs[:n_prefills]:
            print(f"{metric}: {a} / {b}: {over(samples, a, b, metric)}")
    for category in sorted({s["category"] for s in samples}):
        mine = [s for s in samples if s["category"] == category]
        found = over(mine, "parlay auto", "parlay plain", "tps")
        print(f"{category}: parlay auto / parlay plain: {found}")
    texts = {
        name: {s["prompt"]: s["text"] for s in samples if s["subject"] == name} for name in names
    }
    for name in names[1:]:
        same = sum(texts[name][p] == texts["parlay plain"][p] for p in texts[name])
        print(f"texts equal to parlay plain: {name}: {same} of {len(texts[name])}")


def over(samples: list[dict[str, Any]], a: str, b: str, metric: str) -> str:
    """The ratio of two subjects with its interval."""
    return shown(ratio(figures(samples, a, metric), figures(samples, b, metric)))


def figures(samples: list[dict[str, Any]], subject: str, metric: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in sorted(samples, key=lambda s: s["pair"]):
        if sample["subject"] == subject:
            found.setdefault(sample["prompt"], []).append(sample[metric])
    return found


if __name__ == "__main__":
    main()

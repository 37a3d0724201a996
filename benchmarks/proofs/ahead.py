"""Draft ahead against draft, then verify: the same models, interleaved, ratios with intervals.

One engine holds both models. Every prompt goes to all subjects in turn, forwards and then
backwards: plain decoding, fixed windows with and without drafting ahead, and a controller for each.
Each controller learns from its own answers only; --learn of them, to other prompts, are not
counted. With --server llama.cpp's own server answers the same prompts. With --told all but servers
say what plain decoding said: their own texts part at the first near tie on a GPU, and one that
repeats itself is several times as fast as one that does not. --soak lets clients come and leave.

python -m benchmarks.proofs.ahead --target default --drafter default --windows 4 --force
python -m benchmarks.proofs.ahead --target 27b-q5_0.gguf --drafter smollm2-q8_0.gguf --windows 3 \\
  --server llama-server --server-windows 3 5 8 16 --json ahead-27b.json
python -m benchmarks.proofs.ahead --target 27b-q5_0.gguf --drafter smollm2-q8_0.gguf --soak 20
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measurements.peer import asked, figures
from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.own_recordings import add_own_recordings, heed
from benchmarks.shared.ratios import ratio, recorded, shown
from benchmarks.shared.record import keep
from benchmarks.shared.told import told
from parlay import Parlay
from parlay.bench.subjects.peer import PeerSettings
from parlay.bench.suite import Prompt, load_suite
from parlay.control.controller import Controller
from parlay.control.profit import ProfitController
from parlay.decoding.round import Round
from parlay.engine.start import MODEL
from parlay.hub.resolving import resolve_model
from parlay.llama import library
from parlay.models import SHIPPED_DRAFTERS
from parlay.proposers.ahead import DraftAhead
from parlay.proposers.proposer import Proposer

SOAK_CACHE_MB = 64  # full within minutes: what grows after that is a leak

# Whatever a controller thinks of a draft model here, most clients of a soak want its drafts.
WAYS: tuple[dict[str, Any], ...] = ({}, *({"draft": MODEL, "window": k} for k in (1, 4, 8)))

Sample = dict[str, Any]
Ask = Callable[[Prompt, int], Sample]
PLAIN, AUTO, AUTO_AHEAD = "plain", "auto", "auto ahead"


class Rounds:
    """Every round of the answer at hand, for those who want to know why; bounded by its length."""

    COLUMNS = (
        "proposer", "reason", "window", "rows", "drafted", "dropped", "accepted", "ready",
        "made_ahead", "ahead_ms", "beside", "draft_ms", "verify_ms", "overhead_ms",
    )  # fmt: skip

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._told: list[list[Any]] = []

    def observe(self, rounds: Sequence[Round]) -> None:
        if self._keeps:
            self._told += [self._row(r) for r in rounds]

    def take(self) -> list[list[Any]]:
        found, self._told = self._told, []
        return found

    def _row(self, r: Round) -> list[Any]:
        times = (r.timing.draft_s, r.timing.verify_s, r.timing.overhead_s)
        return [
            r.proposer, r.fallback.value if r.fallback else r.reason, r.window, r.n_pass_rows,
            r.n_drafted, r.n_dropped, r.n_accepted, r.n_ahead, r.n_drafted_ahead,
            round(1e3 * r.drafted_ahead_s, 3), r.beside, *(round(1e3 * s, 3) for s in times),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of plain decoding's, for others to say."""

    tokens: Sequence[int]
    n_prompt: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer on the resident models."""

    parlay: Parlay
    drafter: Proposer
    controller: Controller
    draft: str | None
    window: int | None
    rounds: Rounds = field(default_factory=lambda: Rounds(keeps=False))
    said: Mapping[str, Said] = field(default_factory=dict)  # by prompt; others say what they like

    def __call__(self, prompt: Prompt, n_tokens: int) -> Sample:
        engine = self.parlay.engine
        engine.call(self._take_over)
        self.parlay.generate("Hi.", max_tokens=1, raw=True, draft="none")  # nothing is reused
        said = self.said.get(prompt.id)
        tokens, n_prompt = (said.tokens, said.n_prompt) if said else (None, 0)
        with told(self.parlay, tokens, n_prompt):
            stream = self.parlay._start(
                list(prompt.messages), whole=True, max_tokens=n_tokens, draft=self.draft,
                window=self.window,
            )  # fmt: skip
            answer = stream.answer
        counts = answer.speculation
        rounds = counts.n_rounds
        rows = engine.call(self.rounds.take).result()  # after its last round was told of
        return {
            "tps": answer.tokens_per_second,
            "n": len(answer.tokens),
            "text": answer.text,
            "exact": answer.exact,
            "ms_round": 1e3 * answer.decode_s / max(1, rounds),
            "draft_ms": 1e3 * counts.draft_s / max(1, rounds),
            "verify_ms": 1e3 * counts.verify_s / max(1, rounds),
            "overhead_ms": 1e3 * counts.overhead_s / max(1, rounds),
            "length": counts.acceptance_length,
            "speculation": counts.as_dict(),
            **({"rounds": rows} if rows else {}),
        }

    def _take_over(self) -> None:
        """Between two answers, on the worker's thread."""
        bets = self.parlay.engine.bets
        bets.proposers[MODEL].forget(0)  # nothing is under way any more
        bets.proposers[MODEL] = self.drafter
        bets.controller = self.controller


def main() -> None:
    args = _arguments()
    path = resolve_model(args.target)
    drafter = resolve_drafter(args.drafter)
    heed(args)
    parlay = Parlay(
        path,
        draft=f"suffix,{drafter}",
        mode=args.mode,
        context_size=args.context,
        slots=args.slots if args.soak else 1,
        threads=args.threads,
        draft_ahead="on" if args.force else "auto",
        prompt_cache_mb=SOAK_CACHE_MB if args.soak else 1024,
    )
    with parlay:
        if args.soak:
            record = soak(parlay, args)
        else:
            with ExitStack() as stack:
                said = texts(parlay, args) if args.told else {}
                own = arms(parlay, args.windows, Rounds(args.rounds), said)
                record = measure({**own, **servers(args, path, drafter, stack)}, args)
                if args.rounds:
                    record |= {"columns": Rounds.COLUMNS, "prices": prices(own)}
    keep(args.json, record)
    if not record["passed"]:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--drafter", default="default", help="a GGUF file, or a shipped one")
    parser.add_argument("--windows", type=int, nargs="*", default=[4])
    parser.add_argument("--force", action="store_true", help="draft ahead on a CPU, too")
    parser.add_argument("--server", help="llama.cpp's server binary; absent: no server")
    parser.add_argument("--server-windows", type=int, nargs="*", default=[3, 5, 8, 16])
    parser.add_argument("--suite", default="core-60")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--learn", type=int, default=4, help="answers a controller begins with")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--mode", choices=("exact", "faithful"), default="faithful")
    parser.add_argument("--told", action="store_true", help="all say what plain decoding said")
    add_own_recordings(parser)
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="clients come and leave")
    parser.add_argument("--slots", type=int, default=3, help="of a soak")
    parser.add_argument("--rounds", action="store_true", help="keep rounds and prices, too")
    parser.add_argument("--json", help="file for samples and ratios")
    return parser.parse_args()


def resolve_drafter(name: str) -> str:
    return name if name in SHIPPED_DRAFTERS else str(resolve_model(name))


# -- who answers ---------------------------------------------------------------


def texts(parlay: Parlay, args: argparse.Namespace) -> dict[str, Said]:
    """What plain decoding says to each prompt."""
    found = {}
    for prompt in chosen(load_suite(args.suite).prompts, args.prompts):
        answer = parlay.generate(list(prompt.messages), max_tokens=args.tokens, draft="none")
        found[prompt.id] = Said(answer.tokens, answer.n_prompt)
    return found


def arms(
    parlay: Parlay, windows: Sequence[int], rounds: Rounds, said: Mapping[str, Said]
) -> dict[str, Arm]:
    """Every way on the resident models; those that do not draft ahead have the drafter bare."""
    bets = parlay.engine.bets
    ahead, with_ahead = bets.proposers[MODEL], bets.controller
    if not isinstance(ahead, DraftAhead):
        sys.exit("both models would share a CPU's cores; --force drafts ahead all the same")
    assert isinstance(with_ahead, ProfitController)
    cutting, bare = parlay.engine.cutting, ahead.drafter
    fixed, without = (ProfitController(with_ahead.costs.copy(), cutting=cutting) for _ in range(2))
    bets.listeners.append(rounds)
    found = {PLAIN: Arm(parlay, bare, fixed, "none", 0, rounds, said)}
    for k in windows:
        found[f"k={k}"] = Arm(parlay, bare, fixed, MODEL, k, rounds, said)
        found[f"k={k} ahead"] = Arm(parlay, ahead, fixed, MODEL, k, rounds, said)
    found[AUTO] = Arm(parlay, bare, without, None, None, rounds, said)
    found[AUTO_AHEAD] = Arm(parlay, ahead, with_ahead, None, None, rounds, said)
    return found


def prices(arms: Mapping[str, Arm]) -> dict[str, Any]:
    """What each controller chooses by in the end: a cost table, to be replayed with."""
    known = {name: arms[name].controller.prices() for name in (AUTO, AUTO_AHEAD)}
    return {name: costs.to_dict() for name, costs in known.items() if costs is not None}


def servers(
    args: argparse.Namespace, target: Path, drafter: str, stack: ExitStack
) -> dict[str, Ask]:
    """llama.cpp's server at each of its windows, all loaded at once."""
    if not args.server:
        return {}
    base = PeerSettings(
        str(target),
        n_context=args.context,
        threads=args.threads,
        spec_type="draft-simple",
        drafter=drafter,
    )
    return {
        f"server k={k}": asked(
            stack.enter_context(served.llama(replace(base, n_max=k), args.server))
        )
        for k in args.server_windows
    }


# -- speed ---------------------------------------------------------------------


def chosen(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """So many of a suite, of all its kinds."""
    return list(prompts[:: max(1, len(prompts) // n)][:n])


def measure(asks: Mapping[str, Ask], args: argparse.Namespace) -> dict[str, Any]:
    known = load_suite(args.suite).prompts
    prompts = chosen(known, args.prompts)
    samples: list[Sample] = []
    end = time.monotonic() + args.seconds
    for _ in range(2):  # warm up, every shape
        for ask in asks.values():
            ask(prompts[0], 48)
    others = [prompt for prompt in known if prompt not in prompts]
    for prompt in random.Random(0).sample(others, min(args.learn, len(others))):
        for name in (AUTO, AUTO_AHEAD):  # as in a server that has answered before
            asks[name](prompt, args.tokens)
    try:
        for pair in range(args.pairs):
            for prompt in random.Random(pair).sample(prompts, len(prompts)):
                for name in list(asks)[:: -1 if pair % 2 else 1]:
                    found = asks[name](prompt, args.tokens)
                    samples.append({"subject": name, "prompt": prompt.id, "pair": pair, **found})
                tell(samples[-len(asks) :])
                if time.monotonic() > end:
                    return report(samples)
    except KeyboardInterrupt:
        pass
    return report(samples)


def tell(samples: Sequence[Sample]) -> None:
    speeds = "  ".join(f"{s['subject']} {s['tps']:.0f}" for s in samples)
    print(f"{samples[0]['prompt']:14} {speeds}", file=sys.stderr, flush=True)


def report(samples: list[Sample]) -> dict[str, Any]:
    names = list(dict.fromkeys(s["subject"] for s in samples))
    for name in names:
        print(_line(name, [s for s in samples if s["subject"] == name]))
    pairs = [(name, PLAIN) for name in names if name != PLAIN]
    pairs += [(name, name.removesuffix(" ahead")) for name in names if name.endswith(" ahead")]
    pairs += [(AUTO_AHEAD, name) for name in names if name.startswith("server")]
    ratios = {}
    for name, base in pairs:
        found = ratio(figures(samples, name, "tps"), figures(samples, base, "tps"))
        ratios[f"{name} / {base}"] = recorded(found)
        print(f"{name} / {base}: {shown(found)}")
    changed = _changed(samples)
    print(f"exact texts that differ from plain decoding's: {changed}")
    return {"passed": changed == 0, "ratios": ratios, "changed": changed, "samples": samples}


def _line(name: str, samples: Sequence[Sample]) -> str:
    mean = math.exp(statistics.fmean(math.log(s["tps"]) for s in samples))
    told = f"{name:14} {mean:7.1f} tok/s"
    if "ms_round" not in samples[0]:
        return told

    def median(key: str) -> float:
        return float(statistics.median(s[key] for s in samples))

    parts = ", ".join(f"{key} {median(f'{key}_ms'):.2f}" for key in ("draft", "verify", "overhead"))
    return f"{told}, {median('length'):.2f} tokens in {median('ms_round'):.2f} ms a round ({parts})"


def _changed(samples: Sequence[Sample]) -> int:
    plain = {s["prompt"]: s["text"] for s in samples if s["subject"] == PLAIN and s["exact"]}
    exact = [s for s in samples if s.get("exact") and s["prompt"] in plain]
    return sum(s["text"] != plain[s["prompt"]] for s in exact)


# -- soak ----------------------------------------------------------------------


class Clients:
    """Clients that come, read for a while and leave, or stay to the end."""

    def __init__(self, parlay: Parlay, n: int, until: float) -> None:
        self.n_whole = self.n_left = self.n_lost = self.n_ahead = self.n_hits = 0
        self._parlay, self._until = parlay, until
        self._prompts = list(load_suite("core-60").prompts)
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._live, args=(i,)) for i in range(n)]

    def _live(self, number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < self._until:
            try:
                self._ask(rng)
            except Exception as error:
                print(f"lost: {error!r}", file=sys.stderr, flush=True)
                with self._lock:
                    self.n_lost += 1

    def _ask(self, rng: random.Random) -> None:
        prompt, leaves = rng.choice(self._prompts), rng.random() < 0.5
        stays = rng.randrange(1, 60) if leaves else 1 << 20
        temperature = rng.choice([0.0, 0.8])
        stream = self._parlay.stream(
            list(prompt.messages),
            max_tokens=rng.randrange(16, 160),
            temperature=temperature,
            seed=rng.randrange(1000),
            **rng.choice(WAYS),
        )
        for n, _ in enumerate(stream):
            if n >= stays:
                break
        reason = "left" if leaves else stream.answer.finish_reason
        with self._lock:
            if reason != "left":
                self.n_ahead += stream.answer.speculation.n_drafted_ahead
                self.n_hits += stream.answer.speculation.n_hits
            if leaves:
                self.n_left += 1
            elif reason in ("stop", "length"):
                self.n_whole += 1
            else:
                self.n_lost += 1


def soak(parlay: Parlay, args: argparse.Namespace) -> dict[str, Any]:
    """Memory after a third of the time against memory at the end, and every answer whole."""
    started = time.monotonic()
    clients = Clients(parlay, 2 * args.slots, started + 60 * args.soak)
    for thread in clients.threads:
        thread.start()
    marks: list[dict[str, float]] = []
    while going := [thread for thread in clients.threads if thread.is_alive()]:
        going[0].join(min(10.0, 6 * args.soak))
        marks.append({"seconds": time.monotonic() - started, **memory()})
        print(marks[-1], clients.n_whole, clients.n_left, file=sys.stderr, flush=True)
    first, last = marks[len(marks) // 3], marks[-1]
    grown = {name: last[name] - first[name] for name in ("rss_mb", "gpu_mb")}
    counted = {"whole": clients.n_whole, "left": clients.n_left, "lost": clients.n_lost}
    counted |= {"drafted_ahead": clients.n_ahead, "hits": clients.n_hits}
    passed = clients.n_lost == 0 and grown["rss_mb"] < 64 and grown["gpu_mb"] < 64
    print(f"{counted}, memory grew by {grown}")
    return {"passed": passed, **counted, "grown_mb": grown, "marks": marks}


def memory() -> dict[str, float]:
    used = [d.total_bytes - d.free_bytes for d in library.devices() if d.kind == "gpu"]
    return {"rss_mb": psutil.Process().memory_info().rss / 1e6, "gpu_mb": sum(used) / 1e6}


if __name__ == "__main__":
    main()

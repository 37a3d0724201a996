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
import json
import math
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parlay import Parlay
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.round import Round
from parlay.hub.resolving import resolve_model

Ask = Callable[[Prompt, int], dict[str, Any]]

XLLAMACPP = """
import sys, time, xllamacpp as x
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
p = x.CommonParams()
p.model.path = args["model"]
p.port, p.n_parallel, p.n_ctx = int(args["port"]), 1, int(args["context"])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(args["threads"])
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.cache_ram_mib, p.fit_params = 0, False
server = x.Server(p)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


class Server:
    """llama.cpp's server in a process of its own."""

    def __init__(self, args: argparse.Namespace, target: Path, port: int, extra: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        if args.server:
            command = [
                args.server, "-m", str(target), "-ngl", "99", "-fa", "on", "-c", str(args.context),
                "-np", "1", "-fit", "off", "--cache-ram", "0", "--no-ui", "-t", str(args.threads),
                "--host", "127.0.0.1", "--port", str(port), *extra,
            ]  # fmt: skip
        else:
            command = [
                sys.executable, "-c", XLLAMACPP, "model", str(target), "port", str(port),
                "context", str(args.context), "threads", str(args.threads),
            ]  # fmt: skip
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)

    def wait(self) -> None:
        """Until it answers: all of them load side by side."""
        for _ in range(600):
            if self._process.poll() is not None:
                sys.exit(f"the server ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        sys.exit("the server did not come up")

    def ask(self, prompt: Prompt, n: int) -> dict[str, Any]:
        body = {
            "messages": list(prompt.messages), "temperature": 0, "max_tokens": n,
            "cache_prompt": False,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            found = json.load(reply)
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

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def own(parlay: Parlay, draft: str | None, window: int | None) -> Ask:
    """A subject on the resident models: a window, none (0), or the controller's choice (None)."""

    def ask(prompt: Prompt, n: int) -> dict[str, Any]:
        parlay.generate("Hi.", max_tokens=1, raw=True)  # another text, so that nothing is reused
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
    model = parlay.engine.bets.proposers.get("model")
    return [parlay.engine.target, *([model._model] if model is not None else [])]  # type: ignore[attr-defined]


def interval(ratios: list[list[float]], rng: random.Random) -> tuple[float, float, float]:
    """Geometric mean of per-prompt ratios, with a bootstrap over prompts and repeats."""
    logs = [[math.log(r) for r in per_prompt] for per_prompt in ratios]
    means = []
    for _ in range(4000):
        picked = [rng.choice(logs) for _ in logs]
        means.append(statistics.fmean(statistics.fmean(rng.choices(p, k=len(p))) for p in picked))
    means.sort()
    middle = statistics.fmean(statistics.fmean(p) for p in logs)
    return math.exp(middle), math.exp(means[100]), math.exp(means[-101])


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
    ap.add_argument("--json", help="raw samples go here")
    args = ap.parse_args()
    target = resolve_model(args.target)
    parlay = Parlay(
        target, draft=f"ngram,suffix,{args.drafter}" if args.drafter else "ngram,suffix",
        mode=args.mode,
        context_size=args.context, threads=args.threads, batch=args.batch,
    )  # fmt: skip
    args.threads = args.threads or parlay.engine.threads
    servers = peers(args, target)
    subjects: dict[str, Ask] = {"parlay plain": own(parlay, "none", 0)}
    draft = "model" if args.drafter else "suffix"
    subjects |= {f"parlay k={k}": own(parlay, draft, k) for k in args.window}
    subjects["parlay auto"] = own(parlay, None, None)
    subjects |= {name: server.ask for name, server in servers.items()}
    try:
        samples = run(subjects, args)
    finally:
        for server in servers.values():
            server.close()
        parlay.close()
    if args.json:
        Path(args.json).write_text(json.dumps(samples))
    report(samples, args)


def peers(args: argparse.Namespace, target: Path) -> dict[str, Server]:
    """llama.cpp's servers, each with one setting; memory says how many can be there at once."""
    wanted: dict[str, list[str]] = {} if args.alone else {"server plain": []}
    windows = args.window if args.server_window is None else args.server_window
    if args.drafter and args.server:
        model = ["-md", args.drafter, "-ngld", "99", "--spec-type", args.spec_draft]
        wanted |= {f"server k={k}": [*model, "--spec-draft-n-max", str(k)] for k in windows}
    wanted |= {f"server {name}": ["--spec-type", name] for name in args.spec_types}
    servers = {
        name: Server(args, target, 8765 + i, extra)
        for i, (name, extra) in enumerate(wanted.items())
    }
    for server in servers.values():
        server.wait()
    return servers


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
    rng = random.Random(0)
    names = list(dict.fromkeys(s["subject"] for s in samples))
    pairs = [("parlay plain", "server plain")] if "server plain" in names else []
    n_prefills = len(pairs)
    pairs += [(f"parlay k={k}", "parlay plain") for k in args.window]
    pairs += [("parlay auto", "parlay plain")]
    pairs += [(f"parlay k={k}", f"server k={k}") for k in args.window if f"server k={k}" in names]
    others = [name for name in names if name.startswith("server ") and name != "server plain"]
    pairs += [("parlay auto", name) for name in others]
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
            mean, low, high = interval(ratios(samples, a, b, metric), rng)
            print(f"{metric}: {a} / {b}: {mean:.3f} [{low:.3f}, {high:.3f}]")
    for category in sorted({s["category"] for s in samples}):
        mine = [s for s in samples if s["category"] == category]
        mean, low, high = interval(ratios(mine, "parlay auto", "parlay plain", "tps"), rng)
        print(f"{category}: parlay auto / parlay plain: {mean:.3f} [{low:.3f}, {high:.3f}]")
    texts = {
        name: {s["prompt"]: s["text"] for s in samples if s["subject"] == name} for name in names
    }
    for name in names[1:]:
        same = sum(texts[name][p] == texts["parlay plain"][p] for p in texts[name])
        print(f"texts equal to parlay plain: {name}: {same} of {len(texts[name])}")


def ratios(samples: list[dict[str, Any]], a: str, b: str, metric: str) -> list[list[float]]:
    value = {(s["subject"], s["prompt"], s["pair"]): s[metric] for s in samples}
    prompts = sorted({s["prompt"] for s in samples})
    n = 1 + max(s["pair"] for s in samples)
    return [[value[a, p, i] / value[b, p, i] for i in range(n)] for p in prompts]


if __name__ == "__main__":
    main()

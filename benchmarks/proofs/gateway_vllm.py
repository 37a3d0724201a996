"""The gateway over vLLM itself: counters, choice, and a worker that dies.

Each part starts two servers of one model by the commands that `parlay deploy render` prints, one
that speculates and one plain, and a gateway in front of them. Shown: per-answer figures, the page's
own counters and what the gateway, `parlay bench --endpoint` and `parlay ab` make of them are equal;
a worker killed under load answers 500 and fails its health check, and the other server takes over.

ngram: n-gram speculation with data parallel 2, so that counters stand under two engine labels.
draft: a draft model, the one that comes with Parlay.
nodes: n-gram with tensor parallel 2 over two nodes of this machine, a small random model.

Example: python -m benchmarks.proofs.gateway_vllm --vllm VENV/bin/vllm --model smollm2-hf
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.shared import served, vllm_servers
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.traffic import Got, streamed
from benchmarks.shared.vllm_servers import NAME, Vllm
from parlay.bench.endpoint import Client, EndpointArm, discover
from parlay.bench.record import ArmInfo
from parlay.bench.subject import Ask
from parlay.bench.suite import load_suite
from parlay.hub.resolving import resolve_drafter

DRAFTED = "vllm:spec_decode_num_draft_tokens_total{"
TOPICS = ("rain", "bread", "bees", "salt", "glass", "maps")


@dataclass(frozen=True)
class Bench:
    """A gateway, and what is behind it."""

    gateway: str
    fast: Vllm
    slow: Vllm
    max_tokens: int


def main() -> None:
    args = _arguments()
    for name in args.parts:
        with ExitStack() as stack:
            folder = args.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            PARTS[name](args, place)


# -- parts --------------------------------------------------------------------------------------


def ngram(args: argparse.Namespace, folder: Path) -> None:
    """Two engines behind one page, then nobody left."""
    layout = [["--data-parallel-size", "2"]]
    with bench(args, folder, args.model, "ngram", layout) as found:
        print(f"vLLM {found.fast.version()}: n-gram with data parallel 2; one plain\n")
        equal_counters(found)
        choice(found)
        clients(found)
        a_worker_dies(found, found.slow)
        a_worker_dies(found, found.fast)


def draft(args: argparse.Namespace, folder: Path) -> None:
    """The drafter that comes with Parlay, drafting for vLLM."""
    drafter = folder / "drafter"
    make(args, "gguf_to_hf.py", resolve_drafter("default"), drafter)
    with bench(args, folder, args.model, str(drafter), [[]]) as found:
        print(f"vLLM {found.fast.version()}: a draft model; one plain\n")
        equal_counters(found)
        clients(found)


def nodes(args: argparse.Namespace, folder: Path) -> None:
    """One model over two nodes; the far one dies."""
    model = folder / "random"
    make(args, "random_hf.py", args.model, model)
    spread = ["--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    layout = [[*spread, "--node-rank", "0"], [*spread, "--node-rank", "1", "--headless"]]
    with bench(args, folder, model, "ngram", layout) as found:
        print(f"vLLM {found.fast.version()}: n-gram, tensor parallel 2 over two nodes; one plain\n")
        equal_counters(found)
        clients(found)
        a_worker_dies(found, found.fast)


PARTS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "ngram": ngram,
    "draft": draft,
    "nodes": nodes,
}


def make(args: argparse.Namespace, script: str, source: Path, out: Path) -> None:
    """A model, by a script that runs in vLLM's environment."""
    maker = Path(__file__).parents[1] / "models" / script
    command = [args.vllm.with_name("python"), maker, source, out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} failed: {done.stderr[-300:]}")


@contextmanager
def bench(
    args: argparse.Namespace,
    folder: Path,
    model: Path,
    drafter: str,
    layout: Sequence[Sequence[str]],
) -> Iterator[Bench]:
    """Both servers and the gateway; the plain one is the same without a bet, on one node."""
    with ExitStack() as stack:
        found = []
        for port, wanted, how in (
            (args.port, drafter, layout),
            (args.port + 1, "none", [[]]),
        ):
            path = vllm_servers.deployment(folder, model.resolve(), port, wanted)
            found.append(stack.enter_context(vllm_servers.started(args.vllm, path, port, how)))
        for server in found:
            vllm_servers.wait_until_up(server)
        fast, slow = found
        gateway = stack.enter_context(served.parlay(str(deployment(folder, fast, slow))))
        yield Bench(gateway.url, fast, slow, args.max_tokens)


def deployment(folder: Path, fast: Vllm, slow: Vllm) -> Path:
    path = folder / "speculative-deploy.yaml"
    content = {
        "engine": "endpoints",
        "upstreams": [
            {"name": "betting", "urls": [fast.url], "speculative": True, "max_concurrent": 8},
            {"name": "plain", "urls": [slow.url], "max_concurrent": 8},
        ],
        "server": {"port": 0},
        "gateway": {"health_interval_s": 0.5},
    }
    path.write_text(yaml.safe_dump(content))
    return path


# -- asking -------------------------------------------------------------------------------------


def ask(url: str, topic: str, **more: Any) -> Got:
    content = f"Repeat this line five times: the {topic} and the {topic} and the {topic}."
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
    return streamed(f"{url}/v1/chat/completions", {**body, "temperature": 0, **more})


def metric(url: str, name: str) -> int:
    page = httpx.get(f"{url}/metrics", timeout=30).text
    rows = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    return round(sum(float(row.rsplit(" ", 1)[1]) for row in rows))


# -- what is shown ------------------------------------------------------------------------------


def equal_counters(found: Bench) -> None:
    """Answers, the page, and the gateway's reading of it."""
    gateway, fast = found.gateway, found.fast
    before = fast.counters()
    answers = [ask(gateway, topic, speculation=True) for topic in TOPICS]
    plain = [ask(gateway, topic, speculation=False) for topic in TOPICS]
    time.sleep(2)  # until the gateway has read the page again
    after = fast.counters()
    page = httpx.get(f"{fast.url}/metrics", timeout=30).text
    engines = [line for line in page.splitlines() if line.startswith(DRAFTED)]
    print("Counters")
    for line in engines:
        print(f"   {line}")
    same = sum(a.text == b.text for a, b in zip(answers, plain, strict=True))
    rows = {
        "by answers through the gateway": tuple(
            sum(got.told[name] for got in answers) for name in ("drafted", "accepted")
        ),
        "by vLLM's page, summed over engines": (
            after.drafted - before.drafted,
            after.accepted - before.accepted,
        ),
        "by the gateway's /metrics": (
            metric(gateway, "parlay_upstream_drafted_tokens_total") - before.drafted,
            metric(gateway, "parlay_upstream_accepted_tokens_total") - before.accepted,
        ),
    }
    show(rows)
    print(f"   texts equal with and without speculation: {same} of {len(TOPICS)}\n")


def choice(found: Bench) -> None:
    """Requests that leave it to the gateway."""
    made = [ask(found.gateway, TOPICS[i % len(TOPICS)]).told for i in range(24)]
    print("Choice, by measured time per token")
    for (pool, why), n in Counter((told["pool"], told["reason"]) for told in made).items():
        print(f"   {n:3d} requests to {pool} ({why})")
    print(f"   ms per token: {made[-1]['ms_per_token']}\n")


def clients(found: Bench) -> None:
    """`parlay bench` of two servers against vLLM's own counters."""
    print("parlay bench against the same server")
    fast = found.fast
    warm = warm_up_counts(fast, found.max_tokens)
    before = fast.counters()
    told = acceptance(found)
    after = fast.counters()
    seen = (after.drafted - before.drafted, after.accepted - before.accepted)
    counted = (seen[0] - warm[0], seen[1] - warm[1])
    show({"by parlay bench": told, "by vLLM's counters, less the warm-up": counted})
    print()


def warm_up_counts(fast: Vllm, max_tokens: int) -> tuple[int, int]:
    """What a run's own warm-up adds, which is no part of its figures. Greedy, so repeatable."""
    client = Client(fast.url)
    arm = EndpointArm(client, discover(client), ArmInfo(name="x", kind="vllm", method="unknown"))
    before = fast.counters()
    arm.warm_up(Ask(load_suite("core-12").prompts[0], max_tokens, 0.0, 0, 120.0))
    after = fast.counters()
    client.close()
    return after.drafted - before.drafted, after.accepted - before.accepted


def acceptance(found: Bench) -> tuple[int, int]:
    """Drafted and accepted tokens, as the verb's own JSON has them."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["bench", found.slow.url, found.fast.url, "--pairs", "1", "--json"]
        command += ["-n", str(found.max_tokens), "--out", f"{folder}/out"]
        done = subprocess.run(
            [Path(sys.executable).with_name("parlay"), *command],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        counts = json.loads(done.stdout)["comparisons"][0]["acceptance"]["counts"]
    except (ValueError, KeyError, TypeError):
        sys.exit(f"parlay bench failed: {done.stderr[-300:]}")
    return counts["drafted"], counts["accepted"]


def a_worker_dies(found: Bench, server: Vllm) -> None:
    """Under load, in the middle of answers."""
    seen: list[Got] = []
    slots = httpx.get(f"{found.gateway}/slots").json()
    (own,) = (slot for slot in slots if slot["server"] == server.url)
    wanted = {"speculation": own["speculative"]}

    def client(n: int) -> None:
        for i in range(6):
            seen.append(ask(found.gateway, TOPICS[(n + i) % len(TOPICS)], **wanted))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while len(seen) < 4:
        time.sleep(0.05)
    server.worker().kill()
    said = after_death(server)
    for thread in threads:
        thread.join()
    where = "" if len(server.nodes) == 1 else ", on its second node,"
    print(f"A worker of {own['pool']}{where} killed under load")
    print(f"   {said}")
    show_outcome(seen)
    for slot in httpx.get(f"{found.gateway}/slots").json():
        print(f"   {slot['pool']}: {slot['state']} {slot['reason'] or ''}".rstrip())
    print()


def show_outcome(seen: list[Got]) -> None:
    """Who answered, and what became of the others."""
    print(f"   requests: {len(seen)}, answered {sum(got.failed is None for got in seen)}")
    answered = (got.told for got in seen if got.failed is None)
    for (pool, why), n in Counter((told["pool"], told["reason"]) for told in answered).items():
        print(f"     {n:3d} by {pool} ({why})")
    print(f"   failed after their first byte: {sum(bool(g.failed) and g.begun for g in seen)}")
    print(f"   failed before it: {sum(bool(g.failed) and not g.begun for g in seen)}")


def after_death(server: Vllm) -> str:
    """What vLLM itself says once it has noticed; it may end altogether a little later."""
    time.sleep(0.5)
    direct = ask(server.url, "rain", model=NAME)
    try:
        health = str(httpx.get(f"{server.url}/health", timeout=10).status_code)
    except httpx.HTTPError as error:
        health = type(error).__name__
    lives = "lives" if server.nodes[0].poll() is None else "has ended"
    return f"asked itself: {direct.failed}; its /health: {health}; its process {lives}"


def show(rows: dict[str, tuple[int, int]]) -> None:
    for name, (drafted, accepted) in rows.items():
        share = accepted / drafted if drafted else 0.0
        print(f"   {name:38} drafted {drafted:5d}  accepted {accepted:5d}  {share:.4f}")
    verdict = "equal" if len(set(rows.values())) == 1 else "NOT EQUAL"
    print(f"   {verdict}")


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--vllm", type=Path, required=True, help="the vllm command of its environment"
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="folder by benchmarks/models/gguf_to_hf.py"
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--logs", type=Path, help="keep vLLM's logs in this folder")
    parser.add_argument("--port", type=int, default=8101)
    parser.add_argument("--max-tokens", type=int, default=24)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The gateway over vLLM itself: counters, choice, and a worker that dies.

Two servers of one model: one speculates (n-gram) with data parallel 2, so that its counters stand
under two engine labels; one is plain. Shown: per-answer figures, the page's own counters and what
the gateway, `parlay bench --endpoint` and `parlay ab` make of them are equal; then the plain
server's worker is killed under load: it answers 500 and fails its health check, and the other
server takes over; last a worker of the other one, and nobody is left.

Example: python benchmarks/gateway_vllm.py --vllm VENV/bin/vllm --model smollm2-hf
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks import served
from parlay.bench.endpoint import Client, EndpointArm, discover
from parlay.bench.subject import ArmInfo, Ask
from parlay.bench.suite import load_suite
from parlay.reading import counters

START_S = 400.0
NAME = "target"
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
DRAFTED = "vllm:spec_decode_num_draft_tokens_total{"
TOPICS = ("rain", "bread", "bees", "salt", "glass", "maps")
# Nothing of the machine's accelerators or of a hub is wanted here.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Vllm:
    """A server that runs."""

    url: str
    process: subprocess.Popen[bytes]

    def counters(self) -> counters.Counters:
        return counters.parse(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def worker(self) -> psutil.Process:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return next(p for p in found if "VLLM::Worker" in " ".join(p.cmdline()))


@dataclass
class Got:
    """What one client saw of one request."""

    text: str = ""
    begun: bool = False
    failed: str | None = None
    told: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    args = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        betting = ["--data-parallel-size", "2", "--api-server-count", "1"]
        betting += ["--speculative-config", json.dumps(SPECULATION)]
        betting += ["--per-request-spec-decode-metrics", "summary"]
        fast = stack.enter_context(vllm(args, args.port, folder / "fast.log", betting))
        slow = stack.enter_context(vllm(args, args.port + 1, folder / "slow.log", []))
        for server in (fast, slow):
            wait_until_up(server)
        gateway = stack.enter_context(served.parlay(str(deployment(folder, fast, slow))))
        print(f"vLLM {version(fast.url)}: one server with data parallel 2, one plain\n")
        equal_counters(gateway.url, fast)
        choice(gateway.url)
        clients(fast, slow, folder, args)
        a_worker_dies(4, gateway.url, slow)
        a_worker_dies(5, gateway.url, fast)


@contextmanager
def vllm(args: argparse.Namespace, port: int, log: Path, more: Sequence[str]) -> Iterator[Vllm]:
    command = [args.vllm, "serve", args.model, "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), *more]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}
        )
    try:
        yield Vllm(f"http://127.0.0.1:{port}", process)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """It and all it started; a server whose worker died may be gone already."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()


def wait_until_up(server: Vllm) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            sys.exit(f"vLLM ended at its start with code {server.process.returncode}")
        try:
            if httpx.get(f"{server.url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    sys.exit("vLLM did not start in time")


def version(url: str) -> str:
    return str(httpx.get(f"{url}/version").json()["version"])


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
    body |= {"temperature": 0, "stream": True, **more}
    got = Got()
    try:
        path = f"{url}/v1/chat/completions"
        with httpx.stream("POST", path, json=body, timeout=120) as response:
            if response.status_code != 200:
                response.read()
                got.failed = f"HTTP {response.status_code}"
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    _take(got, json.loads(line[6:]))
    except httpx.HTTPError as error:
        got.failed = type(error).__name__
    return got


def _take(got: Got, chunk: dict[str, Any]) -> None:
    got.begun = True
    got.told = chunk.get("speculative") or got.told
    if "error" in chunk:
        got.failed = chunk["error"]["message"]
    elif chunk["choices"]:
        got.text += chunk["choices"][0]["delta"].get("content") or ""


def metric(url: str, name: str) -> int:
    page = httpx.get(f"{url}/metrics", timeout=30).text
    rows = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    return round(sum(float(row.rsplit(" ", 1)[1]) for row in rows))


# -- what is shown ------------------------------------------------------------------------------


def equal_counters(gateway: str, fast: Vllm) -> None:
    """Answers, the page, and the gateway's reading of it."""
    before = fast.counters()
    answers = [ask(gateway, topic, speculative=True) for topic in TOPICS]
    plain = [ask(gateway, topic, speculative=False) for topic in TOPICS]
    time.sleep(2)  # until the gateway has read the page again
    after = fast.counters()
    page = httpx.get(f"{fast.url}/metrics", timeout=30).text
    engines = [line for line in page.splitlines() if line.startswith(DRAFTED)]
    print("1. counters")
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


def choice(gateway: str) -> None:
    """Requests that leave it to the gateway."""
    made = [ask(gateway, TOPICS[i % len(TOPICS)]).told for i in range(24)]
    print("2. choice, by measured time per token")
    for (pool, why), n in Counter((told["pool"], told["reason"]) for told in made).items():
        print(f"   {n:3d} requests to {pool} ({why})")
    print(f"   ms per token: {made[-1]['ms_per_token']}\n")


def clients(fast: Vllm, slow: Vllm, folder: Path, args: argparse.Namespace) -> None:
    """`parlay bench --endpoint` and `parlay ab` against vLLM's own counters."""
    print("3. parlay bench --endpoint and parlay ab against the same server")
    warm = warm_up_counts(fast, args)
    for verb in ("bench", "ab"):
        before = fast.counters()
        told = acceptance(verb, [slow.url, fast.url], folder, args)
        after = fast.counters()
        seen = (after.drafted - before.drafted, after.accepted - before.accepted)
        rows = {
            f"by parlay {verb}": told,
            "by vLLM's counters, less the warm-up": (seen[0] - warm[0], seen[1] - warm[1]),
        }
        show(rows)
    print()


def warm_up_counts(fast: Vllm, args: argparse.Namespace) -> tuple[int, int]:
    """What a run's own warm-up adds, which is no part of its figures. Greedy, so repeatable."""
    client = Client(fast.url)
    arm = EndpointArm(client, discover(client), ArmInfo(name="x", kind="vllm", method="unknown"))
    before = fast.counters()
    arm.warm_up(Ask(load_suite("core-12").prompts[0], args.max_tokens, 0.0, 0, 120.0))
    after = fast.counters()
    client.close()
    return after.drafted - before.drafted, after.accepted - before.accepted


def acceptance(
    verb: str, urls: list[str], folder: Path, args: argparse.Namespace
) -> tuple[int, int]:
    """Drafted and accepted tokens, as the verb's own JSON has them."""
    common = ["--pairs", "1", "-n", str(args.max_tokens), "--json"]
    if verb == "bench":
        command = ["bench", "--endpoint", urls[0], "--endpoint", urls[1]]
        command += ["--out", str(folder / "bench"), *common]
    else:
        command = ["ab", *urls, "--history", str(folder / "history.jsonl"), *common]
    done = subprocess.run(
        [Path(sys.executable).with_name("parlay"), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        record = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"parlay {verb} failed: {done.stderr[-300:]}")
    found = record["comparison"] if verb == "ab" else record["comparisons"][0]
    counts = found["acceptance"]["counts"]
    return counts["drafted"], counts["accepted"]


def a_worker_dies(number: int, gateway: str, server: Vllm) -> None:
    """Under load, in the middle of answers."""
    found: list[Got] = []
    slots = httpx.get(f"{gateway}/slots").json()
    (own,) = (slot for slot in slots if slot["server"] == server.url)
    wanted = {"speculative": own["speculative"]}

    def client(n: int) -> None:
        for i in range(6):
            found.append(ask(gateway, TOPICS[(n + i) % len(TOPICS)], **wanted))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while len(found) < 4:
        time.sleep(0.05)
    server.worker().kill()
    seen = after_death(server)
    for thread in threads:
        thread.join()
    print(f"{number}. a worker of {own['pool']} killed under load")
    print(f"   {seen}")
    print(f"   requests: {len(found)}, answered {sum(got.failed is None for got in found)}")
    for (pool, why), n in Counter(
        (got.told["pool"], got.told["reason"]) for got in found if got.failed is None
    ).items():
        print(f"     {n:3d} by {pool} ({why})")
    print(f"   failed after their first byte: {sum(bool(g.failed) and g.begun for g in found)}")
    print(f"   failed before it: {sum(bool(g.failed) and not g.begun for g in found)}")
    for slot in httpx.get(f"{gateway}/slots").json():
        print(f"   {slot['pool']}: {slot['state']} {slot['reason'] or ''}")
    print()


def after_death(server: Vllm) -> str:
    """What vLLM itself says once it has noticed; it may end altogether a little later."""
    time.sleep(0.5)
    direct = ask(server.url, "rain", model=NAME)
    try:
        health = str(httpx.get(f"{server.url}/health", timeout=10).status_code)
    except httpx.HTTPError as error:
        health = type(error).__name__
    lives = "lives" if server.process.poll() is None else "has ended"
    return f"asked itself: {direct.failed}; its /health: {health}; its process {lives}"


def show(rows: dict[str, tuple[int, int]]) -> None:
    for name, (drafted, accepted) in rows.items():
        share = accepted / drafted if drafted else 0.0
        print(f"   {name:38} drafted {drafted:5d}  accepted {accepted:5d}  {share:.4f}")
    verdict = "equal" if len(set(rows.values())) == 1 else "NOT EQUAL"
    print(f"   {verdict}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True, help="the vllm command of its environment")
    parser.add_argument("--model", required=True, help="folder by benchmarks/gguf_to_hf.py")
    parser.add_argument("--port", type=int, default=8101)
    parser.add_argument("--max-tokens", type=int, default=24)
    return parser.parse_args()


if __name__ == "__main__":
    main()

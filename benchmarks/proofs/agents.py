"""Real agents and SDKs against a local server: is every request answered, in the right shape?

Installs them from the package registries into a folder, then drives each one, without a network,
against a Parlay of the default model. The model is too small to finish their tasks: what counts is
that no request is refused and that the second turn reads only what is new.

    python -m benchmarks.proofs.agents --folder /tmp/agents --json agents.json
    python -m benchmarks.proofs.agents --only claude,codex
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared import served
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.record import keep

ASK = "Say hello in one word."
AGAIN = "And once more."
MODEL = "parlay"
LIMIT_S = 900


@dataclass(frozen=True)
class Place:
    """Where an agent runs: its programs, a home of its own, and the server."""

    folder: Path
    home: Path
    url: str

    def program(self, kind: str, name: str) -> str:
        if kind == "npm":
            return str(self.folder / "npm" / "node_modules" / ".bin" / name)
        return str(self.folder / kind / "bin" / name)


@dataclass(frozen=True)
class Turn:
    """One command of an agent."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agent:
    """What is installed, and how it is asked; two turns where it can go on from the first."""

    name: str
    kind: str  # npm, or the name of a virtual environment
    packages: tuple[str, ...]
    turns: Callable[[Place], list[Turn]]


@dataclass
class Outcome:
    """What one agent did."""

    name: str
    version: str
    exit_codes: list[int]
    requests: list[dict[str, Any]]
    seconds: float
    output: str

    @property
    def worked(self) -> bool:
        statuses = [request["status"] for request in self.requests]
        return bool(statuses) and all(status == 200 for status in statuses)

    @property
    def reused(self) -> float | None:
        """Of the last request's prompt, the share that was not read again."""
        told = [request for request in self.requests if request.get("prompt_tokens")]
        return told[-1]["reused_tokens"] / told[-1]["prompt_tokens"] if len(told) > 1 else None


# -- the agents ---------------------------------------------------------------------------------


def claude(place: Place) -> list[Turn]:
    env = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "48",
        "API_TIMEOUT_MS": str(1000 * LIMIT_S),  # its own is five minutes: too short for two cores
        "CLAUDE_CONFIG_DIR": str(place.home),
    }
    base = [place.program("npm", "claude"), "-p", "--max-turns", "1"]
    return [Turn([*base, ASK], env), Turn([*base, "--continue", AGAIN], env)]


def codex(place: Place) -> list[Turn]:
    (place.home / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "parlay"\n\n[model_providers.parlay]\n'
        f'name = "Parlay"\nbase_url = "{place.url}/v1"\nwire_api = "responses"\n'
    )
    base = [place.program("npm", "codex"), "exec"]
    env = {"CODEX_HOME": str(place.home)}
    options = ["--skip-git-repo-check", "--sandbox", "read-only"]
    return [
        Turn([*base, *options, ASK], env),
        Turn([*base, "resume", "--skip-git-repo-check", "--last", AGAIN], env),
    ]


def opencode(place: Place) -> list[Turn]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Parlay",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {MODEL: {"name": MODEL, "limit": {"context": 16384, "output": 48}}},
    }
    config = {"provider": {"parlay": provider}, "autoupdate": False, "share": "disabled"}
    (place.home / "opencode.json").write_text(json.dumps(config))
    env = {"OPENCODE_CONFIG": str(place.home / "opencode.json")}
    base = [place.program("npm", "opencode"), "run", "-m", f"parlay/{MODEL}"]
    return [Turn([*base, ASK], env), Turn([*base, "--continue", AGAIN], env)]


def aider(place: Place) -> list[Turn]:
    env = {"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": "none"}
    base = [place.program("aider", "aider"), "--model", f"openai/{MODEL}", "--no-git", "--yes"]
    base += ["--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
    base += ["--no-show-release-notes", "--map-tokens", "0", "--restore-chat-history"]
    return [Turn([*base, "--message", text], env) for text in (ASK, AGAIN)]


def llm(place: Place) -> list[Turn]:
    (place.home / "extra-openai-models.yaml").write_text(
        f'- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: "{place.url}/v1"\n'
    )
    env = {"LLM_USER_PATH": str(place.home), "OPENAI_API_KEY": "none"}
    base = [place.program("py", "llm"), "-m", MODEL, "-o", "max_tokens", "48"]
    return [Turn([*base, ASK], env), Turn([*base, "-c", AGAIN], env)]


_LANGCHAIN = """
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
class City(BaseModel):
    name: str
for responses in (False, True):
    model = ChatOpenAI(model="{model}", base_url="{url}/v1", api_key="none", max_tokens=64,
                       use_responses_api=responses)
    print(model.invoke("{ask}").content)
    print([part.content for part in model.stream("{ask}")][-1:])
    print(model.with_structured_output(City).invoke("Name a city."))
"""
_PYDANTIC_AI = """
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
class City(BaseModel):
    name: str
provider = OpenAIProvider(base_url="{url}/v1", api_key="none")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    agent = Agent(kind("{model}", provider=provider), model_settings=dict(max_tokens=64))
    first = agent.run_sync("{ask}")
    print(first.output)
    print(agent.run_sync("{again}", message_history=first.all_messages()).output)
    typed = Agent(kind("{model}", provider=provider), output_type=City, retries=3)
    print(typed.run_sync("Name a city.").output)
"""
_INSTRUCTOR = """
import instructor
from openai import OpenAI
from pydantic import BaseModel
class City(BaseModel):
    name: str
client = OpenAI(base_url="{url}/v1", api_key="none")
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    made = instructor.from_openai(client, mode=mode)
    print(made.chat.completions.create(model="{model}", response_model=City, max_tokens=64,
          messages=[dict(role="user", content="Name a city.")]))
"""


def script(text: str) -> Callable[[Place], list[Turn]]:
    def turns(place: Place) -> list[Turn]:
        path = place.home / "ask.py"
        filled = text.format(url=place.url, model=MODEL, ask=ASK, again=AGAIN)
        path.write_text(filled)
        return [Turn([place.program("py", "python"), str(path)])]

    return turns


AGENTS = (
    Agent("codex", "npm", ("@openai/codex",), codex),
    Agent("opencode", "npm", ("opencode-ai",), opencode),
    Agent("claude", "npm", ("@anthropic-ai/claude-code",), claude),
    Agent("aider", "aider", ("aider-chat",), aider),
    Agent("llm", "py", ("llm",), llm),
    Agent("langchain-openai", "py", ("langchain-openai",), script(_LANGCHAIN)),
    Agent("pydantic-ai", "py", ("pydantic-ai-slim[openai]",), script(_PYDANTIC_AI)),
    Agent("instructor", "py", ("instructor",), script(_INSTRUCTOR)),
)


# -- installing -----------------------------------------------------------------------------------


def install(agents: list[Agent], folder: Path) -> None:
    """Only what is missing."""
    for kind in dict.fromkeys(agent.kind for agent in agents):
        wanted = [p for agent in agents if agent.kind == kind for p in agent.packages]
        done = folder / f"{kind}.installed"
        missing = sorted(set(wanted) - set(done.read_text().split() if done.exists() else ()))
        if not missing:
            continue
        if kind == "npm":
            (folder / kind).mkdir(parents=True, exist_ok=True)
            _run(["npm", "install", "--no-audit", "--no-fund", *missing], cwd=folder / kind)
        else:
            if not (folder / kind).exists():
                _run([sys.executable, "-m", "venv", str(folder / kind)])
            _run([str(folder / kind / "bin" / "pip"), "install", "-q", *missing])
        done.write_text("\n".join(sorted(set(wanted))))


def version_of(agent: Agent, folder: Path) -> str:
    name = agent.packages[0].partition("[")[0]
    if agent.kind == "npm":
        found = folder / "npm" / "node_modules" / name / "package.json"
        return str(json.loads(found.read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    python = str(folder / agent.kind / "bin" / "python")
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _run(command: list[str], cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


# -- driving ------------------------------------------------------------------------------------


@contextmanager
def parlay(folder: Path, model: str, context: int, threads: int) -> Iterator[tuple[str, Path]]:
    """A server: its address and its request log."""
    log = folder / "requests.jsonl"
    settings = {
        "server.max_answer_tokens": 48,
        "runtime.context_size": context,
        "runtime.threads": threads,
        "runtime.slots": 2,
        "model.alias": f"[{MODEL}]",
        "monitoring.request_log": log,
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with served.parlay("--port", "0", "--model", model, *sets) as server:
        yield server.url, log


def drive(agent: Agent, folder: Path, url: str, log: Path) -> Outcome:
    started, before = time.perf_counter(), _lines(log)
    codes, output = [], ""
    with _folder() as home, _folder() as work:
        for turn in agent.turns(Place(folder, Path(home), url)):
            code, text = _turn(turn, Path(home), Path(work))
            codes.append(code)
            output += text
    requests = _lines(log)[len(before) :]
    version = version_of(agent, folder)
    return Outcome(agent.name, version, codes, requests, time.perf_counter() - started, output)


def _folder() -> TemporaryDirectory[str]:
    """What an agent left running may still write there."""
    return TemporaryDirectory(ignore_cleanup_errors=True)


def _turn(turn: Turn, home: Path, work: Path) -> tuple[int, str]:
    """Without a network: every other host is behind a proxy that is not there."""
    nowhere = "http://127.0.0.1:9"
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1,localhost"}
    env |= {
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "TERM": "dumb",
        "XDG_CONFIG_HOME": str(home),
    }
    with subprocess.Popen(
        turn.command,
        env=env | turn.env,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that what it started can be ended with it
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 124, output.decode("utf-8", "replace")
    return process.returncode, output.decode("utf-8", "replace")


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def told(outcome: Outcome) -> str:
    formats = ", ".join(sorted({request["endpoint"] for request in outcome.requests}))
    statuses = " ".join(str(request["status"]) for request in outcome.requests)
    reused = "" if outcome.reused is None else f"{outcome.reused:.0%}"
    verdict = "yes" if outcome.worked else "no"
    row = (outcome.name, outcome.version, formats, verdict, statuses, reused, outcome.exit_codes)
    return " | ".join(map(str, row))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="where they are installed; kept")
    parser.add_argument("--only", default="", help="names with commas between")
    parser.add_argument("--model", default="default")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="everything, as JSON")
    parser.add_argument("--show", action="store_true", help="what each of them printed")
    args = parser.parse_args()
    names = set(filter(None, args.only.split(",")))
    chosen = [agent for agent in AGENTS if not names or agent.name in names]
    outcomes = []
    with TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        install(chosen, folder)
        with parlay(Path(temporary), args.model, args.context, args.threads) as (url, log):
            print("agent | version | formats | worked | statuses | reused | exit codes")
            for agent in chosen:
                outcome = drive(agent, folder, url, log)
                outcomes.append(outcome)
                print(told(outcome), flush=True)
                if args.show:
                    print(outcome.output[-3000:])
    keep(args.json, outcomes)


if __name__ == "__main__":
    main()

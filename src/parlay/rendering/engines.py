"""The command that serves a deployment: Parlay's own, or that of vLLM, SGLang or llama-server.

Knows engines' flags and accounts for every key of the file; knows no file format. Flags are those
of vLLM 0.32.0, SGLang 0.5.23 and the llama.cpp that Parlay calls.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.deployment import Deployment, Section, flag_of
from parlay.errors import BadRequest, ParlayError
from parlay.llama.header import read_parts
from parlay.llama.settings import ALL, Adapter
from parlay.models import DEFAULT_NAMES, SHIPPED_DRAFTERS, default_file
from parlay.routing import parse_draft

FREE = ("ngram", "suffix")
_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"  # of the default model
_ALL_LAYERS = 99  # what people write for all of them
_ROPE = ("rope", "yarn")


class RenderError(BadRequest):
    """The deployment cannot be carried over to that engine or format, and why."""


@dataclass(slots=True)
class Launch:
    """A command in the making, and what became of each key of the deployment."""

    engine: str
    deployment: Deployment
    image: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    secret: str | None = None  # the variable that must hold the key
    folders: list[str] = field(default_factory=list)  # to be mounted in containers
    notes: list[str] = field(default_factory=list)
    carried: dict[str, str] = field(default_factory=dict)  # key -> by what
    left: dict[str, str] = field(default_factory=dict)  # key -> why not

    @property
    def name(self) -> str:
        """Of the service: lower case letters, digits and dashes, as every tool takes them."""
        alias = next(iter(self.deployment.model.alias), Path(self.deployment.model.target).stem)
        cleaned = re.sub(r"[^a-z0-9]+", "-", alias.lower()).strip("-")[:40].strip("-")
        return cleaned if cleaned[:1].isalpha() else f"model-{cleaned}".strip("-")

    @property
    def gpus(self) -> bool:
        return self.deployment.runtime.gpu_layers != 0

    def flag(self, key: str, flag: str, *values: object) -> None:
        """Carry a key by a flag."""
        self.argv += [flag, *map(str, values)]
        self.carried[key] = flag

    def given(self, key: str, flag: str, value: object, otherwise: str) -> None:
        """By a flag where something was given, else as the engine does it by itself."""
        if value in (None, "", 0, (), False):
            self.carried[key] = otherwise
        else:
            self.flag(key, flag, value)

    def either(self, key: str, carried: bool, how: str, why: str) -> None:
        """Carry a key as it is done anyway, or leave it behind for a reason."""
        (self.carried if carried else self.left)[key] = how if carried else why

    def mount(self, name: str) -> None:
        """A container must see the folder of this file."""
        path = Path(name)
        folder = str(path.parent if path.suffix else path)
        if path.is_absolute() and folder not in self.folders:
            self.folders.append(folder)

    def finish(self) -> Launch:
        """Keys that nobody spoke of are left behind, too."""
        for key in keys_of(self.deployment):
            if key not in self.carried:
                self.left.setdefault(key, f"{self.engine} has nothing like it")
        return self


def keys_of(deployment: Deployment) -> Iterator[str]:
    """Every key with dots, those of llama.cpp by their flags."""
    for name in type(deployment).model_fields:
        part = getattr(deployment, name)
        if not isinstance(part, Section):
            yield name
            continue
        for key in type(part).model_fields:
            value = getattr(part, key)
            if isinstance(value, Section):
                yield from (f"{name}.{key}.{flag_of(f)}" for f in type(value).model_fields)
            else:
                yield f"{name}.{key}"


def set_in_file(deployment: Deployment, key: str) -> bool:
    """Whether somebody said it, or it is the default."""
    node: Any = deployment
    for part in key.split("."):
        if not isinstance(node, Section):
            return False
        names = {f.alias or name: name for name, f in type(node).model_fields.items()}
        if names[part] not in node.model_fields_set:
            return False
        node = getattr(node, names[part])
    return True


def launch(engine: str, deployment: Deployment) -> Launch:
    """How this engine would serve the deployment."""
    if engine not in ENGINES:
        raise RenderError(f"no engine {engine!r}; known: {', '.join(ENGINES)}")
    made = ENGINES[engine](deployment).finish()
    for word in (*made.argv, *made.folders):
        if any(ord(c) < 32 or c in "\x7f\x85\u2028\u2029" for c in word):
            raise RenderError(f"{word!r:.60} holds a control character; rename it")
    return made


def own(deployment: Deployment) -> Launch:
    """Parlay itself: every key as `--set`, but for what stands in no flag."""
    made = Launch("Parlay", deployment, "parlay", ["parlay", "serve"])
    for key in keys_of(deployment):
        section, _, rest = key.partition(".")
        if key == "server.api_keys":
            made.secret = "PARLAY_API_KEYS" if deployment.server.api_keys else None
            made.carried[key] = "PARLAY_API_KEYS"
        elif not rest:
            made.either(key, not set_in_file(deployment, key), "as it is", "only a file can say it")
        elif set_in_file(deployment, key):
            node: Any = getattr(deployment, section).model_dump(mode="json", by_alias=True)
            for part in rest.split("."):
                node = node[part]
            made.argv += ["--set", f"{key}={json.dumps(node)}"]
            made.carried[key] = "--set"
            if key in ("model.target", "server.api_keys_file"):
                made.mount(str(node))
        else:
            made.carried[key] = "the default"
    return made


# -- what is drafted with ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drafting:
    """In words that every engine's flags can be made from; `others` are left out."""

    method: str  # none, ngram, suffix, draft_model, eagle3, dflash
    model: str | None
    window: int
    others: tuple[str, ...] = ()


def drafting(deployment: Deployment) -> Drafting:
    """One way of drafting: the drafter's file by its own architecture, else without a model."""
    names = parse_draft(deployment.model.drafter)
    free = tuple("suffix" if n == "auto" else n for n in names if n in (*FREE, "auto"))
    files = [str(SHIPPED_DRAFTERS.get(n, n)) for n in names if n not in (*FREE, "auto")]
    window = deployment.runtime.fixed_window
    if not names or not window:
        return Drafting("none", None, 0)
    if not files:
        return Drafting(free[0], None, window, free[1:])
    kind = "draft_model"
    if files[0].endswith(".gguf") and Path(files[0]).is_file():
        try:
            architecture = read_parts(Path(files[0]))[0].text("general.architecture")
        except ParlayError:
            architecture = None
        kind = architecture if architecture in ("eagle3", "dflash") else kind
    return Drafting(kind, files[0], window, free)


def _window(made: Launch, how: str) -> None:
    adaptive = made.deployment.runtime.adaptive
    why = f"the controller chooses it here; {made.engine} drafts so much in every round"
    made.either("runtime.speculative_window", not adaptive, how, why)


# -- engines that read repositories -----------------------------------------------------------


def _repository(name: str, key: str, engine: str) -> str:
    if name in DEFAULT_NAMES:
        return _REPOSITORY
    if name.endswith(".gguf"):
        raise RenderError(
            f"{engine} does not read {Path(name).name}; name the same model as a repository or a"
            f" folder of safetensors: --set {key}=ORG/MODEL"
        )
    return name


def _of_repositories(made: Launch, flags: Mapping[str, str]) -> None:
    """What vLLM and SGLang have by other names of the same meaning, and what neither has."""
    d, runtime = made.deployment, made.deployment.runtime
    if runtime.context_size == "auto":
        made.left["runtime.context_size"] = f"{made.engine} takes the model's own"
    else:
        made.flag("runtime.context_size", flags["context"], runtime.context_size)
    made.flag("runtime.slots", flags["slots"], runtime.slots)
    made.flag("server.host", "--host", d.server.host)
    made.flag("server.port", "--port", d.server.port)
    stops = runtime.context_full == "stop"
    made.either("runtime.context_full", stops, "it always stops", "it stops at the context's end")
    layers = runtime.gpu_layers
    every = layers == ALL or (layers != "auto" and layers >= _ALL_LAYERS)
    if layers == 0:
        made.notes.append("gpu_layers 0: use a build for CPUs")
    made.either(
        "runtime.gpu_layers", every or layers == 0, "all or none", "it counts GB in RAM, not layers"
    )
    made.either("model.tokenizer", d.model.tokenizer is None, "the model's", "it reads its own")
    made.left["monitoring.metrics_endpoint"] = f"{made.engine} has Prometheus at /metrics"
    gate = f"{made.engine} has no gate on acceptance"
    for key in ("min_token_acceptance", "min_sequence_acceptance", "fallback_threshold_pct"):
        made.left[f"runtime.{key}"] = gate
    exact = f"{made.engine} promises the target's distribution, not the bytes of plain decoding"
    made.left |= {"runtime.mode": exact, "runtime.exact_class": exact}


def vllm(deployment: Deployment) -> Launch:
    """`vllm serve`."""
    target = _repository(deployment.model.target, "model.target", "vLLM")
    made = Launch("vLLM", deployment, "vllm/vllm-openai:v0.32.0", ["vllm", "serve", target])
    made.carried["model.target"] = "the model's name"
    made.mount(target)
    if deployment.model.alias:
        made.flag("model.alias", "--served-model-name", *deployment.model.alias)
    _of_repositories(made, {"context": "--max-model-len", "slots": "--max-num-seqs"})
    bet = drafting(deployment)
    made.carried["model.drafter"] = "--speculative-config" if bet.window else "no speculation"
    if bet.window:
        config: dict[str, Any] = {"method": bet.method, "num_speculative_tokens": bet.window}
        if bet.method == "ngram":
            config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # our proposer's matches
        if bet.method == "suffix":
            made.notes.append("suffix decoding needs the package arctic-inference beside vLLM")
        if bet.model is not None:
            config["model"] = _repository(bet.model, "model.drafter", "vLLM")
            made.mount(config["model"])
        made.argv += ["--speculative-config", json.dumps(config, sort_keys=True)]
        made.argv += ["--per-request-spec-decode-metrics", "summary"]
        _window(made, "num_speculative_tokens")
        _left_out(made, bet)
    server, runtime = deployment.server, deployment.runtime
    made.flag("server.queue_size", "--max-num-queued-reqs", server.queue_size + runtime.slots)
    made.flag("server.drain_s", "--shutdown-timeout", math.ceil(server.drain_s))
    if server.cors_origins:
        made.flag("server.cors_origins", "--allowed-origins", json.dumps(server.cors_origins))
    if server.max_answer_tokens is not None:
        limit = json.dumps({"max_new_tokens": server.max_answer_tokens})
        made.flag("server.max_answer_tokens", "--override-generation-config", limit)
    kinds = {runtime.llama.cache_type_k, runtime.llama.cache_type_v}
    types = {"f16": "float16", "bf16": "bfloat16"}
    if len(kinds) == 1 and (kind := kinds.pop()) in types:
        made.flag("runtime.llama.cache-type-k", "--kv-cache-dtype", types[kind])
        made.carried["runtime.llama.cache-type-v"] = "--kv-cache-dtype"
    _one_key(made, "VLLM_API_KEY")
    return made


def sglang(deployment: Deployment) -> Launch:
    """`python -m sglang.launch_server`."""
    target = _repository(deployment.model.target, "model.target", "SGLang")
    command = ["python3", "-m", "sglang.launch_server", "--model-path", target]
    made = Launch("SGLang", deployment, "lmsysorg/sglang:v0.5.23", command)
    made.carried["model.target"] = "--model-path"
    made.mount(target)
    if deployment.model.alias:
        made.flag("model.alias", "--served-model-name", deployment.model.alias[0])
    _of_repositories(made, {"context": "--context-length", "slots": "--max-running-requests"})
    bet = drafting(deployment)
    made.carried["model.drafter"] = "--speculative-algorithm" if bet.window else "no speculation"
    if bet.window:
        algorithms = {"draft_model": "STANDALONE", "eagle3": "EAGLE3", "dflash": "DFLASH"}
        made.argv += ["--speculative-algorithm", algorithms.get(bet.method, "NGRAM")]
        if bet.method in ("draft_model", "eagle3"):  # chains, not trees
            made.argv += ["--speculative-num-steps", str(bet.window)]
            made.argv += ["--speculative-eagle-topk", "1"]
        made.argv += ["--speculative-num-draft-tokens", str(bet.window + 1)]
        if bet.model is not None:
            drafter = _repository(bet.model, "model.drafter", "SGLang")
            made.argv += ["--speculative-draft-model-path", drafter]
            made.mount(drafter)
        elif not made.gpus:
            raise RenderError("SGLang's n-gram proposer needs a GPU; set model.drafter: none")
        if bet.method == "suffix":
            made.notes.append("suffix: SGLang's nearest is NGRAM")
        _window(made, "--speculative-num-draft-tokens")
        _left_out(made, bet)
    if not made.gpus:
        made.argv += ["--device", "cpu"]
    made.flag("server.queue_size", "--max-queued-requests", deployment.server.queue_size)
    made.argv += ["--enable-metrics"]
    _one_key(made, "SGLANG_API_KEY")
    if made.secret:  # it reads none from the environment: the shell puts it in
        made.argv += ["--api-key", f"${made.secret}"]
        made.notes.append("SGLang takes its key as an argument, which others on the machine see")
    return made


def _left_out(made: Launch, bet: Drafting) -> None:
    if bet.others:
        names = ", ".join(bet.others)
        made.notes.append(f"model.drafter: {names} left out; {made.engine} takes one proposer")


def _one_key(made: Launch, variable: str) -> None:
    server = made.deployment.server
    if server.api_keys or server.api_keys_file:
        made.secret = variable
        made.carried["server.api_keys"] = f"{variable}, one key"
        if server.api_keys_file:
            made.left["server.api_keys_file"] = f"{made.engine} reads one key, from {variable}"


# -- llama.cpp's own server -------------------------------------------------------------------

_SPEC_TYPES = {
    "ngram": "ngram-simple",
    "suffix": "ngram-map-k",
    "draft_model": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
}


def _gguf(name: str) -> str:
    path = str(default_file()) if name in DEFAULT_NAMES else name
    if not path.endswith(".gguf"):
        raise RenderError(f"llama-server reads GGUF files, not {name}; give the file's path")
    return path


def llama_server(deployment: Deployment) -> Launch:
    """`llama-server`: the flags under `runtime.llama` are its own."""
    d, runtime, server = deployment, deployment.runtime, deployment.server
    target = _gguf(d.model.target)
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda"
    made = Launch("llama-server", d, image, ["llama-server", "--model", target])
    made.carried["model.target"] = "--model"
    made.mount(target)
    made.given("model.alias", "--alias", ",".join(d.model.alias), "the file's name")
    made.either("model.tokenizer", d.model.tokenizer is None, "its own", "it is not checked")
    adapters = [Adapter.parse(text) for text in d.model.lora]
    for adapter in adapters:
        made.mount(str(adapter.path))
    scaled = ",".join(f"{a.path}:{a.scale:g}" for a in adapters)
    made.given("model.lora", "--lora-scaled", scaled, "none")
    # 0: the model's own, which llama-server shortens until it fits; slots share the context.
    size = 0 if runtime.context_size == "auto" else runtime.context_size * runtime.slots
    made.flag("runtime.context_size", "--ctx-size", size)
    made.flag("runtime.slots", "--parallel", runtime.slots)
    made.flag(
        "runtime.gpu_layers",
        "--n-gpu-layers",
        "all" if runtime.gpu_layers == ALL else runtime.gpu_layers,
    )
    made.given("runtime.threads", "--threads", runtime.threads, "its default")
    made.flag("runtime.prompt_cache_mb", "--cache-ram", runtime.prompt_cache_mb)
    shift = "--context-shift" if runtime.context_full == "slide" else "--no-context-shift"
    made.flag("runtime.context_full", shift)
    none = runtime.vram_budget_gb is None
    made.either(
        "runtime.vram_budget_gb", none, "no limit", "it leaves a margin free (--fit-target)"
    )
    _flags(made)
    bet = drafting(d)
    made.carried["model.drafter"] = "--spec-type" if bet.window else "no speculation"
    if bet.window:
        kinds = dict.fromkeys(_SPEC_TYPES[name] for name in (bet.method, *bet.others))
        made.argv += ["--spec-type", ",".join(kinds)]
        made.argv += ["--spec-draft-n-max", str(bet.window)]
        if bet.model is not None:
            made.argv += ["--spec-draft-model", _gguf(bet.model)]
            made.mount(bet.model)
        _window(made, "--spec-draft-n-max")
    made.flag("server.host", "--host", server.host)
    made.flag("server.port", "--port", server.port)
    made.flag("server.request_timeout_s", "--timeout", math.ceil(server.request_timeout_s))
    made.given("server.max_answer_tokens", "--predict", server.max_answer_tokens, "no limit")
    made.given("server.cors_origins", "--cors-origins", ",".join(server.cors_origins), "its own")
    made.argv += ["--metrics"]
    if server.api_keys_file:
        made.flag("server.api_keys_file", "--api-key-file", server.api_keys_file)
        made.mount(server.api_keys_file)
    elif server.api_keys:
        made.secret = "LLAMA_API_KEY"
        made.carried["server.api_keys"] = "LLAMA_API_KEY, with commas between"
    return made


def _flags(made: Launch) -> None:
    """llama.cpp's settings go as they are where they were set."""
    llama = made.deployment.runtime.llama
    for name in type(llama).model_fields:
        flag, value = flag_of(name), getattr(llama, name)
        key = f"runtime.llama.{flag}"
        if name not in llama.model_fields_set or value == "auto":
            made.carried[key] = "its default"
        elif isinstance(value, bool):
            made.flag(key, f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            made.given(
                key,
                f"--{flag}",
                ",".join(f"{v:g}" if isinstance(v, float) else v for v in value),
                "its default",
            )
        elif name == "n_cpu_moe" and value == ALL:
            made.flag(key, "--cpu-moe")
        else:
            made.flag(key, f"--{flag}", f"{value:.9g}" if isinstance(value, float) else value)


ENGINES: dict[str, Callable[[Deployment], Launch]] = {
    "parlay": own,
    "vllm": vllm,
    "sglang": sglang,
    "llama-server": llama_server,
}

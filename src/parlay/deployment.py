"""The deployment file, `speculative-deploy.yaml`: every key, its default and its bounds.

Knows no models and opens no files but the one it reads; the server and the doctor act on it.
Order of precedence: flags, then environment variables PARLAY_SECTION_KEY, then the file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from parlay.errors import BadRequest
from parlay.hub.name import is_name
from parlay.llama.settings import ALL, RopeScaling, RopeSettings, SplitMode
from parlay.models import SHIPPED_DRAFTERS
from parlay.routing import DEFAULT_RULES, Rule
from parlay.upstreams import Pool, repeated


def _names(value: object) -> object:
    """Several names may stand in one line, with commas: variables and flags have no lists."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return value
    return tuple(name.strip() for name in str(value).split(",") if name.strip())


def _word(value: object) -> object:
    """What looks like a number is the name of one here."""
    return str(value) if type(value) is int else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Share = Annotated[float, Field(ge=0, le=1)]
_Layers = Annotated[int, Field(ge=-1)] | Literal["auto"]
_Tokens = Annotated[int, Field(ge=16)] | Literal["auto"]
_CHOICE = re.compile(
    r"(constrained-)?int|literal\[.*\]"
)  # pydantic's name for one of several types
_EXACT_CLASS = re.compile(r"\d+(-\d+)?")  # a width, or all up to one
_WEBHOOK = re.compile(r"https?://[^\s/?#]+\S*", re.IGNORECASE)
# Words of `model.drafter` that are no model's name.
KEPT_NAMES = frozenset({*SHIPPED_DRAFTERS, "auto", "suffix", "none"})
_FIXED_WINDOW = 4  # of a fixed controller that is given none
_MODELS = ("model.target", "model.drafter")
_PATHS = (
    *_MODELS,
    "model.tokenizer",
    "runtime.remember_file",
    "monitoring.request_log",
    "server.api_keys_file",
    "server.slot_save_path",
)
_PREFIX = "PARLAY_"


class DeploymentError(BadRequest):
    """The deployment file, a variable or a flag says something that cannot be done."""


class Section(BaseModel):
    """A part of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(Section):
    """Which models."""

    target: str = "default"  # a GGUF file, or a name (docs/how-to/models.md)
    # a model, `suffix`, `default` or `default-block` (the shipped drafters), `none`, or
    # several, with commas or as a list; `auto`: `suffix`, and what is known for the target
    drafter: str = "auto"
    # a `tokenizer.json`, `{text: id}` or `[text]` that must match the target's own
    tokenizer: str | None = None
    # names under which clients may ask for it; the first is shown; absent: the file's name
    alias: Names = ()
    lora: tuple[str, ...] = ()  # adapters of the target: FILE, or FILE:SCALE

    @field_validator("drafter", mode="before")
    @classmethod
    def _one_line(cls, value: object) -> object:
        return joined(value) if isinstance(value, list | tuple) else value

    @field_validator("lora", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


# What llama.cpp's own programs call what we call otherwise; elsewhere dashes stand for underscores.
_FLAGS = {
    "batch": "batch-size",
    "ubatch": "ubatch-size",
    "unified_cache": "kv-unified",
    "devices": "device",
    "flash_attention": "flash-attn",
    "tensor_overrides": "override-tensor",
    "yarn_orig_context": "yarn-orig-ctx",
    "drafter_gpu_layers": "spec-draft-ngl",
    "drafter_cache_type_k": "spec-draft-type-k",
    "drafter_cache_type_v": "spec-draft-type-v",
}
_ROPE = ("rope_scaling", "rope_scale", "rope_freq_base")


def flag_of(name: str) -> str:
    """A field of `runtime.llama` by llama.cpp's flag, without its dashes in front."""
    return _FLAGS.get(name, name.replace("_", "-"))


class LlamaFlags(Section):
    """llama.cpp's settings, by the names of its flags."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=flag_of)

    # most rows of a pass, and so how many prompts are read at once; 0: 512, or 1,024 on a
    # GPU that has room
    batch: int = Field(0, ge=0)
    ubatch: int = Field(0, ge=0)  # rows computed at once; 0: the batch
    # one cache for all slots: drafts of any length share a pass, but a row looks at every
    # slot's tokens
    unified_cache: bool = False
    devices: Names = ()  # which devices; absent: all
    # how several GPUs share the target: `layer`, `row`, `tensor`, or `none` (all on the main
    # one)
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()  # each GPU's share; empty: by what is free
    main_gpu: int = Field(0, ge=0)  # the one that has what is not shared
    # the first so many layers of a mixture keep their experts in RAM; -1: all
    n_cpu_moe: int = Field(0, ge=-1)
    # PATTERN=DEVICE: tensors whose names match go there; each must match one
    tensor_overrides: tuple[str, ...] = ()
    flash_attention: Literal["auto", "on", "off"] = "auto"
    cache_type_k: str = "auto"  # `auto` keeps texts exact
    cache_type_v: str = "auto"  # `auto` keeps texts exact
    mmap: bool = True
    mlock: bool = False
    rope_scaling: RopeScaling = "auto"  # how positions are stretched: `none`, `linear`, `yarn`
    rope_scale: float | None = Field(None, gt=0)  # so many times the trained context
    rope_freq_base: float | None = Field(None, gt=0)
    yarn_orig_context: int | None = Field(None, gt=0)
    yarn_ext_factor: float | None = Field(None, ge=0)
    yarn_attn_factor: float | None = Field(None, ge=0)
    yarn_beta_fast: float | None = Field(None, ge=0)
    yarn_beta_slow: float | None = Field(None, ge=0)
    drafter_gpu_layers: int = Field(-1, ge=-1)  # the drafter's layers on the GPU; -1: all
    drafter_cache_type_k: str = "auto"
    drafter_cache_type_v: str = "auto"

    @model_validator(mode="before")
    @classmethod
    def _by_flags(cls, value: Any) -> Any:
        """As typed: with underscores or dashes."""
        if not isinstance(value, dict):
            return value
        return {str(name).replace("_", "-"): given for name, given in value.items()}

    @field_validator("tensor_split", mode="before")
    @classmethod
    def _shares(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("tensor_overrides", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    def loading(self) -> dict[str, Any]:
        """As `Parlay` takes them: how positions are stretched is one value there."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        rope = {name.removeprefix("rope_"): given.pop(name) for name in _ROPE}
        rope |= {name: given.pop(name) for name in list(given) if name.startswith("yarn_")}
        return given | {"rope": RopeSettings(**rope)}


class RuntimeSection(Section):
    """How they run and how they bet."""

    # -1: all, if there is a GPU; `auto`: as many as fit, a mixture's experts leaving the GPU
    # first
    gpu_layers: _Layers = -1
    # tokens of each slot; `auto`: the longest that fits, up to the model's own
    context_size: _Tokens = 4096
    # a target that does not fit is refused; a drafter that does not is left out (`memory`)
    vram_budget_gb: float | None = Field(None, gt=0)
    # the most tokens drafted in a round; 0: none; absent: as prices allow, up to 64
    speculative_window: int | None = Field(None, ge=0, le=64)
    # guard rail: below, decode plainly for a while (`low_acceptance`)
    min_token_acceptance: Share | None = None
    min_sequence_acceptance: Share | None = None  # the same, of whole drafts
    # above: an alert, and the window is halved; rounds that would not pay do not count
    fallback_threshold_pct: float | None = Field(None, gt=0, le=100)
    # `auto`, `profit`: window and proposer by measured time; `fixed`: always the window that
    # is set
    controller: Literal["auto", "fixed", "profit"] = "auto"
    # `exact`, `faithful`; `auto`: exact where that costs little
    mode: Literal["auto", "exact", "faithful"] = "auto"
    # Such as 3-4; absent: the one that costs least.
    exact_class: Annotated[str | None, BeforeValidator(_word)] = None
    slots: int = Field(4, ge=1, le=256)  # answers made at once
    threads: int = Field(0, ge=0)  # 0: physical cores
    follow_load: bool = True  # fewer threads, or sleeping ones, where others use the cores
    # who is not slower than plain decoding among several answers: their `sum`, or `each` of
    # them
    promise: Literal["sum", "each"] = "sum"
    translate: bool = False  # let a drafter of another vocabulary draft through text
    # tokens of earlier requests that suffix drafts from, apart by key; absent: 65,536 where
    # no key is asked for, else none
    remember_tokens: int | None = Field(None, ge=0, le=10_000_000)
    # a file that keeps them across restarts; guard it like a log of prompts
    remember_file: str | None = None
    # RAM for what was read before; the least recently used goes first; 0: none
    prompt_cache_mb: int = Field(1024, ge=0)
    # `slide`: past the context the oldest half after the prompt goes
    context_full: Literal["stop", "slide"] = "stop"
    llama: LlamaFlags = LlamaFlags()
    pass_timeout_s: float = Field(300, gt=0)  # a pass that takes longer: the engine is begun anew

    @field_validator("exact_class")
    @classmethod
    def _is_a_class(cls, value: str | None) -> str | None:
        if value is not None and not _EXACT_CLASS.fullmatch(value.replace(" ", "")):
            raise ValueError("must be a number of rows such as 4, or all of them such as 1-65")
        return value

    @property
    def layers(self) -> int:
        """On the GPU; where they are still to be found, all."""
        return ALL if self.gpu_layers == "auto" else self.gpu_layers

    @property
    def adaptive(self) -> bool:
        """Whether windows are chosen by measured time; a window that is set is then the widest."""
        return self.controller != "fixed" and self.speculative_window != 0

    @property
    def fixed_window(self) -> int:
        """The window of a fixed controller."""
        return _FIXED_WINDOW if self.speculative_window is None else self.speculative_window

    def loading(self) -> dict[str, Any]:
        """As `Parlay` takes them, as far as it does: keys of these names mean the same there."""
        names = (
            "gpu_layers", "context_size", "vram_budget_gb", "exact_class", "slots", "threads",
            "follow_load", "promise", "translate", "prompt_cache_mb",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        given["mode"] = None if self.mode == "auto" else self.mode
        return given | self.llama.loading()


class MonitoringSection(Section):
    """What is written down, and when someone is told."""

    metrics_endpoint: str = "/metrics/speculative"  # where the JSON metrics are
    # alert when recent acceptance is 30 % below the usual one
    alert_on_acceptance_drop: bool = True
    acceptance_drop: ClassVar[float] = 0.3  # below the usual one, of which is told
    # tokens between two looks at a slid cache; 0: never
    cache_compaction_interval: int = Field(8192, ge=0)
    request_log: str | None = None  # a file of JSON lines, one a request; five of 64 MB are kept
    request_log_max_mb: ClassVar[float] = 64
    request_log_keep: ClassVar[int] = 5  # files of that size
    log_prompts: bool = False  # texts, too
    alert_webhook: str | None = None  # an address that is told of alerts
    memory_pressure_pct: ClassVar[float] = 95

    @field_validator("alert_webhook")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not _WEBHOOK.fullmatch(value):
            raise ValueError("must be an address that begins with http:// or https://")
        return value

    @field_validator("metrics_endpoint")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        if not value.startswith("/") or value.startswith(("/v1/", "/health")):
            raise ValueError("must begin with / and not hide another route")
        return value


class ServerSection(Section):
    """Who may ask, and how much."""

    host: str = "127.0.0.1"  # a public address needs a key, or `allow_public_without_key`
    port: int = Field(8080, ge=0, le=65535)
    api_keys: tuple[SecretStr, ...] = ()  # or `PARLAY_API_KEYS=a,b`; compared in constant time
    api_keys_file: str | None = None  # one key a line
    # open everything else, and `/live`: other people's requests
    admin_keys: tuple[SecretStr, ...] = ()
    allow_public_without_key: bool = False  # serve strangers, knowingly
    # pages of other sites that may ask; every other foreign origin is refused
    cors_origins: Names = ()
    allowed_hosts: Names = ()  # names it answers to besides loopback and its address; `*`: any
    # answers that may wait for a slot; beyond that 429 with `Retry-After`
    queue_size: int = Field(64, ge=0)
    request_timeout_s: float = Field(600, gt=0)  # an answer is cut there, and keeps what was made
    drain_s: float = Field(30, ge=0)  # that answers may take to end after SIGTERM
    max_connections: ClassVar[int] = 512
    # deaths of the engine's process in ten minutes after which the server ends
    max_restarts: int = Field(5, ge=0)
    stall_s: float = Field(60, gt=0)  # a client that reads nothing for so long is let go
    max_body_mb: float = Field(4, gt=0)  # of a request's body
    max_prompt_tokens: int | None = Field(None, ge=1)  # absent: what the context holds
    # of an answer; absent: what the context holds
    max_answer_tokens: int | None = Field(None, ge=1)
    max_n: ClassVar[int] = 8
    # For requests that name none; absent: what the model's file recommends, else 0.8.
    default_temperature: float | None = Field(None, ge=0, le=100)
    slot_save_path: str | None = None  # a folder for saved slots; absent: slots are not saved
    slot_save_mb: int = Field(16384, ge=1)  # what may lie there
    # among holders of different keys; `cached_tokens` then tells each what others sent
    share_prompt_cache: bool = False
    # control words that clients write in messages are marks; else they are text
    parse_special_in_messages: bool = False
    # of request bodies: told in `warnings`, or refused
    unknown_fields: Literal["tell", "refuse"] = "tell"
    # kept in memory for `previous_response_id`, each for its key; 0: none
    stored_responses: int = Field(0, ge=0, le=1_000_000)

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(value.split(",")) if isinstance(value, str) else value


class GatewaySection(Section):
    """How upstreams are watched and asked; only with `engine: endpoints`."""

    health_interval_s: float = Field(2, gt=0)  # between two health checks of a server
    health_timeout_s: ClassVar[float] = 2
    retries: ClassVar[int] = 2  # before the first byte only
    connect_timeout_s: ClassVar[float] = 5
    stall_timeout_s: float = Field(120, gt=0)  # the longest silence in a stream, its start too
    max_answer_mb: ClassVar[float] = 64


class Deployment(Section):
    """The whole file."""

    engine: Literal["local", "endpoints"] = "local"  # `endpoints`: ask `upstreams`, load nothing
    upstreams: tuple[Pool, ...] = ()  # remote servers (docs/how-to/serve.md#remote-servers)
    gateway: GatewaySection = GatewaySection()
    model: ModelSection = ModelSection()
    runtime: RuntimeSection = RuntimeSection()
    monitoring: MonitoringSection = MonitoringSection()
    server: ServerSection = ServerSection()
    routes: tuple[Rule, ...] = DEFAULT_RULES  # who speculates, by rules; first match wins

    @model_validator(mode="after")
    def _has_an_engine(self) -> Deployment:
        if self.engine == "endpoints" and not self.upstreams:
            raise ValueError("engine: endpoints needs upstreams: a list of name and urls")
        if self.engine == "local" and self.upstreams:
            raise ValueError("upstreams are only asked with engine: endpoints; add that line")
        if (twice := repeated(self.upstreams)) is not None:
            raise ValueError(f"upstreams: {twice} stands there twice")
        return self


_SECTIONS: dict[str, type[Section]] = {
    "model": ModelSection,
    "runtime": RuntimeSection,
    "monitoring": MonitoringSection,
    "server": ServerSection,
    "gateway": GatewaySection,
}


def load_deployment(
    path: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Deployment:
    """Read the file (none: all defaults), then variables, then `overrides` by dotted key."""
    content = _read(Path(path)) if path is not None else {}
    origin = Path(path).name if path is not None else "the deployment"
    if path is not None:
        _resolve(content, Path(path).absolute().parent)
    given = {**_from_environ(os.environ if environ is None else environ), **(overrides or {})}
    for key, value in given.items():
        _put(content, key, value)
    _resolve(content, Path.cwd())
    try:
        return Deployment.model_validate(content)
    except ValidationError as error:
        raise DeploymentError(f"{origin}: {explain(error)}") from None


class _Loader(yaml.SafeLoader):
    """YAML as it is now: on, off, yes and no are words. Some keys take them as such, and those
    that are true or false take them all the same."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != _BOOL]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|false)$", re.IGNORECASE), list("tTfF"))


def read_yaml(text: str) -> Any:
    """A file, or the value of a variable or flag."""
    return yaml.load(text, _Loader)  # a safe loader with fewer booleans


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DeploymentError(f"no deployment file at {path}; check the path") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DeploymentError(f"{path.name} cannot be read as YAML: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise DeploymentError(f"{path.name} must be a mapping of sections: {', '.join(_top())}")
    return content


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    """PARLAY_RUNTIME_SLOTS=8 is runtime.slots; PARLAY_API_KEYS is short for the server's."""
    found: dict[str, Any] = {}
    for name, value in sorted(environ.items()):
        section, _, key = name.removeprefix(_PREFIX).lower().partition("_")
        if name.startswith(_PREFIX) and key and section in _SECTIONS:
            _check_key(f"variable {name}", section, key)
            found[f"{section}.{key}"] = _value_of(name, value)
    if environ.get("PARLAY_API_KEYS"):
        found["server.api_keys"] = environ["PARLAY_API_KEYS"]
    return found


def _value_of(name: str, text: str) -> Any:
    try:
        return read_yaml(text) if text else None
    except yaml.YAMLError:
        raise DeploymentError(f"variable {name}: the value is not YAML; quote it") from None


def _put(content: dict[str, Any], dotted: str, value: Any) -> None:
    section, _, key = dotted.partition(".")
    if section in _top() and section not in _SECTIONS:
        raise DeploymentError(f"{section} can be set in a deployment file only; write it there")
    if section not in _SECTIONS:
        raise DeploymentError(f"{dotted} names no section{_hint(section, list(_SECTIONS))}")
    key, _, flag = key.partition(".")
    _check_key(dotted, section, key)
    part = content.setdefault(section, {})
    if flag and isinstance(part, dict):  # runtime.llama.flash-attn
        part, key = part.setdefault(key, {}), flag
    if not isinstance(part, dict):
        raise DeploymentError(f"{section} must hold keys, one a line")
    part[key] = value


def _check_key(what: str, section: str, key: str) -> None:
    known = list(_SECTIONS[section].model_fields)
    if key not in known:
        raise DeploymentError(f"{what}: {key} is not a key of {section}{_hint(key, known)}")


def joined(names: Sequence[object]) -> object:
    """Several drafters in one line; what is no list of names stays as it is, to be refused."""
    return ",".join(map(str, names)) if all(isinstance(n, str) for n in names) else names


def _resolve(content: dict[str, Any], folder: Path) -> None:
    """Relative paths are meant from where they were written: the file's folder, or this one."""
    model = content.get("model")
    if isinstance(model, dict) and isinstance(model.get("drafter"), list):
        model["drafter"] = joined(model["drafter"])
    for dotted in _PATHS:
        section, _, key = dotted.partition(".")
        part = content.get(section)
        if isinstance(part, dict) and isinstance(part.get(key), str):
            names = part[key].split(",") if dotted == "model.drafter" else [part[key]]
            place = _model if dotted in _MODELS else _absolute
            part[key] = ",".join(place(name.strip(), folder) for name in names)
    if isinstance(model, dict) and isinstance(model.get("lora"), str | list):
        named = [model["lora"]] if isinstance(model["lora"], str) else model["lora"]
        model["lora"] = [_absolute(n, folder) if isinstance(n, str) else n for n in named]
    pools = content.get("upstreams")
    for pool in pools if isinstance(pools, list) else []:
        if isinstance(pool, dict) and isinstance(pool.get("api_key_file"), str):
            pool["api_key_file"] = _absolute(pool["api_key_file"], folder)


def _model(name: str, folder: Path) -> str:
    """A model's name stays one; its file is looked for when it is loaded."""
    return name if name in KEPT_NAMES or is_name(name, folder) else _absolute(name, folder)


def _absolute(name: str, folder: Path) -> str:
    return str(folder / Path(name).expanduser()) if name else name


def explain(error: ValidationError) -> str:
    """The first problem in one line, with the nearest key where one is unknown."""
    problems = error.errors(include_url=False, include_context=False)
    # A misspelt key may also be one that is missing: what stands there says more.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    place = [str(part) for part in first["loc"] if not _CHOICE.fullmatch(str(part))]
    dotted = ".".join(place)
    if first["type"] == "extra_forbidden":
        return f"{dotted} is not a key{_hint(place[-1], _keys_at(place[:-1]))}"
    reason = first["msg"].removeprefix("Value error, ")
    if not place:
        return reason
    secret = "key" in dotted or "webhook" in dotted or "urls" in place
    given = "" if secret else f" (given {first['input']!r:.60})"
    return f"{dotted}: {reason}{given}"


def _keys_at(place: Sequence[str]) -> list[str]:
    """The keys that may stand at a place, then those of all other sections."""
    node: Any = Deployment
    for part in place:
        node = _child(node, part)
    own = [f.alias or name for name, f in node.model_fields.items()] if _is_model(node) else []
    elsewhere = [f"{name}.{key}" for name, part in _SECTIONS.items() for key in part.model_fields]
    return [*own, *elsewhere]


def _child(node: Any, part: str) -> Any:
    if _is_model(node) and part in node.model_fields:
        node = node.model_fields[part].annotation
    return next((arg for arg in get_args(node) if _is_model(arg)), node)


def _is_model(node: Any) -> bool:
    return isinstance(node, type) and issubclass(node, BaseModel)


def _hint(key: str, known: Sequence[str]) -> str:
    """Nearest by spelling; a key of the right name in another section is named in full."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    near = near or [name for name in known if name.endswith(f".{key}")]
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known[:12])}"


def _top() -> list[str]:
    return list(Deployment.model_fields)
